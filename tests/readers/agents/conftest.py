"""What the tests of agent sessions share: reading a file as sessions."""

import itertools
import json
from collections import Counter
from dataclasses import dataclass, field

import pytest

from gristmill.core.records import SourceFile
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import open_reader
from gristmill.steps import Read


@dataclass
class Sessions:
    """The records of a file, and what was counted and quarantined."""

    records: list = field(default_factory=list)
    positions: list = field(default_factory=list)
    counters: Counter = field(default_factory=Counter)
    bad: list = field(default_factory=list)
    num_blank: int = 0

    @property
    def reasons(self):
        return [entry.reason for entry in self.bad]

    def words(self, record=0, key="messages"):
        return [(message["role"], message["content"]) for message in self.records[record][key]]


@pytest.fixture(scope="session")
def read_sessions(tmp_path_factory):
    """Reads bytes as a file of agent sessions, whole or in ranges of cells."""
    folder = tmp_path_factory.mktemp("sessions")
    numbers = itertools.count()

    def read(data, name="session.jsonl", *, cell_bytes=4 << 20, borders=(0, None), **keys):
        path = folder / f"{next(numbers)}-{name}"
        path.write_bytes(data)
        read = Read(read=str(path), format="agent", **keys)
        file = SourceFile(str(path), name, len(data), "1", 7)
        schema = plan_schema(read, [file], keeps_record=True, has_text=False)
        reader = open_reader(read, file, schema, cell_bytes=cell_bytes)
        sessions = Sessions()
        for first, stop in itertools.pairwise(borders):
            for cell in reader.read_cells(first, stop):
                cell.batch.validate(full=True)
                sessions.records += map(json.loads, cell.batch.column("record").to_pylist())
                sessions.positions += cell.batch.column("origin").field("position").to_pylist()
                sessions.counters += cell.counters
                sessions.bad += cell.quarantined
                sessions.num_blank += cell.num_blank
        return sessions

    return read
