"""What the viewer shows, without a browser: filters that narrow each other, searches, jumps, differences, pictures."""

import numpy as np
import pytest

from gristmill.core.errors import UsageError
from gristmill.pipeline.inspecting.viewing import open_collections
from gristmill.report.view.page_requests import Requests
from gristmill.shards.dataset import open_dataset
from gristmill.stream import Stream

WORDS = "gopher_quality.words"


def read_numbers(requests, **words):
    answer = requests.read_rows({name: value if isinstance(value, list) else [value] for name, value in words.items()})
    return [row["number"] for row in answer["rows"]], answer


def test_a_step_shows_the_rows_of_the_stream(mixed_rows):
    requests = Requests(open_collections([mixed_rows]))
    stream, dataset = Stream(mixed_rows), open_dataset(mixed_rows)
    for step in (0, 3):
        numbers, answer = read_numbers(requests, step=str(step), batch="3", world="2", count="100")
        ids = np.concatenate([stream.batch(step, 3, rank, 2)["input_ids"] for rank in range(2)])
        assert [dataset[number]["input_ids"].tolist() for number in numbers] == ids.tolist()
        assert [row["step"]["rank"] for row in answer["rows"]] == [0, 0, 0, 1, 1, 1]
    mixture = requests.describe_mixture({"steps": ["200"], "batch": ["4"]})
    shares = np.mean([point["shares"] for point in mixture["points"]], axis=0)
    assert dict(zip(mixture["sources"], shares.round(2).tolist(), strict=True)) == {"web": 0.75, "books": 0.25}
    assert [point["step"] for point in mixture["points"]][:2] == [0, 3]


def test_a_dataset_on_a_store(s3, mixed_rows, tmp_path, monkeypatch):
    """The same rows, filters, searches and steps as on a disk; only shards that are looked at are copied."""
    monkeypatch.setattr("gristmill.storage.user_cache._folder", tmp_path / "copies")
    for path in mixed_rows.rglob("*"):
        if path.is_file():
            s3.put(f"out/{path.relative_to(mixed_rows)}", path.read_bytes())
    remote, local = (Requests(open_collections([place])) for place in (f"{s3.url}/out", mixed_rows))
    assert remote.describe() == local.describe()
    for words in (
        {},
        {"split": ["validation"], "source": ["web"]},
        {"score": [f"{WORDS}:10:30"], "row": ["5"]},
        {"step": ["2"], "batch": ["3"]},
    ):
        assert remote.read_rows(words) == local.read_rows(words)
    words = {"query": ["books text"]}
    assert [hit for hit in remote.search(words) if "number" in hit] == [
        hit for hit in local.search(words) if "number" in hit
    ]
    with pytest.raises(UsageError, match="no dataset"):
        open_collections([f"{s3.url}/nothing"])
