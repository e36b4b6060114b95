"""Which format a file has, from its name."""

from __future__ import annotations

import posixpath

from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.steps.read.read import FORMATS
from gristmill.storage.compression import codec_of, strip_codec

_BY_SUFFIX = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",  # also JSON lines: many corpora call them so
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".tar": "webdataset",
}
JSON_FORMATS = ("jsonl", "json")
RECORD_FORMATS = (*JSON_FORMATS, "csv")
"""Those that are read as JSON objects."""
_COMPRESSED_INSIDE = ("parquet", "arrow", "hugging_face")


def has_known_format(path: str) -> bool:
    """Whether a file's name says its format."""
    return posixpath.splitext(strip_codec(path))[1].lower() in _BY_SUFFIX


def file_format(path: str, declared: str | None = None) -> str:
    """The format of a file: what the recipe says, else what its name says.

    >>> file_format("web/part-0001.jsonl.zst")
    'jsonl'
    >>> file_format("notes.log", declared="text")
    'text'
    """
    suffix = posixpath.splitext(strip_codec(path))[1].lower()
    if declared is not None and declared != "gristmill":
        check_choice("format", declared, FORMATS)
        found = declared
    elif suffix in _BY_SUFFIX:
        found = _BY_SUFFIX[suffix]
    else:
        raise UsageError(
            f"{path}: no format is known by this name",
            help=f"name only the data files, or set format to one of {', '.join(FORMATS)}",
        )
    if found in _COMPRESSED_INSIDE and codec_of(path):
        raise UsageError(
            f"{path}: a {found} file inside another compression cannot be read",
            help="unpack it; its columns are compressed already",
        )
    return found
