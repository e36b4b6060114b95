"""The table of formats: how the files of each are recognised, planned and read.

A new format is one module and one line of `FORMATS`; runs, streams, the viewer and benchmarks then read it. Formats
beyond the table come from installed packages: their suffix is the name of the format, and they are read like `objects`.

A module of a format has `open_file(part, schema)`, which opens a `FileReader`, and by its content:

* `objects` (each record is a JSON object): `sample_records(read, file, most)`, the records in a file's first bytes.
  If several tasks can read one file, also `open_cells(part)`, the plain bytes of its cells;
* `table` (a file knows its columns): `read_schemas(files, sampled)`;
* `own`: `plan_columns(read, files, wanted)`.

A module that recognises folders has `find_folder_format(files)` and `arrange_folder(files, where)`.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError
from gristmill.core.media import FILE_EXTENSIONS
from gristmill.runtime.plugins import READER, find_plugin, list_plugin_names
from gristmill.storage.codecs import find_codec, strip_codec
from gristmill.storage.files import open_input

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.core.records import SideFile
    from gristmill.storage.paths import ListedFile


@dataclass(frozen=True, slots=True)
class Format:
    """A format of files. Its modules are named below `gristmill.readers`, and imported when a file needs them."""

    module: str
    content: Literal["objects", "table", "own"] = "own"
    suffixes: tuple[str, ...] = ()
    folder: str = ""
    """The module that recognises a folder of this format."""
    is_compressed: bool = False
    """Whether its columns are compressed, so that no other compression is around a file."""
    is_dataset: bool = False
    """Whether it is that of finished datasets, whose shards have formats by their names."""

    def load(self) -> Any:
        """Import the module that reads its files."""
        return import_module(f"gristmill.readers.{self.module}")

    def arrange_folder(self, files: Sequence[ListedFile], where: str) -> FolderFiles:
        """Find the data files of a folder."""
        arranged: FolderFiles = import_module(f"gristmill.readers.{self.folder}").arrange_folder(files, where)
        return arranged


FORMATS = {
    "jsonl": Format("texts.json_lines", "objects", (".jsonl", ".ndjson")),
    "json": Format("texts.json_array", "objects", (".json",)),  # also JSON lines
    "csv": Format("texts.csv_file", "objects", (".csv", ".tsv")),
    "parquet": Format("tables.parquet", "table", (".parquet", ".pq"), is_compressed=True),
    "arrow": Format("tables.arrow", "table", (".arrow", ".feather", ".ipc"), is_compressed=True),
    "hugging_face": Format("tables.arrow", "table", folder="tables.hub_folder", is_compressed=True),
    "agent": Format("agents.session_files", "objects", (".traj",)),
    "text": Format("texts.text_files", suffixes=(".txt", ".text", ".md")),
    "webdataset": Format("webdataset", suffixes=(".tar",)),
    "warc": Format("web_archives", suffixes=(".warc", ".wet")),
    "files": Format("sample_folder", suffixes=tuple(f".{end}" for end in FILE_EXTENSIONS), folder="sample_folder"),
    "gristmill": Format("tables.gristmill_dataset", folder="tables.gristmill_dataset", is_dataset=True),
    "samples": Format("webdataset", folder="tables.gristmill_dataset", is_dataset=True),
}


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The data files of a folder."""

    splits: dict[str, list[ListedFile]]
    """The files by split; files without a split under an empty name."""
    notes: list[str] = field(default_factory=list)
    side_files: dict[str, tuple[SideFile, ...]] = field(default_factory=dict)
    """By the relative path of a sample, the files that describe it."""


_PLUGIN = Format("plugin_files", "objects")
_BY_SUFFIX = {suffix: name for name, entry in FORMATS.items() for suffix in entry.suffixes}
SUFFIXES = tuple(_BY_SUFFIX)
RECORD_FORMATS = tuple(name for name, entry in FORMATS.items() if entry.content == "objects")
"""The formats whose records are read as JSON objects."""


def find_format(name: str) -> Format:
    """Return the format with a name; those that are not in the table are read by installed packages."""
    return FORMATS.get(name, _PLUGIN)


def find_folder_format(declared: str | None, files: Sequence[ListedFile]) -> str | None:
    """Find the format of a listed folder: what the recipe declares, else what its files say; None for other files."""
    if declared is not None:
        return declared if find_format(declared).folder else None
    # Datasets come last in the table, and are recognised first: they may hold what marks the folders of others.
    for folder in dict.fromkeys(entry.folder for entry in reversed(FORMATS.values()) if entry.folder):
        name: str | None = import_module(f"gristmill.readers.{folder}").find_folder_format(files)
        if name is not None:
            return name
    return None


def check_format(name: str) -> None:
    """Raise `UsageError` unless this is a built-in format or one that an installed package can read."""
    if name in FORMATS or find_plugin(READER, name) is not None:
        return
    try:
        check_choice("format", name, [*FORMATS, *list_plugin_names(READER)])
    except UsageError as error:
        error.context["unknown_reader"] = name
        raise


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
    if declared is not None and not find_format(declared).is_dataset:
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
    if find_format(format_name).is_compressed and find_codec(path):
        raise UsageError(
            f"{path}: a {format_name} file inside another compression cannot be read",
            help="unpack it; its columns are compressed already",
        )
    return format_name


_FIRST_BYTES = 256
_KINDS = (
    (b"version https://git-lfs", "it is a pointer of Git LFS, not the file itself: run git lfs pull in its folder"),
    (b"/annex/objects/", "it is a pointer of git-annex, not the file itself: run git annex get in its folder"),
    (b"<!doctype html", "it is a web page, not data: the download was refused; check the address and the login"),
    (b"<html", "it is a web page, not data: the download was refused; check the address and the login"),
    (b"<?xml", "it is XML, perhaps an error message of a store, not the file; check the address and the login"),
    (b"PAR1", "it begins as Parquet and ends too early: its writer or its download was stopped; get the whole file"),
    (b"ARROW1", "it is an Arrow file: name it .arrow, or set format: arrow"),
    (b"\xff\xff\xff\xff", "it begins as an Arrow stream: name it .arrow, or set format: arrow"),
    (b"\x1f\x8b", "it is compressed with gzip: unpack it, or name it .jsonl.gz if it holds JSON lines"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with zstd: unpack it, or name it .jsonl.zst if it holds JSON lines"),
    (b"PK\x03\x04", "it is a zip archive: unpack it"),
    (b"{", "it looks like JSON: name it .jsonl, or set format: jsonl"),
    (b"[", "it looks like JSON: name it .jsonl, or set format: jsonl"),
)


def advise_on_file(path: str, expected_format: str) -> str:
    """Return what to do about a file that is not in the format that its name says (arrow, parquet)."""
    try:
        with open_input(path) as stream:
            first = stream.read(_FIRST_BYTES)
    except OSError:
        first = b""
    if not first.strip(b"\0"):
        problem = "it is empty" if not first else "it begins with zeros only: its disk or its writer failed"
        return f"{problem}: remove it, or rewrite it"
    for mark, advice in _KINDS:
        if first.lower().startswith(mark.lower()) and f"format: {expected_format}" not in advice:
            return advice
    return f"it begins with {first[:16]!r}: leave it out of read, set format to what it is, or rewrite it"
