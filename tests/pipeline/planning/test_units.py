import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.records import SourceFile
from gristmill.pipeline.planning.units import (
    Span,
    Unit,
    UnitLayout,
    choose_cut,
    cluster_small_files,
    cut_into_slices,
    make_units,
)
from gristmill.readers.cells import CELL_BYTES

UNIT_BYTES = UnitLayout().unit_bytes


def _files(sizes):
    return [SourceFile(f"/{n:07}", f"{n:07}", size, "1", n) for n, size in enumerate(sizes)]


def _groups(files):
    units = make_units(files, lambda file: None, lambda file: None, UnitLayout())
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


@pytest.mark.timeout(300)
def test_many_tiny_files_are_grouped_in_linear_time_into_few_groups():
    files = _files([27] * 100_000)
    groups = _groups(files)
    assert [file for group in groups for file in group] == files
    assert 6 <= len(groups) <= 25


def _spans(sizes):
    return [Span(file, num_bytes=file.num_bytes) for file in _files(sizes)]


SIZES = st.lists(st.one_of(st.integers(0, 100), st.integers(0, 3 * CELL_BYTES)), max_size=60)


@given(SIZES)
def test_clusters_are_small_files_that_fit_into_a_cell_and_as_many_as_do(sizes):
    spans = _spans(sizes)
    found = list(cluster_small_files(spans, CELL_BYTES))
    assert [span for cluster in found for span in cluster] == spans
    for cluster, following in itertools.pairwise([*found, ()]):
        size = sum(span.num_bytes for span in cluster)
        assert len(cluster) == 1 or (size <= CELL_BYTES and all(span.is_small(CELL_BYTES) for span in cluster))
        if following and cluster[-1].is_small(CELL_BYTES) and following[0].is_small(CELL_BYTES):
            assert size + following[0].num_bytes > CELL_BYTES


@given(SIZES, st.integers(1, 4 * CELL_BYTES))
def test_tasks_are_cut_between_clusters(sizes, slice_bytes):
    spans = _spans(sizes)
    cut = choose_cut(slice_bytes, 3, 0, UnitLayout())
    parts = cut_into_slices(Unit(tuple(spans)), cut, lambda file: None, CELL_BYTES)
    assert [span for part in parts for span in part] == spans
    assert [cluster for part in parts for cluster in cluster_small_files(part, CELL_BYTES)] == list(
        cluster_small_files(spans, CELL_BYTES)
    )


def test_a_part_of_a_file_is_no_small_file():
    [file] = _files([100])
    spans = [Span(file, 0, 1, 100), Span(file, 1, None, 100), Span(file, num_bytes=100)]
    assert [len(cluster) for cluster in cluster_small_files([*spans, *spans], CELL_BYTES)] == [1] * 6


@given(st.lists(st.integers(0, 5 * UNIT_BYTES), max_size=40), st.integers(1, 4))
def test_units_of_a_multiple_hold_the_same_in_the_same_order(sizes, scale):
    def cells(file):
        return [CELL_BYTES] * -(-file.num_bytes // CELL_BYTES) if file.id % 2 else None

    def pieces(file):
        whole = range(-(-file.num_bytes // UNIT_BYTES))
        return [Span(file, 16 * n, 16 * n + 16, UNIT_BYTES) for n in whole] if file.id % 3 == 0 else None

    def content(units):
        return [
            (span.file.id, cell) for unit in units for span in unit.spans for cell in range(span.first, span.stop or 1)
        ]

    usual = list(make_units(_files(sizes), cells, pieces, UnitLayout()))
    larger = list(make_units(_files(sizes), cells, pieces, UnitLayout(), scale))
    assert [entry[0] for entry in content(usual)] == sorted(entry[0] for entry in content(usual))
    assert {file for file, _ in content(larger)} == {file for file, _ in content(usual)}
    for unit in larger:
        assert sum(span.num_bytes for span in unit.spans[:-1]) < scale * UNIT_BYTES
