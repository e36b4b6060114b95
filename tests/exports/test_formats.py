"""The table of export formats, and a format that is added from outside."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from gristmill.core.errors import UsageError
from gristmill.exports import formats
from gristmill.exports.formats import add_export_format, export_formats, find_export_format
from gristmill.exports.layout import ExportFormat, PlannedFile
from gristmill.exports.tokens import read_shard_batches


@dataclass(frozen=True)
class RowCounts:
    """A layout of one text file for each shard, which holds the shard's number of rows."""

    split: str
    num_files: int

    @property
    def files(self):
        return [PlannedFile(f"_{self.split}-{number}.txt") for number in range(self.num_files)]

    def later_names(self):
        return iter(())

    def fill(self, slot, targets):
        num_rows = sum(batch.num_rows for batch in read_shard_batches(slot))
        Path(targets.paths[slot.number]).write_text(str(num_rows))

    def usage(self, prefix):
        return f"cat {prefix}_{self.split}-*.txt"


class RowCountsFormat(ExportFormat):
    name = "row_counts"

    def check_dataset(self, manifest, folder):
        pass

    def make_layout(self, split):
        return RowCounts(split.name, len(split.slots))


class OtherNumpy(RowCountsFormat):
    name = "numpy"


@pytest.fixture(autouse=True)
def restored_table(monkeypatch):
    monkeypatch.setattr(formats, "_FORMATS", dict(formats._FORMATS))


def test_a_format_from_outside_needs_no_change_elsewhere(documents, run):
    add_export_format(RowCountsFormat())
    exported = run(documents, "row_counts")
    assert [path.read_text() for path in exported.files] == ["3", "1", "2", "1"]
    assert exported.rows == {"train": 6, "validation": 1}
    assert [kind.name for kind in export_formats()][-1] == "row_counts"


def test_two_formats_of_one_name_are_refused():
    add_export_format(RowCountsFormat())
    add_export_format(RowCountsFormat())
    with pytest.raises(UsageError, match=r"two export formats are called 'numpy'.*ArraysFormat.*OtherNumpy"):
        add_export_format(OtherNumpy())


def test_an_unknown_format_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="to must be one of megatron") as raised:
        find_export_format("megatorn")
    assert "megatron" in raised.value.help
