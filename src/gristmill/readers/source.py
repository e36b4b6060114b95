"""From files to readers: the files of a source, their splits (a column in any format), and the reader of each
file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN, SPLIT, SourceFile
from gristmill.core.splits import ALL_AS_TRAIN, BY_NAME, TRAIN, choose_splits, list_named_splits, looks_held_out
from gristmill.readers.cells import CELL_BYTES, FilePart
from gristmill.readers.formats import FORMATS, FolderFiles, file_format, find_folder_format, find_format
from gristmill.readers.tables.gristmill_dataset import find_datasets_tokenizer
from gristmill.readers.tables.hub_folder import find_hub_files
from gristmill.readers.texts.delimited_file import ScannedFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gristmill.readers.cells import CellBatch, ElementRange, FileReader, UnpackedPiece
    from gristmill.readers.read import Read
    from gristmill.readers.texts.delimited_file import DelimitedFile
    from gristmill.shards.manifest_file import TokenizerSnapshot
    from gristmill.storage.paths import ListedFile


def with_detected_format(read: Read, listed_files: Sequence[ListedFile]) -> Read:
    """Set the format of a folder: of finished datasets, or of samples. A file's name alone does not tell it."""
    name = find_folder_format(read.format, listed_files)
    return read if name is None else msgspec.structs.replace(read, format=name)


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The files that a source reads, and notes about its splits for the user."""

    files: list[SourceFile]
    notes: list[str]
    empty_splits: tuple[str, ...] = ()
    """The splits of the dataset that have no file."""


def list_source_files(
    source: str, read: Read, listed_files: Sequence[ListedFile], *, needs_train: bool = True
) -> list[SourceFile]:
    """Like `choose_split_files`, without the notes."""
    return choose_split_files(source, read, listed_files, needs_train=needs_train).files


def choose_split_files(
    source: str,
    read: Read,
    listed_files: Sequence[ListedFile],
    *,
    needs_train: bool = True,
    declared: Mapping[str, str] | None = None,
) -> SplitFiles:
    """Choose the files of a source from those its patterns match. The folder of a saved dataset becomes its data files.

    If the splits of files are known (see `core.splits`), each file gets the new name of its split. `declared` are the
    splits by path that `read` names.
    """
    where, hub = _describe_paths(read, listed_files), None
    name = find_folder_format(read.format, listed_files)
    if name is not None:
        folder = FORMATS[name].arrange_folder(listed_files, where)
    elif (hub := find_hub_files(read, listed_files)) is not None:
        folder = hub
    else:
        folder = FolderFiles({"": list(listed_files)})
    splits, notes = folder.splits, folder.notes
    if read.config is not None and hub is None:
        raise UsageError("config: only a folder of the Hugging Face Hub with its README.md has configs")
    if declared is not None:
        if read.splits is not None or (name is not None and name != "files"):
            raise UsageError(f"read names splits, but {where} has its own", help="read: its folder, and splits: {…}")
        files_of_all = [file for split_files in splits.values() for file in split_files]
        splits = {split: [] for split in read.read}
        for file in files_of_all:
            splits[declared[file.path]].append(file)
    if list(splits) == [""] and read.splits == BY_NAME:
        splits = _split_by_name(splits[""])
    if list(splits) == [""]:
        if read.splits not in (None, ALL_AS_TRAIN, BY_NAME):
            raise UsageError(
                "splits: only a dataset has splits, and these are files",
                help="name them in read: {train: data/train*.jsonl, validation: data/val.jsonl}",
            )
        if read.splits is None and name != "files" and needs_train:
            notes = [*notes, *_check_look_alikes(splits[""])]
        return SplitFiles(_describe_files(make_source_files(source, splits), folder), notes)
    if "" in splits:
        splits[TRAIN] = [*splits.get(TRAIN, []), *splits.pop("")]
    choice = None if read.splits == BY_NAME else read.splits
    new_names = choose_splits(list(splits), choice, where, needs_train=needs_train)
    files: dict[str, list[ListedFile]] = {}
    for split, name in new_names.items():
        if not splits[split] and (hub is not None or not any(splits[other] for other in new_names)):
            raise UsageError(f"split {split} has no files", help="leave it out: splits: {train: …}")
        files.setdefault(name, []).extend(splits[split])
    empty = tuple(name for name, split_files in files.items() if not split_files)
    described = _describe_files(make_source_files(source, files), folder)
    return SplitFiles(described, [*_split_notes(splits, new_names), *notes], empty)


def _describe_files(files: list[SourceFile], folder: FolderFiles) -> list[SourceFile]:
    """Add to each sample the files that describe it."""
    if not folder.side_files:
        return files
    return [msgspec.structs.replace(file, side_files=folder.side_files.get(file.relative, ())) for file in files]


def make_source_files(source: str, splits: Mapping[str, Sequence[ListedFile]]) -> list[SourceFile]:
    """Make the source files of all splits, sorted by relative path."""
    files: dict[str, SourceFile] = {}
    for split, split_files in splits.items():
        for file in split_files:
            other = files.get(file.relative)
            if other is not None and other.split != split:
                raise UsageError(
                    f"{file.path} is in two splits, {other.split} and {split}",
                    help="choose one of them: splits: {train: …}, or name the files in read",
                )
            files[file.relative] = SourceFile(
                path=file.path,
                relative=file.relative,
                num_bytes=file.num_bytes,
                version=file.version,
                id=xxhash.xxh3_64_intdigest(f"{source}\0{file.relative}".encode()),
                split=split,
            )
    return [files[relative] for relative in sorted(files)]


def choose_training_files(files: Sequence[SourceFile]) -> list[SourceFile]:
    """Choose the training files, or all if there are none, without their splits: for jobs that write no dataset."""
    training_files = [file for file in files if not file.is_held_out] or files
    return [msgspec.structs.replace(file, split="") for file in training_files]


def _describe_paths(read: Read, listed_files: Sequence[ListedFile]) -> str:
    return read.read if isinstance(read.read, str) else listed_files[0].path[: -len(listed_files[0].relative)]


def _split_notes(splits: Mapping[str, object], new_names: Mapping[str, str]) -> list[str]:
    """Make a note of which splits are read, under which names."""
    if list(new_names.values()) == [TRAIN] and len(splits) == 1:
        return []
    read_splits = ", ".join(name if name == split else f"{split} as {name}" for split, name in new_names.items())
    left_out = [split for split in splits if split not in new_names]
    return [f"splits: {read_splits}" + (f"; not read: {', '.join(left_out)}" if left_out else "")]


def _split_by_name(files: Sequence[ListedFile]) -> dict[str, list[ListedFile]]:
    """Put files in the splits that their names or folders say, and all others in `train`."""
    splits: dict[str, list[ListedFile]] = {}
    for file in files:
        named = list_named_splits(file.relative) or [TRAIN]
        if len(named) > 1:
            raise UsageError(
                f"splits: by_name: {file.relative} names {' and '.join(named)}",
                help="name the files of each split: read: {train: …, validation: …}",
            )
        splits.setdefault(named[0], []).append(file)
    return splits if list(splits) != [TRAIN] else {"": splits[TRAIN]}


def _check_look_alikes(files: Sequence[ListedFile]) -> list[str]:
    """Refuse files that may not be for training by their names; make a note if it is the only one that is read."""
    names = [file.relative for file in files if looks_held_out(file.relative)]
    if not names:
        return []
    if len(files) == 1:
        return [f"{names[0]} is training data, whatever its name says"]
    more_text = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    raise UsageError(
        f"the names of files say splits: {names[0]}{more_text}",
        help=f"splits: {BY_NAME} keeps these files out of training, splits: {ALL_AS_TRAIN} trains on all; or name "
        "them: read: {train: …, validation: …}",
    )


def find_source_tokenizer(read: Read, listed_files: Sequence[ListedFile]) -> TokenizerSnapshot | None:
    """Return the tokenizer of a source that holds tokens already."""
    return find_datasets_tokenizer(listed_files) if read.format == "gristmill" else None


def open_reader(
    read: Read,
    file: SourceFile,
    schema: pa.Schema,
    *,
    piece: UnpackedPiece | None = None,
    cell_bytes: int = CELL_BYTES,
) -> FileReader:
    """Open a reader of one file, or of a piece of it that was unpacked before.

    Args:
        read: The source.
        file: The file.
        schema: The source's schema, from `plan_schema`.
        piece: The piece to read instead of the file itself.
        cell_bytes: The size of a cell; part of the output's identity.
    """
    if SPLIT in schema.names:
        inner = schema.remove(schema.get_field_index(SPLIT))
        reader = open_reader(read, file, inner, piece=piece, cell_bytes=cell_bytes)
        return WithSplit(reader, schema, {file.id: file.split or TRAIN})
    opened: FileReader = _load_format(read, file).open_file(FilePart(read, file, piece, cell_bytes), schema)
    return opened


def needs_scan(read: Read, file: SourceFile) -> bool:
    """Whether a plain file must be scanned from its start to be cut: CSV, and a JSON array."""
    if file_format(file.path, read.format) not in ("csv", "json"):
        return False
    cells, elements = open_for_unpacking(read, file)
    return elements.is_array if elements is not None else isinstance(cells, ScannedFile)


def open_for_unpacking(
    read: Read, file: SourceFile, *, cell_bytes: int = CELL_BYTES
) -> tuple[DelimitedFile, ElementRange | None]:
    """Open a compressed file of records, or a plain one that must be scanned; for a JSON array also return its place.

    Its `pieces()` are its plain bytes, cell by cell. Each cell comes at least once, in order; a cell with a large
    record comes in several pieces. The joined bytes of a run of cells are an `UnpackedPiece`. If the stream cannot be
    read to its end, `CorruptStreamError` is raised after the last cell; the last piece gets it as its `damage`.
    """
    cells: DelimitedFile = _load_format(read, file).open_cells(FilePart(read, file, cell_bytes=cell_bytes))
    return cells, cells.elements


def _load_format(read: Read, file: SourceFile) -> Any:
    return find_format(file_format(file.path, read.format)).load()


def add_splits(cell: CellBatch, schema: pa.Schema, splits: Mapping[int, str]) -> CellBatch:
    """Add the column of splits to a cell; `splits` are those of the files, by their ids."""
    batch = cell.batch
    if len(splits) == 1:
        [split] = splits.values()
        column = pa.repeat(pa.scalar(split, pa.string()), batch.num_rows)
    else:
        files, indexes = np.unique(batch.column(ORIGIN).field("file").to_numpy(), return_inverse=True)
        names = pa.array([splits.get(int(file), TRAIN) for file in files], pa.string())
        column = names.take(pa.array(indexes))
    arrays = [column if name == SPLIT else batch.column(name) for name in schema.names]
    return replace(cell, rows=pa.RecordBatch.from_arrays(arrays, schema=schema), texts=None)


class WithSplit:
    """A reader that adds the column of splits to the cells of another reader."""

    def __init__(self, reader: FileReader, schema: pa.Schema, splits: Mapping[int, str]) -> None:
        self.can_cut = reader.can_cut
        self._reader = reader
        self._schema = schema
        self._splits = splits

    def cell_sizes(self) -> list[int]:
        return self._reader.cell_sizes()

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        for cell in self._reader.read_cells(first, stop):
            yield add_splits(cell, self._schema, self._splits)
