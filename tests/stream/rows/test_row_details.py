"""From a step back to the documents."""

import pytest
from gristmill_testing.streams import write_packed

from gristmill.shards.dataset import open_dataset
from gristmill.stream import Stream


def test_a_step_s_documents(packed):
    stream = Stream(packed, seed=7, rows=100)
    dataset = open_dataset(packed)
    rows = {tuple(dataset[index]["input_ids"].tolist()): index for index in range(len(dataset))}
    state = stream.state_dict(row=4)
    stream.load_state_dict(state)
    found = stream.where(2, batch_size=3, world_size=2)
    assert [row.row for row in found] == list(range(16, 22))
    assert [row.rank for row in found] == [0, 0, 0, 1, 1, 1]
    for row in found:
        batch = stream.rows(row.row, row.row + 1)
        index = rows[tuple(batch["input_ids"][0].tolist())]
        assert [document.origin for document in row.documents] == dataset.origins(index)
        assert [document.tokens for document in row.documents] == dataset[index]["lengths"].tolist()
        assert row.source == stream.sources[batch.sources[0]]
        assert row.epoch == row.row // 53


def test_the_last_step_has_only_rows_that_are(packed):
    assert len(Stream(packed, rows=10).where(2, batch_size=4)) == 2


def test_documents_of_several_datasets(tmp_path):
    folders = {name: (write_packed(tmp_path / name, {name: [3]}), weight) for name, weight in [("web", 1), ("code", 1)]}
    sources = [row.source for row in Stream(folders).where(0, batch_size=4)]
    assert sorted(sources) == ["code", "code", "web", "web"]
    with pytest.raises(IndexError):
        Stream(folders, rows=5).where(5, batch_size=1)
