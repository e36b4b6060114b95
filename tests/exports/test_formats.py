"""The table of export formats, and a format that is added from outside."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from gristmill_testing.fake_packages import install_package

from gristmill.core.errors import UsageError
from gristmill.exports import formats
from gristmill.exports.formats import find_export_format
from gristmill.exports.layout import ExportFormat, PlannedFile, read_shard_batches


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


def test_a_format_from_outside_needs_no_change_elsewhere(documents, run, monkeypatch):
    monkeypatch.setitem(formats._FORMATS, "row_counts", RowCountsFormat())
    exported = run(documents, "row_counts")
    assert [path.read_text() for path in exported.files] == ["3", "1", "2", "1"]
    assert exported.rows == {"train": 6, "validation": 1}
    assert formats.list_format_names()[-1] == "row_counts"


def test_an_unknown_format_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="to must be one of megatron") as raised:
        find_export_format("megatorn")
    assert "megatron" in raised.value.help


PLUGIN = """
from gristmill.exports.layout import ExportFormat
from gristmill.exports.arrays import LlmcFormat

class Dots(LlmcFormat):
    name = "dots"

class Named(LlmcFormat):
    name = "other"

class Abstract(ExportFormat):
    name = "dots"

def function():
    pass
"""


def install(site, value, name="dots"):
    install_package(site, "fake-dots", {"gristmill.exports": {name: f"fake_dots:{value}"}}, {"fake_dots.py": PLUGIN})


def test_a_format_of_an_installed_package(site):
    install(site, "Dots")
    assert formats.list_format_names()[-1] == "dots"
    assert type(find_export_format("dots")).__name__ == "Dots"
    with pytest.raises(UsageError) as raised:
        find_export_format("dost")
    assert "dots" in raised.value.help


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("function", "must be a class derived from ExportFormat"),
        ("Abstract", "must be a class that can be called without arguments"),
        ("Named", "the name of Named is 'other'"),
        ("Missing", "cannot be imported"),
    ],
)
def test_an_entry_point_of_the_wrong_kind_is_refused(site, value, message):
    install(site, value)
    with pytest.raises(UsageError, match=f"export 'dots' of package fake-dots 1.0.*{message}"):
        find_export_format("dots")


def test_a_package_may_not_replace_a_built_in_format(site):
    install(site, "Dots", name="llmc")
    with pytest.raises(UsageError, match="provides the export 'llmc'"):
        find_export_format("llmc")
    assert find_export_format("numpy").name == "numpy"
