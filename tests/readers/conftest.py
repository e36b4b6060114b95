"""What the readers' tests share: writing a file, reading it whole or in ranges, and comparing what came out."""

import itertools
from collections import Counter
from dataclasses import dataclass, field

import pytest

from gristmill.core.errors import CorruptStreamError
from gristmill.core.records import SourceFile
from gristmill.readers.cells import CELL_BYTES, StreamDamage, UnpackedPiece
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_for_unpacking, open_reader


@dataclass
class Outcome:
    """All that a reader gave, cell by cell."""

    cells: list = field(default_factory=list)
    records: list = field(default_factory=list)
    num_blank: int = 0
    bad: list = field(default_factory=list)

    @property
    def texts(self):
        return [record["text"] for record in self.records]

    @property
    def positions(self):
        return [record["origin"]["position"] for record in self.records]

    @property
    def reasons(self):
        return [bad.reason for bad in self.bad]

    def counted(self):
        return len(self.records), self.num_blank, Counter(self.reasons)


def read_ranges(reader, borders):
    """Everything a reader gives for the ranges between the borders; the last may be None."""
    outcome = Outcome()
    for first, stop in itertools.pairwise(borders):
        for cell in reader.read_cells(first, stop):
            cell.batch.validate(full=True)
            check_texts(cell)
            outcome.cells.append((cell.cell, cell.batch.num_rows, cell.num_blank, len(cell.quarantined)))
            outcome.records += cell.batch.to_pylist()
            outcome.num_blank += cell.num_blank
            outcome.bad += cell.quarantined
    return outcome


def check_texts(cell):
    """Texts that stay strings are not among the columns, and the batch has them where the schema has their column."""
    if cell.texts is not None:
        assert "text" not in cell.rows.schema.names
        assert cell.batch.column("text").to_pylist() == cell.texts.strings
        assert cell.batch.schema.equals(cell.texts.schema, check_metadata=True)


@pytest.fixture(scope="session")
def new_file(tmp_path_factory):
    """Writes a new file, and describes it as a source's file."""
    folder = tmp_path_factory.mktemp("files")
    numbers = itertools.count()

    def write(name, data):
        path = folder / f"{next(numbers)}-{name}"
        path.write_bytes(data)
        return SourceFile(str(path), name, len(data), "1", 7)

    return write


@pytest.fixture(scope="session")
def read_all():
    """Reads a file whole, with the schema the plan would give."""

    def read_whole(read, file, *, keeps_record=False, schema=None, cell_bytes=CELL_BYTES):
        schema = schema or plan_schema(read, [file], keeps_record=keeps_record)
        return read_ranges(open_reader(read, file, schema, cell_bytes=cell_bytes), [0, None])

    return read_whole


@pytest.fixture(scope="session")
def unpack(tmp_path_factory):
    """Unpacks a compressed file into pieces of some cells each, as the pipeline does."""
    folder = tmp_path_factory.mktemp("pieces")
    numbers = itertools.count()

    def unpack_pieces(read, file, cells_a_piece, cell_bytes):
        content: dict[int, bytes] = {}
        damage = None
        separated, elements = open_for_unpacking(read, file, cell_bytes=cell_bytes)
        try:
            for cell, data in separated.pieces():
                assert cell in (len(content) - 1, len(content))
                content[cell] = content.get(cell, b"") + data
        except CorruptStreamError as error:
            damage = StreamDamage.from_error(error)
        pieces, start = [], separated.start
        for first in range(0, len(content), cells_a_piece):
            cells = range(first, min(first + cells_a_piece, len(content)))
            data = b"".join(content[cell] for cell in cells)
            path = folder / str(next(numbers))
            path.write_bytes(data)
            is_last = cells.stop == len(content)
            damaged = damage if is_last else None
            pieces.append(UnpackedPiece(str(path), first, len(cells), start, damaged, elements=elements))
            start += len(data)
        return pieces

    return unpack_pieces


@pytest.fixture(scope="session")
def ranges():
    return read_ranges
