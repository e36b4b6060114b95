"""Weights from the manifest, beside folders, by tokens, in phases; ends and limits."""

import json

import numpy as np
import pytest
from gristmill_testing.streams import all_rows, ids_of, slow_order, stored_rows, with_manifest, write_packed
from gristmill_testing.token_datasets import write_tokens
from msgspec.structs import replace

from gristmill.core.errors import UsageError
from gristmill.shards.dataset import open_dataset
from gristmill.shards.manifest_file import load_manifest
from gristmill.stream import Stream


def counts(stream, num_rows):
    return np.bincount(stream.rows(0, num_rows).sources, minlength=len(stream.sources)).tolist()


def test_the_manifest_s_mixture_is_the_default(tmp_path):
    folder = write_packed(tmp_path / "out", {"web": [20], "code": [20]}, mixture={"web": 0.9, "code": 0.1})
    assert counts(Stream(folder), 100) == [90, 10]
    assert counts(Stream(folder, mixture={"web": 0.5, "code": 0.5}), 100) == [50, 50]
    assert Stream(folder, sources=["code"]).sources == ["code"]


def test_several_datasets_with_weights(tmp_path):
    web = write_packed(tmp_path / "web", {"web": [20]})
    rest = write_packed(tmp_path / "rest", {"a": [10], "b": [30]}, seed=1)
    stream = Stream({"web": (web, 0.6), "rest": (rest, 0.4)}, seed=3)
    assert stream.sources == ["web", "rest/a", "rest/b"]
    lanes = {"web": stored_rows(web)["web"], "rest": all_rows(rest)}
    assert stream.rows(0, 90)["input_ids"].tolist() == slow_order(lanes, 90, mixture={"web": 0.6, "rest": 0.4}, seed=3)
    mixed = with_manifest(rest, mixture={"a": 3.0, "b": 1.0})
    stream = Stream({"web": (web, 0.6), "rest": (mixed, 0.4)})
    assert counts(stream, 100) == [60, 30, 10]
    state = json.loads(json.dumps(stream.state_dict(row=9)))
    again = Stream({"web": web, "rest": mixed}, mixture=state["phases"])
    again.load_state_dict(state)
    assert again.rows(0, 50)["input_ids"].tolist() == stream.rows(0, 50)["input_ids"].tolist()


def test_several_datasets_without_weights_are_one(tmp_path):
    folders = {name: write_packed(tmp_path / name, {name: [size]}) for name, size in [("web", 20), ("code", 1)]}
    stream = Stream(folders, epochs=1)
    everything = [row for folder in folders.values() for row in all_rows(folder)]
    assert sorted(ids_of(stream.batches(5))) == sorted(everything)
    with pytest.raises(UsageError, match="no weight for code"):
        Stream({"web": (folders["web"], 1), "code": folders["code"]})
    with pytest.raises(UsageError, match="set both with"):
        Stream({"web": (folders["web"], 1), "code": (folders["code"], 1)}, mixture={"web": 1, "code": 1})


def test_weights_in_tokens(tmp_path):
    rows = {("train", "long"): [[[1] * 30] * 10], ("train", "short"): [[[1] * 10] * 10]}
    folder = write_tokens(tmp_path / "out", rows)
    weights = {"long": 0.5, "short": 0.5}
    batch = Stream(folder, mixture=weights, weights_in="tokens").rows(0, 400)
    shares = [int(batch.tokens[batch.sources == source].sum()) for source in (0, 1)]
    assert shares == [3000, 3000]
    # 100 rows of 30 and 300 of 10 hold 6000 tokens.
    assert len(Stream(folder, mixture=weights, weights_in="tokens", tokens=6000)) == 400
    assert len(Stream(folder, tokens=6000)) == 300


def test_tokens_as_an_end_count_whole_rows_where_the_manifest_does_not_know(tmp_path):
    folder = write_packed(tmp_path / "out", {"web": [20]})
    shards = [replace(shard, tokens=None) for _, _, shard in load_manifest(folder).shards()]
    with_manifest(folder, splits={"train": {"web": shards}})
    assert len(Stream(folder, tokens=120)) == 10
    assert len(Stream(folder, tokens=121)) == 11


def test_max_epochs_says_what_is_missing(packed):
    weights = {"web": 0.5, "code": 0.5}
    assert len(Stream(packed, mixture=weights, rows=92, max_epochs=2)) == 92
    with pytest.raises(UsageError, match=r"code is read 2\.17 times in 100 rows.* 4 rows short"):
        Stream(packed, mixture=weights, rows=100, max_epochs=2)
    assert len(Stream(packed, mixture=weights, rows=100, max_epochs={"web": 2})) == 100
    with pytest.raises(UsageError, match="all is read"):
        Stream(packed, rows=54, max_epochs=1)
    with pytest.raises(UsageError, match="needs an end"):
        Stream(packed, max_epochs=1)
    with pytest.raises(UsageError, match="max_epochs"):
        Stream(packed, mixture=weights, rows=10, max_epochs={"wob": 2})


def test_phases(packed):
    phases = [(0, {"web": 1, "code": 0}), (10, {"web": 0, "code": 1}), (20, {"web": 1, "code": 1})]
    sources = Stream(packed, mixture=phases).rows(0, 40).sources
    assert sources[:20].tolist() == [0] * 10 + [1] * 10
    assert np.bincount(sources[20:]).tolist() == [10, 10]


@pytest.fixture
def mixed(tmp_path):
    """Three quarters of web, a quarter of code, interleaved when they were written."""
    from gristmill.pipeline.jobs.mix_datasets import mix

    given = {
        "web": (write_packed(tmp_path / "web", {"a": [30, 40]}), 3),
        "code": (write_packed(tmp_path / "code", {"a": [30]}, seed=1), 1),
    }
    mix(given, tmp_path / "mixed", size=80, by="rows")
    return tmp_path / "mixed"


def test_shares_of_a_mixed_lane_are_reported_by_origin(mixed):
    stream = Stream(mixed, epochs=2, seed=3)
    dataset = open_dataset(mixed)
    by_row = {tuple(dataset[n]["input_ids"]): dataset.origins(n)[0].source for n in range(len(dataset))}
    for batch in stream.batches(7):
        for ids, source in zip(batch["input_ids"], batch.sources, strict=True):
            assert source == -1 or by_row[tuple(ids)] == stream.sources[source]
    report = stream.accounting.report()
    found = {of_source.source: of_source for of_source in report.sources}
    assert {name: entry.rows for name, entry in found.items()} == {"web": 120, "code": 40}
    assert found["web"].share == found["web"].planned_share == 0.75
    assert found["code"].epochs == 2
    assert {row.source for row in stream.where(0, 40)} == {"web", "code"}


def test_a_mixed_lane_has_no_other_weights(mixed):
    for options in ({"mixture": {"web": 0.5, "code": 0.5}}, {"mixture": [(0, {"web": 1.0})]}, {"sources": ["web"]}):
        with pytest.raises(UsageError, match=r"were mixed when it was written \(web 75.0%, code 25.0%\)"):
            Stream(mixed, **options)
    assert len(Stream(mixed, epochs=1, sources=["mixed"])) == 80


def test_a_mixed_lane_among_other_datasets(mixed, tmp_path):
    other = write_packed(tmp_path / "other", {"x": [50]}, seed=2)
    stream = Stream({"m": (mixed, 0.8), "o": (other, 0.2)}, rows=1000)
    for _ in stream.batches(50):
        pass
    shares = {entry.source: (entry.share, entry.planned_share) for entry in stream.accounting.report().sources}
    assert shares["o"] == pytest.approx((0.2, 0.2), abs=0.01)
    assert shares["m/web"] == pytest.approx((0.6, 0.6), abs=0.01)
    assert shares["m/code"] == pytest.approx((0.2, 0.2), abs=0.01)
