"""The table of export formats. It is the only place that knows all of them.

To add a format, write an `ExportFormat` with its `Layout` in a file of its own and add it to the table below. A plugin
calls `add_export_format` instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.exports.arrays import ArraysFormat
from gristmill.exports.megatron import MegatronFormat
from gristmill.exports.streams import LlmcFormat, NanogptFormat
from gristmill.exports.tables import JsonlTables, ParquetTables, WebdatasetTables

if TYPE_CHECKING:
    from gristmill.exports.layout import ExportFormat

_FORMATS: dict[str, ExportFormat] = {
    kind.name: kind
    for kind in (
        MegatronFormat(),
        NanogptFormat(),
        LlmcFormat(),
        ArraysFormat(),
        WebdatasetTables(),
        ParquetTables(),
        JsonlTables(),
    )
}


def export_formats() -> tuple[ExportFormat, ...]:
    """Return all formats, in the order in which help texts list them."""
    return tuple(_FORMATS.values())


def find_export_format(name: str) -> ExportFormat:
    """Return the format with this name.

    >>> find_export_format("numpy").takes_columns
    False
    """
    check_choice("to", name, _FORMATS)
    return _FORMATS[name]


def add_export_format(format: ExportFormat) -> None:
    """Add a format under its name. Adding it again changes nothing; another format of that name is refused."""
    existing = _FORMATS.setdefault(format.name, format)
    if type(existing) is not type(format):
        raise UsageError(
            f"two export formats are called {format.name!r}: {_describe_class(existing)}, {_describe_class(format)}",
            help="rename the one of your plugin",
        )


def _describe_class(format: ExportFormat) -> str:
    return f"{type(format).__module__}.{type(format).__qualname__}"
