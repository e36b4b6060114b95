"""From a record of a dataset back to its input: the file, the position in it, the record as it was read.

Cost: one cell (about 4 MiB) of a file that can be cut, a few for Parquet and Arrow; a compressed file is read from its
start to the position. Of a document that `deduplicate` has removed, the one kept instead of it is found too: the table
of removed documents is read once (a few bytes per document), then one cell of each of two input files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.core.checks import find_nearest
from gristmill.core.errors import DamagedDatasetError, GristmillError, UsageError
from gristmill.core.records import INPUT_IDS, ORIGIN, RECORD, TEXT, SourceFile
from gristmill.pipeline.barriers.deduplicate.decision import TABLE_SCHEMA
from gristmill.pipeline.inspecting.find import find_record, open_whole_records
from gristmill.pipeline.planning.fingerprint import name_missing_packages
from gristmill.pipeline.stages.outputs.dropped import parse_positions
from gristmill.readers.cells import CELL_BYTES
from gristmill.readers.formats import file_format
from gristmill.readers.read import Read
from gristmill.shards.canonical import make_damage_error
from gristmill.shards.dataset import Origin
from gristmill.shards.stored_files import file_key
from gristmill.storage.files import read_version
from gristmill.storage.locations import is_remote, parse_location
from gristmill.storage.stores.credentials import distrust_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from gristmill.readers.cells import CellBatch, FileReader
    from gristmill.shards.dataset import Dataset
    from gristmill.shards.manifest import Deduplicated, Manifest
    from gristmill.shards.stored_files import InputFile

    Decode = Callable[[NDArray[np.integer[Any]]], str]
    """Decodes token ids, as `Dataset.decode_ids` does."""


State = Literal["unchanged", "changed", "missing"]


@dataclass(frozen=True, slots=True)
class TracedOrigin:
    """The origin of a document, and the record there as it is now."""

    origin: Origin
    position_kind: str
    """What the origin's position counts: byte, row or member."""
    state: State
    """Whether the input file is as it was when it was read."""
    original: str | dict[str, Any] | None
    """The record in the input file: a JSON line, its columns, or the text of its tokens. None unless the file is
    unchanged."""
    numbers: list[int] | None = None
    """The records of the dataset that were made from it; None: they were not looked for."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A record and where it came from; a row of tokens has an origin for each document in it."""

    record: dict[str, Any]
    places: list[TracedOrigin]


def trace(dataset: Dataset, number: int) -> Trace:
    """Follow one record back to its input. The original is read only from a file that has not changed since."""
    if not -len(dataset) <= number < len(dataset):
        raise UsageError(
            f"there is no record {number}: {dataset.folder} has {len(dataset):,}",
            help=f"numbers run from 0 to {len(dataset) - 1}" if len(dataset) else "it is empty",
        )
    record = {"text": dataset.decode(number)} if dataset.manifest.holds_rows else dataset[number]
    decode = dataset.decode_ids
    return Trace(record, [_trace_origin(dataset.manifest, origin, decode) for origin in dataset.origins(number)])


def trace_input(dataset: Dataset, word: str) -> TracedOrigin:
    """Read the record at a position in the input, written as in files of dropped records: `web:a.jsonl@1234`."""
    files = dataset.manifest.files.values()
    positions = parse_positions(word, sorted({file.source for file in files}))
    if not positions:
        raise UsageError(
            f"{word!r} is neither the number of a record nor a position in the input",
            help="write a number from 0 on, or SOURCE:FILE@POSITION as in the files of dropped/",
        )
    for position in positions:
        for file in files:
            if position.is_in_source(file.source) and position.file in (file.path, file.relative):
                origin = Origin(file.source, file.path, position.position, 0)
                return _trace_origin(dataset.manifest, origin, dataset.decode_ids)
    name = positions[-1].file
    nearest = find_nearest(name, [file.relative for file in files])
    raise UsageError(
        f"{dataset.folder} was not made from a file {name}",
        help=f'did you mean "{nearest}"?' if nearest else "manifest.json lists its files",
    )


def trace_wanted(dataset: Dataset, wanted: str, tell: Callable[[str], object]) -> TracedOrigin:
    """Find the first record of the inputs with a value (`id=abc`), and the records of the dataset made from it."""
    manifest = dataset.manifest
    files = sorted(manifest.files.values(), key=lambda file: (file.source, file.relative))
    for file in files:
        distrust_url(file.path)
        if _check_state(file) != "unchanged":
            raise UsageError(
                f"the input file {file.path} has changed or is missing, so its records cannot be searched",
                help="`gristmill explain RECIPE --find …` searches the inputs as they are now",
            )
    with name_missing_packages(lambda: manifest.plugins):
        readable = [(_rebuild_read(manifest, file.source), _as_source_file(file)) for file in files]
        index, position = find_record(wanted, readable, tell)
    file = files[index]
    traced = _trace_origin(manifest, Origin(file.source, file.path, position, 0), dataset.decode_ids)
    place, numbers = (file.source, file.path, position), []
    for number in range(len(dataset)):
        tell(f"searching: {100 * number // len(dataset)} % of {len(dataset):,} records of the dataset")
        if any((origin.source, origin.path, origin.position) == place for origin in dataset.origins(number)):
            numbers.append(number)
    return replace(traced, numbers=numbers)


def _trace_origin(manifest: Manifest, origin: Origin, decode: Decode) -> TracedOrigin:
    file = _find_input_file(manifest, origin)
    distrust_url(file.path)
    state = _check_state(file)
    with name_missing_packages(lambda: manifest.plugins):
        read = _rebuild_read(manifest, origin.source)
        kind = _name_position_kind(read, file)
        row = _read_original(read, file, origin.position) if state == "unchanged" else None
    return TracedOrigin(origin, kind, state, None if row is None else _describe_original(row, decode))


def read_original_text(manifest: Manifest, file: InputFile, position: int, read: Read | None = None) -> str | None:
    """Read the text at a position of an input file, before all steps; None if the file has changed or has none there.

    `read` says how to read a file that belongs to no source.
    """
    distrust_url(file.path)
    if _check_state(file) != "unchanged":
        return None
    with name_missing_packages(lambda: manifest.plugins):
        row = _read_original(read or _rebuild_read(manifest, file.source), file, position)
    return None if row is None or TEXT not in row.schema.names else row.column(TEXT)[0].as_py()


def make_text_reader(manifest: Manifest) -> Callable[[str, int, int], str | None]:
    """Make a function that reads texts of the input by source, file and position; None where it cannot be read."""

    def read_text(source: str, file: int, position: int) -> str | None:
        entry = manifest.files.get(file_key(file))
        if entry is None or entry.source != source or is_remote(parse_location(entry.path)):
            return None
        try:
            return read_original_text(manifest, entry, position)
        except (GristmillError, OSError):
            return None

    return read_text


def _find_input_file(manifest: Manifest, origin: Origin) -> InputFile:
    for file in manifest.files.values():
        if (file.source, file.path) == (origin.source, origin.path):
            return file
    raise DamagedDatasetError(f"the manifest names no input file {origin.path}", help="rebuild the dataset")


def _rebuild_read(manifest: Manifest, source: str) -> Read:
    """Rebuild how the source was read from the recipe in the manifest; without columns, which only steps needed."""
    sources = manifest.recipe.get("sources")
    parameters = dict(sources[source]) if isinstance(sources, dict) and source in sources else {}
    read_parameters = {key: value for key, value in parameters.items() if key not in ("steps", "columns")}
    try:
        return msgspec.convert(read_parameters, Read)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, UsageError) and "unknown_reader" in error.__cause__.context:
            raise error.__cause__ from None  # the file is fine; a package is missing
        raise DamagedDatasetError(f"the recipe in the manifest cannot be read: {error}") from error


def _check_state(file: InputFile) -> State:
    try:
        return "unchanged" if read_version(file.path) == (file.bytes, file.version) else "changed"
    except FileNotFoundError:
        return "missing"


def _name_position_kind(read: Read, file: InputFile) -> str:
    kind = file_format(file.path, read.format)
    return {"jsonl": "byte", "json": "byte", "csv": "byte", "text": "byte", "webdataset": "member"}.get(kind, "row")


def _read_original(read: Read, file: InputFile, position: int) -> pa.RecordBatch | None:
    """Read the record at a position, alone in its batch."""
    reader = open_whole_records(read, _as_source_file(file))
    cells = _read_cells_at(reader, position, by_bytes=_name_position_kind(read, file) == "byte")
    for cell in cells:
        positions = _list_positions(cell)
        if position in positions:
            return cell.batch.slice(positions.index(position), 1)
    return None


def _as_source_file(file: InputFile) -> SourceFile:
    # Any id will do: positions are compared within one file.
    return SourceFile(path=file.path, relative=file.relative, num_bytes=file.bytes, version=file.version, id=0)


def _read_cells_at(reader: FileReader, position: int, *, by_bytes: bool) -> Iterator[CellBatch]:
    """Read the cell that holds the position, or all cells if only reading shows which it is."""
    if by_bytes:
        cell = position // CELL_BYTES
        yield from reader.read_cells(cell, cell + 1)
    elif reader.can_cut:
        yield from _bisect_cells(reader, position)
    else:
        yield from reader.read_cells()


def _bisect_cells(reader: FileReader, position: int) -> Iterator[CellBatch]:
    """Find the cell of a position by bisection: cells of rows are in the order of their positions."""
    first, stop = 0, len(reader.cell_sizes())
    while first < stop:
        middle = (first + stop) // 2
        [cell] = reader.read_cells(middle, middle + 1)
        positions = [*_list_positions(cell), *(record.position for record in cell.quarantined)]
        if not positions or min(positions) <= position <= max(positions):
            yield cell
            return
        first, stop = (middle + 1, stop) if position > max(positions) else (first, middle)


def _list_positions(cell: CellBatch) -> list[int]:
    positions: list[int] = cell.batch.column(ORIGIN).field("position").to_pylist()
    return positions


def _describe_original(row: pa.RecordBatch, decode: Decode) -> str | dict[str, Any]:
    if RECORD in row.schema.names:
        line: bytes = row.column(RECORD)[0].as_py()
        return line.decode()
    if INPUT_IDS in row.schema.names:  # the source has token ids, with the same tokenizer
        return {TEXT: decode(row.column(INPUT_IDS).flatten().to_numpy())}
    values: dict[str, Any] = row.drop_columns([ORIGIN]).to_pylist()[0]
    return values


@dataclass(frozen=True, slots=True)
class RemovedDocument:
    """A document that was removed, and why. Texts come from the input files, before all steps; None: a changed file."""

    origin: Origin
    reason: str
    """`duplicate` or `near_duplicate`."""
    similarity: float
    """The similarity of the two sets of word n-grams."""
    is_estimate: bool
    """Whether the similarity was estimated from signatures (`verify: signature`)."""
    text: str | None
    survivor: Origin
    survivor_text: str | None


def read_removed_document(dataset: Dataset, number: int) -> RemovedDocument:
    """Read a removed document by its number over the tables of all `deduplicate` steps, one after the other."""
    first = 0
    for step in dataset.manifest.deduplicated:
        if 0 <= number - first < step.rows:
            row = _read_table(dataset, step).slice(number - first, 1).to_pylist()[0]
            return _make_document(dataset, step, row)
        first += step.rows
    raise UsageError(
        f"there is no removed document {number}: {dataset.folder} has {first:,}",
        help=f"numbers run from 0 to {first - 1}" if first else "no deduplicate step has removed any",
    )


def find_removed_parts(dataset: Dataset, origin: Origin) -> list[dict[int, RemovedDocument]]:
    """Find for each `deduplicate` step what it has removed of the record with this origin, by part.

    The path of the origin may be relative to the source.
    """
    files = [
        int(key, 16)
        for key, file in dataset.manifest.files.items()
        if file.source == origin.source and origin.path in (file.path, file.relative)
    ]
    return [_read_removed_parts(dataset, step, files, origin.position) for step in dataset.manifest.deduplicated]


def _read_removed_parts(
    dataset: Dataset, step: Deduplicated, files: list[int], position: int
) -> dict[int, RemovedDocument]:
    table = _read_table(dataset, step)
    removed = table["removed"]
    # Typed scalars: Arrow reads a plain Python number as int64, and half of all file ids are larger.
    is_here = pc.and_(
        pc.is_in(pc.struct_field(removed, "file"), pa.array(files, pa.uint64())),
        pc.equal(pc.struct_field(removed, "position"), pa.scalar(position, pa.uint64())),
    )
    rows = table.filter(is_here).to_pylist()
    return {row["removed"]["part"]: _make_document(dataset, step, row) for row in rows}


def _read_table(dataset: Dataset, step: Deduplicated) -> Any:
    try:
        table = pq.read_table(step.file.copy_below(dataset.folder))
    except (OSError, ValueError) as error:
        raise make_damage_error(step.file.path, f"cannot be read: {error}", dataset.folder) from error
    if not table.schema.equals(TABLE_SCHEMA):
        raise make_damage_error(step.file.path, "has other columns than a table of removed documents", dataset.folder)
    return table


def _make_document(dataset: Dataset, step: Deduplicated, row: Mapping[str, Any]) -> RemovedDocument:
    origin, text = _read_document(dataset, step, row["removed"], row["source"])
    survivor, survivor_text = _read_document(dataset, step, row["survivor"], row["survivor_source"])
    return RemovedDocument(origin, row["reason"], row["similarity"], row["is_estimate"], text, survivor, survivor_text)


def _read_document(
    dataset: Dataset, step: Deduplicated, fields: Mapping[str, int], source: str
) -> tuple[Origin, str | None]:
    """Read a document from the fields of its origin in the table; returns the origin, and the text."""
    key = file_key(fields["file"])
    file = step.against.get(key) or dataset.manifest.files.get(key)
    if file is None:
        raise DamagedDatasetError(f"the manifest names no input file {key}", help="rebuild the dataset")
    origin = Origin(source, file.path, fields["position"], fields["part"])
    read = msgspec.convert({**step.against_read, "read": file.path}, Read) if key in step.against else None
    return origin, read_original_text(dataset.manifest, file, origin.position, read)
