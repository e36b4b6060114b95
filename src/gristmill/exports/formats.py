"""The table of export formats. It is the only place that knows all of them.

To add a format, write an `ExportFormat` with its `Layout` and add it to the table below. An installed package adds one
through an entry point in `gristmill.exports`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError
from gristmill.exports.arrays import ArraysFormat, LlmcFormat, NanogptFormat
from gristmill.exports.folders import LitdataFormat, LlamafactoryFormat, MdsFormat
from gristmill.exports.layout import ExportFormat
from gristmill.exports.megatron import MegatronBridgeFormat, MegatronFormat
from gristmill.exports.olmo_core import OlmoCoreFormat
from gristmill.exports.prompts import NemoRlFormat, TrlPromptsFormat, VerlFormat
from gristmill.exports.tables import JsonlTables, ParquetTables, WebdatasetTables
from gristmill.runtime.plugins import EXPORT, find_plugin, list_plugin_names, refuse_shadowed

if TYPE_CHECKING:
    from gristmill.runtime.plugins import Plugin

_FORMATS: dict[str, ExportFormat] = {
    kind.name: kind
    for kind in (
        MegatronFormat(),
        MegatronBridgeFormat(),
        OlmoCoreFormat(),
        LlamafactoryFormat(),
        NanogptFormat(),
        LlmcFormat(),
        ArraysFormat(),
        MdsFormat(),
        LitdataFormat(),
        WebdatasetTables(),
        ParquetTables(),
        JsonlTables(),
        VerlFormat(),
        TrlPromptsFormat(),
        NemoRlFormat(),
    )
}


def export_formats() -> tuple[ExportFormat, ...]:
    """Return all built-in formats, in the order in which help texts list them."""
    return tuple(_FORMATS.values())


def list_format_names() -> list[str]:
    """List the names of all formats, those of installed packages last. No package is imported."""
    return list(dict.fromkeys([*_FORMATS, *list_plugin_names(EXPORT)]))


def find_export_format(name: str) -> ExportFormat:
    """Return the format with this name.

    >>> find_export_format("numpy").takes_columns
    False
    """
    check_choice("to", name, list_format_names())
    if name in _FORMATS:
        refuse_shadowed(EXPORT, name)
        return _FORMATS[name]
    plugin = find_plugin(EXPORT, name)
    assert plugin is not None  # `list_format_names` has its name
    return _load_format(plugin)


def _load_format(plugin: Plugin) -> ExportFormat:
    loaded = plugin.load()
    if not (isinstance(loaded, type) and issubclass(loaded, ExportFormat)):
        raise plugin.make_type_error(loaded, "a class derived from ExportFormat")
    try:
        export_format = loaded()
    except TypeError as error:  # an abstract method is missing, or the constructor takes arguments
        raise plugin.make_type_error(loaded, f"a class that can be called without arguments ({error})") from error
    if export_format.name != plugin.name:
        raise UsageError(
            f"{plugin}: the name of {loaded.__name__} is {export_format.name!r}",
            help=f'write name = "{plugin.name}" in the class, or rename the entry point',
        )
    return export_format
