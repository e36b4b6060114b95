"""A folder of samples: which files are samples, which describe them, and which split each is in.

The conventions are those of Hugging Face's ImageFolder. `metadata.jsonl` or `metadata.csv` has a row for each file,
found by its `file_name`, which is relative to the table. The first folder names the split, if the first folders of all
files do. A file `0001.txt`, `0001.caption`, `0001.cls` or `0001.json` beside `0001.jpg` describes it.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.media import FILE_EXTENSIONS, get_extension
from gristmill.core.records import SideFile
from gristmill.core.splits import TRAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gristmill.core.records import SourceFile
    from gristmill.storage.listing.paths import ListedFile

TABLE = "*table"
"""The extension of the table of a folder among the side files of a sample."""
SIDE_EXTENSIONS = ("txt", "caption", "cls", "json")
_OTHER_DATA = ("jsonl", "ndjson", "csv", "tsv", "parquet", "pq", "arrow", "feather", "ipc", "tar", "gz", "zst")
_TABLES = ("metadata.jsonl", "metadata.csv")
_SPLITS = {"train": TRAIN, "training": TRAIN} | dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
_SPLITS |= dict.fromkeys(("test", "testing", "eval"), "test")


class FolderFiles(NamedTuple):
    """The files of a folder of samples."""

    splits: dict[str, list[ListedFile]]
    """The samples by split; under an empty name if folders name no splits."""
    side_files: dict[str, tuple[SideFile, ...]]
    """By the relative path of a sample, the files that describe it."""
    notes: list[str]


def holds_samples(files: Sequence[ListedFile]) -> bool:
    """Whether images, sounds or other files of bytes are among the files, and no other data beside them."""
    others = [file for file in files if posixpath.basename(file.relative) not in _TABLES]
    return _has_bytes(others) and not any(get_extension(file.relative) in _OTHER_DATA for file in others)


def _has_bytes(files: Iterable[ListedFile]) -> bool:
    return any(get_extension(file.relative) in FILE_EXTENSIONS for file in files)


def arrange_folder(files: Sequence[ListedFile]) -> FolderFiles:
    """Find the samples among the files of a folder, and what describes each of them."""
    tables = _list_tables(files)
    others = [file for file in files if posixpath.basename(file.relative) not in _TABLES]
    is_media = _has_bytes(others)
    stems: dict[str, list[ListedFile]] = {}
    samples, rest = [], []
    for file in others:
        extension = get_extension(file.relative)
        if extension in SIDE_EXTENSIONS:
            stems.setdefault(_cut_extension(file.relative), []).append(file)
        elif not is_media or extension in FILE_EXTENSIONS:
            samples.append(file)
        else:
            rest.append(file)
    if not samples:  # files that could describe others are the samples themselves
        samples, stems = [file for group in stems.values() for file in group], {}
    side_files = {}
    for file in samples if stems or tables else []:
        described = [
            _make_side_file(side, get_extension(side.relative)) for side in stems.get(_cut_extension(file.relative), [])
        ]
        table = _find_table(tables, file.relative)
        if table is not None:
            described.append(_make_side_file(table, TABLE))
        if described:
            side_files[file.relative] = tuple(described)
    used = {_cut_extension(file.relative) for file in samples} if stems else set()
    rest += [file for stem, group in stems.items() if stem not in used for file in group]
    notes = []
    if rest:
        names = rest[0].relative if len(rest) == 1 else f"{rest[0].relative}, …"
        notes.append(f"files that describe no sample and are not read: {len(rest):,} ({names})")
    return FolderFiles(_split_by_folder(samples), side_files, notes)


def add_side_files(files: Iterable[SourceFile], folder: FolderFiles) -> list[SourceFile]:
    """Add to each sample the files that describe it."""
    if not folder.side_files:
        return list(files)
    return [msgspec.structs.replace(file, side_files=folder.side_files.get(file.relative, ())) for file in files]


def find_class(file: SourceFile) -> str | None:
    """Find the class of a file: the name of its folder, unless that is the folder of its split."""
    parts = file.relative.split("/")[:-1]
    if file.split and parts and parts[0].lower() in _SPLITS:
        parts = parts[1:]
    return parts[-1] if parts else None


def _list_tables(files: Iterable[ListedFile]) -> dict[str, ListedFile]:
    """List the tables, by the folder that each describes."""
    tables: dict[str, ListedFile] = {}
    for file in files:
        folder, _, name = file.relative.rpartition("/")
        if name in _TABLES and folder in tables:
            raise UsageError(
                f"{tables[folder].path} and {file.path} describe the files of one folder", help="remove one of them"
            )
        if name in _TABLES:
            tables[folder] = file
    return tables


def _find_table(tables: dict[str, ListedFile], relative: str) -> ListedFile | None:
    """Find the table in the folder of a file, or in the nearest one above it."""
    if not tables:
        return None
    folder = posixpath.dirname(relative)
    while folder not in tables:
        if not folder:
            return None
        folder = posixpath.dirname(folder)
    return tables[folder]


def _make_side_file(file: ListedFile, extension: str) -> SideFile:
    return SideFile(extension, file.path, file.num_bytes, file.version)


def _split_by_folder(samples: list[ListedFile]) -> dict[str, list[ListedFile]]:
    """Group files by the split that their first folder names, if those of all files name one, and one is `train`."""
    splits: dict[str, list[ListedFile]] = {}
    for file in samples:
        first, slash, _ = file.relative.partition("/")
        name = _SPLITS.get(first.lower()) if slash else None
        if name is None:
            return {"": samples}
        splits.setdefault(name, []).append(file)
    if TRAIN not in splits and splits:
        return {"": samples}
    return splits


def _cut_extension(relative: str) -> str:
    extension = get_extension(relative)
    return relative[: len(relative) - len(extension) - 1] if extension else relative


def make_key(relative: str) -> str:
    """Make the key of a sample: its path, up to the first dot of its name.

    >>> make_key("cats/a.b/0001.seg.png")
    'cats/a.b/0001'
    """
    folder, slash, name = relative.rpartition("/")
    stem = name[0] + name[1:].partition(".")[0] if name else name
    return f"{folder}{slash}{stem}"


def refuse_empty(folder: FolderFiles, path: str) -> None:
    """Raise `UsageError` if a folder has no sample."""
    if not any(folder.splits.values()):
        raise UsageError(f"{path}: there is no sample among the files", help="name the files in read")
