"""The step that sets the format in which documents are written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError
from gristmill.core.records import KEY
from gristmill.core.step import Step, StepPosition
from gristmill.shards.formats.shard_format import COMPRESSIONS, FORMATS, ShardFormat

if TYPE_CHECKING:
    import pyarrow as pa

_NAME_FIELD = re.compile(r"\{(split|source|number(:0?\d{0,2}[dx]?)?)\}")
_NAME_HELP = 'write it as in "web-{number:06d}"; {split} and {source} are allowed, too'

_ROW_GROUP_BYTES = 112 << 20
"""What a row group of Parquet takes while it is encoded."""


class Write(Step, tag="write", frozen=True, kw_only=True):
    """Choose the output format of documents. It is the last of the common steps; without it the format is Arrow.

    | format | what a shard is | origins are in |
    |---|---|---|
    | `arrow` | an Arrow IPC stream, mapped by `datasets.load_from_disk`, pyarrow and polars | a column |
    | `parquet` | one row group for each 32 MiB of records | a column |
    | `jsonl` | a line for each record, as it was read if it was read from JSON, else its columns | a side file |
    | `webdataset` | a tar of `.txt` (the text), a member for each column of bytes under its name, and `.json` (the
    record, or its other columns); `__key__` names the samples, if there is such a column | a side file |

    In JSON, bytes become base64, times become text, and numbers that JSON does not have (NaN, infinity) become null.

    >>> Write(format="jsonl", compression="zstd").suffix
    '.jsonl.zst'
    """

    format: str = "arrow"
    """`arrow`, `parquet`, `jsonl` or `webdataset`: see [datasets](datasets.md)."""
    compression: str | None = None
    """gzip, zstd, bz2, xz, lz4 for jsonl; zstd (the default), snappy, gzip, lz4 for parquet. None for arrow, which is
    mapped, and for webdataset: `tarfile` silently stops after the first of several gzip members."""
    max_shard_bytes: int = 1 << 30
    """A shard ends with the block of records that brings it to this size."""
    max_shard_samples: int | None = None
    """For webdataset: the number of samples in a shard. The last shard of each 64 MiB of input, or of each bucket of
    a `shuffle`, holds the rest.
    """
    energon: bool = False
    """For webdataset of [samples](samples.md): add `.nv-meta` and an index of each tar, so that Megatron Energon
    reads the folder without `energon prepare`.
    """
    shard_name: str = "shard-{number:05d}"
    """The pattern of the shards' names, without their suffix. It may contain `{split}` and `{source}`."""

    def expected_bytes(self, slice_bytes: int) -> int:  # noqa: ARG002
        return _ROW_GROUP_BYTES if self.format == "parquet" else 0

    def __post_init__(self) -> None:
        check_choice("format", self.format, FORMATS)
        if self.compression is not None:
            check_choice(f"compression of {self.format} shards", self.compression, COMPRESSIONS[self.format])
        if self.energon and self.format != "webdataset":
            raise UsageError(f"energon is for webdataset, not for {self.format}", help="write format: webdataset")
        if self.max_shard_bytes < 1:
            raise UsageError(f"max_shard_bytes must be at least 1, not {self.max_shard_bytes}")
        if self.max_shard_samples is not None:
            if self.format != "webdataset":
                raise UsageError(
                    f"max_shard_samples is for webdataset, not for {self.format}", help="use max_shard_bytes instead"
                )
            if self.max_shard_samples < 1:
                raise UsageError(f"max_shard_samples must be at least 1, not {self.max_shard_samples}")
        self._check_shard_name()

    def _check_shard_name(self) -> None:
        if set("{}") & set(_NAME_FIELD.sub("", self.shard_name)):
            raise UsageError(f"shard_name: {self.shard_name!r:.100} is not a valid pattern", help=_NAME_HELP)
        names = [self.name_shard("train", "web", number) for number in (0, 1, 123_456)]
        is_safe = all(name.isprintable() and name[:1] not in ("", ".", "_") and len(name) <= 100 for name in names)
        if len(set(names)) < len(names) or not is_safe or any(mark in name for mark in "/\\" for name in names):
            shown = ", ".join(f"{name:.100}" for name in names)
            raise UsageError(
                f"shard_name: {self.shard_name!r:.100} gives {shown}: names must differ by their number, have no "
                "slashes and at most 100 characters, and begin with a letter or digit",
                help=_NAME_HELP,
            )

    def check_position(self, position: StepPosition) -> None:
        if not position.is_common or position.following:
            raise UsageError(f"{position.key}: write must be the last of the common steps")

    def name_shard(self, split: str, source: str, number: int) -> str:
        """Return the name of a shard, without its suffix."""
        return self.shard_name.format(split=split, source=source, number=number)

    @property
    def shard_format(self) -> ShardFormat:
        """The format of the shards, with its compression."""
        return ShardFormat.of(self.format, self.compression)

    @property
    def codec(self) -> str | None:
        """The compression of the shards; None: not compressed."""
        return self.shard_format.codec

    @property
    def suffix(self) -> str:
        """The suffix of the shards' file names."""
        return self.shard_format.suffix

    @property
    def keeps_record(self) -> bool:
        """Whether records from JSON are written as they were read; if not, their columns are written."""
        return self.shard_format.keeps_record

    def needs_sequence(self, schema: pa.Schema) -> bool:
        """Tell whether one writer must see all records of a shard in order, because blocks cannot be joined.

        Samples are counted, or neighbours with one key would become one sample.
        """
        return self.format == "webdataset" and (self.max_shard_samples is not None or KEY in schema.names)
