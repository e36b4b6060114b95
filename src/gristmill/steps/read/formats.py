"""The format of a file, from its name.

Formats beyond `FORMATS` come from installed packages (`plugin_files`); their suffix is the name of the format.
"""

from __future__ import annotations

import posixpath

from gristmill.core.errors import UsageError
from gristmill.core.media import FILE_EXTENSIONS
from gristmill.runtime.plugins import READER, find_plugin, list_plugin_names
from gristmill.steps.read.read import FORMATS, OWN_FORMATS, check_format
from gristmill.storage.codecs.compression import find_codec, strip_codec

_BY_SUFFIX = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",  # also JSON lines: many corpora use this suffix for them
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
    **{f".{extension}": "files" for extension in FILE_EXTENSIONS},
    ".warc": "warc",
    ".wet": "warc",
}
JSON_FORMATS = ("jsonl", "json")
RECORD_FORMATS = (*JSON_FORMATS, "csv")
"""The formats whose records are read as JSON objects."""
_COMPRESSED_INSIDE = ("parquet", "arrow", "hugging_face")


def has_known_format(path: str) -> bool:
    """Whether a file's name says its format."""
    return posixpath.splitext(strip_codec(path))[1].lower() in _BY_SUFFIX


def file_format(path: str, declared: str | None = None) -> str:
    """Return the format of a file: what the recipe declares, else what its name says.

    >>> file_format("web/part-0001.jsonl.zst")
    'jsonl'
    >>> file_format("notes.log", declared="text")
    'text'
    """
    suffix = posixpath.splitext(strip_codec(path))[1].lower()
    if declared is not None and declared not in OWN_FORMATS:
        check_format(declared)
        format_name = declared
    elif suffix in _BY_SUFFIX:
        format_name = _BY_SUFFIX[suffix]
    elif suffix and find_plugin(READER, suffix[1:]) is not None:
        format_name = suffix[1:]
    else:
        names = ", ".join([*FORMATS, *list_plugin_names(READER)])
        raise UsageError(
            f"{path}: the format cannot be told from this name",
            help=f"name only the data files, or set format to one of {names}",
            unknown_reader=suffix[1:],
        )
    if format_name in _COMPRESSED_INSIDE and find_codec(path):
        raise UsageError(
            f"{path}: a {format_name} file inside another compression cannot be read",
            help="unpack it; its columns are compressed already",
        )
    return format_name
