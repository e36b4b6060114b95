import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.records import SourceFile
from gristmill.pipeline.units import UNIT_BYTES, make_units


def _files(sizes):
    return [SourceFile(f"/{n:07}", f"{n:07}", size, "1", n) for n, size in enumerate(sizes)]


def _groups(files):
    units = make_units(files, lambda file: None, lambda file: None)
    return [[span.file for span in unit.spans] for unit in units]


@given(st.lists(st.integers(0, 2 * UNIT_BYTES), max_size=60))
def test_every_file_is_in_one_group_in_order(sizes):
    files = _files(sizes)
    groups = _groups(files)
    assert [file for group in groups for file in group] == files
    for group in groups:
        assert sum(file.num_bytes for file in group[:-1]) < UNIT_BYTES


@given(st.lists(st.integers(0, UNIT_BYTES // 4), min_size=2, max_size=60), st.data())
def test_a_missing_file_changes_its_own_group_and_none_before_it(sizes, data):
    files = _files(sizes)
    gone = data.draw(st.sampled_from(files))
    before = [group for group in _groups(files) if group[-1].relative < gone.relative]
    assert _groups([file for file in files if file is not gone])[: len(before)] == before


@pytest.mark.timeout(20)
def test_many_tiny_files_are_grouped_in_linear_time():
    [group] = _groups(_files([27] * 100_000))
    assert len(group) == 100_000
