"""From files to readers: which files a source has, how each is read, how a compressed one is unpacked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import xxhash

from gristmill.core.errors import UsageError
from gristmill.core.records import SourceFile
from gristmill.steps.read.arrow import ArrowReader
from gristmill.steps.read.cells import CELL_BYTES, ElementRange, FileReader, UnpackedPiece
from gristmill.steps.read.formats import JSON_FORMATS, file_format
from gristmill.steps.read.gristmill_dataset import datasets_tokenizer, holds_datasets, shard_files
from gristmill.steps.read.hugging_face import data_files, is_dataset_folder
from gristmill.steps.read.json_array import ElementFile, JsonArrayReader
from gristmill.steps.read.json_layout import find_elements
from gristmill.steps.read.json_lines import LINE_END, JsonLinesReader
from gristmill.steps.read.parquet import ParquetReader
from gristmill.steps.read.separated import SeparatedFile
from gristmill.steps.read.text_files import SeparatedTextReader, WholeTextReader
from gristmill.steps.read.webdataset import WebDatasetReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from gristmill.shards.carried_tokenizer import CarriedTokenizer
    from gristmill.steps.read.read import Read
    from gristmill.storage.paths import FoundFile


def recognized(read: Read, found: Sequence[FoundFile]) -> Read:
    """The source with its format, if that shows in the listing and not in the names of the files."""
    if read.format is None and holds_datasets(found):
        return msgspec.structs.replace(read, format="gristmill")
    return read


def source_files(source: str, read: Read, found: Sequence[FoundFile]) -> list[SourceFile]:
    """The files of a source, from what its patterns found: the folder of a saved dataset becomes its data files."""
    splits: dict[str, str] = {}
    if read.format == "gristmill":
        shards = shard_files(found, read.split)
        found = [file for file, _ in shards]
        splits = {file.relative: split for file, split in shards}
    elif read.format == "hugging_face" or (read.format is None and is_dataset_folder(found)):
        found = data_files(found, read.split)
    elif read.split is not None:
        raise UsageError("split: only the folder of a saved dataset has splits", help="name the files you want in read")
    return [
        SourceFile(
            path=file.path,
            relative=file.relative,
            num_bytes=file.num_bytes,
            version=file.version,
            id=xxhash.xxh3_64_intdigest(f"{source}\0{file.relative}".encode()),
            split=splits.get(file.relative, ""),
        )
        for file in found
    ]


def source_tokenizer(read: Read, found: Sequence[FoundFile]) -> CarriedTokenizer | None:
    """What made the ids of a source that holds tokens already."""
    return datasets_tokenizer(found) if read.format == "gristmill" else None


def open_reader(
    read: Read,
    file: SourceFile,
    schema: pa.Schema,
    *,
    piece: UnpackedPiece | None = None,
    cell_bytes: int = CELL_BYTES,
) -> FileReader:
    """A reader of one file, or of a piece of it that was unpacked before.

    Args:
        read: The source.
        file: The file.
        schema: The source's schema, from `plan_schema`.
        piece: The part to read instead of the file itself.
        cell_bytes: The size of a cell; part of the output's identity.
    """
    kind = file_format(file.path, read.format)
    elements = _elements(read, file, piece, kind)
    if elements is not None:
        return JsonArrayReader(read, ElementFile(file, elements, read.max_record_bytes, piece, cell_bytes), schema)
    if kind in JSON_FORMATS or (kind == "text" and read.separator is not None):
        cells = _separated(read, file, piece, cell_bytes)
        return (JsonLinesReader if kind in JSON_FORMATS else SeparatedTextReader)(read, cells, schema)
    if kind == "text":
        return WholeTextReader(read, file, schema)
    if kind == "webdataset":
        return WebDatasetReader(read, file, schema, cell_bytes=cell_bytes)
    reader = ParquetReader if kind == "parquet" else ArrowReader
    return reader(read, file, schema, cell_bytes=cell_bytes)


def is_array(read: Read, file: SourceFile) -> bool:
    """Whether a file is one JSON array, or an object with one: where to cut it is only known after one pass over it."""
    elements = _elements(read, file, None, file_format(file.path, read.format))
    return elements is not None and elements.is_array


def cells_to_unpack(
    read: Read, file: SourceFile, *, cell_bytes: int = CELL_BYTES
) -> tuple[SeparatedFile, ElementRange | None]:
    """A compressed file of lines, elements or separated text, or a plain one of one JSON array; and where that is.

    Its `pieces()` are its plain bytes, cell by cell. Each cell comes at least once, in order; one with a large record
    in several pieces. Put one after the other, the bytes of a run of cells are an `UnpackedPiece`. If the stream cannot
    be read to its end, `CorruptStreamError` follows the last cell; the last piece gets it as its `damage`.
    """
    elements = _elements(read, file, None, file_format(file.path, read.format))
    if elements is not None:
        return ElementFile(file, elements, read.max_record_bytes, cell_bytes=cell_bytes), elements
    return _separated(read, file, None, cell_bytes), None


def _elements(read: Read, file: SourceFile, piece: UnpackedPiece | None, kind: str) -> ElementRange | None:
    """Where the records of a JSON file stand that does not hold lines."""
    if piece is not None:
        return piece.elements
    return find_elements(read, file.path) if kind == "json" else None


def _separated(read: Read, file: SourceFile, piece: UnpackedPiece | None, cell_bytes: int) -> SeparatedFile:
    separator = LINE_END if read.separator is None else read.separator.encode()
    return SeparatedFile(file, separator, read.max_record_bytes, piece, cell_bytes)
