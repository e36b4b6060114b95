"""The order is one pure function: not of world size, batch size, workers, or what was read before."""

import json
import pickle
from collections import Counter

import numpy as np
import pytest
from gristmill_testing.streams import all_rows, ids_of, stored_rows, write_packed

from gristmill.core.errors import UsageError
from gristmill.stream import Collate, Stream

MIXTURE = {"code": 0.3, "web": 0.7}
WEIGHTS = [None, MIXTURE]


def expected(mixture, oracle, mixed_oracle):
    return oracle if mixture is None else mixed_oracle


def global_batches(stream, batch_size, world_size):
    """What all ranks get, step by step."""
    ranks = [pickle.loads(pickle.dumps(stream)).batches(batch_size, rank, world_size) for rank in range(world_size)]
    return [batch for step in zip(*ranks, strict=True) for batch in step]


def test_a_split_names_the_dataset_that_it_belongs_to(packed):
    with pytest.raises(UsageError, match="only a part of the dataset in"):
        Stream(packed / "train")


@pytest.mark.parametrize("mixture", WEIGHTS, ids=["pool", "mixture"])
def test_rows_are_those_of_the_slow_oracle(packed, mixture, oracle, mixed_oracle):
    stream = Stream(packed, mixture=mixture, seed=7)
    assert stream.rows(0, 160)["input_ids"].tolist() == expected(mixture, oracle, mixed_oracle)
    for start in (159, 80, 3):
        assert (
            stream.rows(start, start + 1)["input_ids"].tolist()
            == expected(mixture, oracle, mixed_oracle)[start : start + 1]
        )


@pytest.mark.parametrize("mixture", WEIGHTS, ids=["pool", "mixture"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("batch_size", [1, 2, 6])
def test_any_world_and_batch_size_gives_the_same_order(packed, mixture, world_size, batch_size, oracle, mixed_oracle):
    stream = Stream(packed, mixture=mixture, seed=7, rows=101)
    batches = global_batches(stream, batch_size, world_size)
    assert ids_of(batches) == expected(mixture, oracle, mixed_oracle)[:101]
    assert {len(batch["input_ids"]) for batch in batches} == {batch_size}


@pytest.mark.parametrize("mixture", WEIGHTS, ids=["pool", "mixture"])
def test_every_state_gives_the_full_tail(packed, mixture, oracle, mixed_oracle):
    stream = Stream(packed, mixture=mixture, seed=7, epochs=1)
    fields = set(stream.state_dict())
    states = [stream.state_dict(), *(stream.state_dict() for _ in stream.batches(4))]
    assert [state["row"] for state in states] == [*range(0, 53, 4), 53]
    for state in states:
        saved = json.dumps(state)
        assert len(saved) < 1024
        assert set(state) == fields
        resumed = Stream(packed, mixture=mixture, seed=7, epochs=1)
        resumed.load_state_dict(json.loads(saved))
        assert resumed.state_dict() == state
        assert ids_of(resumed.batches(4)) == expected(mixture, oracle, mixed_oracle)[state["row"] : 53]


def test_an_elastic_chain_reads_everything_once_in_order(packed):
    whole = Stream(packed, seed=3, epochs=2)
    state, read = whole.state_dict(), []
    for world_size, batch_size, num_steps in [(8, 2, 2), (3, 1, 5), (5, 3, 2), (1, 6, 100)]:
        ranks = []
        for rank in range(world_size):
            stream = Stream(packed, seed=3, epochs=2)
            stream.load_state_dict(state)
            ranks.append((stream, stream.batches(batch_size, rank, world_size)))
        for _ in range(num_steps):
            step = [next(batches, None) for _, batches in ranks]
            if step[0] is None:
                break
            read += ids_of(step)
        states = [stream.state_dict() for stream, _ in ranks]
        assert all(other == states[0] for other in states)
        state = states[0]
    assert read == whole.rows(0, 106)["input_ids"].tolist()
    everything = Counter(map(tuple, all_rows(packed)))
    assert Counter(map(tuple, read)) == everything + everything


def test_every_epoch_is_each_row_once_and_another_order(packed):
    everything = sorted(all_rows(packed))
    stream = Stream(packed)
    epochs = [stream.rows(start, start + 53)["input_ids"].tolist() for start in (0, 53, 106)]
    assert all(sorted(epoch) == everything for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert Stream(packed, seed=1).rows(0, 53)["input_ids"].tolist() != epochs[0]


def test_a_source_keeps_its_order_when_others_come_or_go(packed):
    both = Stream(packed, mixture=MIXTURE, seed=7).rows(0, 100)
    alone = Stream(packed, mixture={"web": 1, "code": 0}, seed=7).rows(0, 80)["input_ids"].tolist()
    web = both["input_ids"][both.sources == 0].tolist()
    assert web == alone[: len(web)]


def test_without_shuffling_sources_keep_their_order(packed):
    stored = stored_rows(packed)
    assert Stream(packed, shuffle=False).rows(0, 53)["input_ids"].tolist() == stored["web"] + stored["code"]
    batch = Stream(packed, shuffle=False, mixture=MIXTURE).rows(0, 40)
    assert batch["input_ids"][batch.sources == 1].tolist() == stored["code"][: int((batch.sources == 1).sum())]


def test_the_last_batch_is_filled_up_or_dropped(packed):
    filled = list(Stream(packed, rows=10).batches(4))
    assert [batch.row_mask.tolist() for batch in filled][-1] == [True, True, False, False]
    assert (filled[-1]["labels"][2:] == -100).all()
    assert filled[-1].next_row == 10
    dropping = Stream(packed, rows=10, drop_last=True)
    assert len(list(dropping.batches(4))) == 2
    assert dropping.state_dict()["row"] == 8
    # What was dropped is not lost: a smaller batch goes on with it.
    assert ids_of(dropping.batches(2)) == ids_of(filled)[8:]


def test_more_ranks_than_rows(packed):
    batches = global_batches(Stream(packed, rows=3), 2, 8)
    assert len(batches) == 8
    assert ids_of(batches) == Stream(packed).rows(0, 3)["input_ids"].tolist()
    assert sum(int(batch.row_mask.sum()) for batch in batches) == 3


def test_sources_of_no_and_of_one_row(tmp_path):
    folder = write_packed(tmp_path / "out", {"none": [0], "one": [1], "web": [30]})
    stored = stored_rows(folder)
    epoch = Stream(folder, epochs=1)
    assert sorted(ids_of(epoch.batches(4))) == sorted(stored["one"] + stored["web"])
    weighted = Stream(folder, mixture={"none": 0, "one": 1, "web": 9}).rows(0, 50)
    assert weighted["input_ids"][weighted.sources == 0].tolist() == stored["one"] * 5
    with pytest.raises(UsageError, match="none has a weight but no rows"):
        Stream(folder, mixture={"none": 1, "one": 1, "web": 9})
    with pytest.raises(UsageError, match="no rows to stream"):
        Stream(folder, sources=["none"])


def test_an_endless_stream_has_no_length(packed):
    with pytest.raises(UsageError, match="endless"):
        len(Stream(packed))
    assert len(Stream(packed, epochs=1.5)) == 80
    assert len(Stream(packed, rows=7)) == 7


def test_a_state_of_something_else_is_refused(packed, tmp_path):
    state = Stream(packed, mixture=MIXTURE, seed=7).state_dict(row=20)
    other = write_packed(tmp_path / "other", {"web": [7, 12, 0, 11], "code": [23]}, seed=1)
    for stream, field in [
        (Stream(other, mixture=MIXTURE, seed=7), "dataset_hash"),
        (Stream(packed, mixture=MIXTURE, seed=8), "seed"),
        (Stream(packed, mixture={"web": 0.6, "code": 0.4}, seed=7), "mixture_hash"),
        (Stream(packed, mixture=MIXTURE, seed=7, shuffle=False), "mixture_hash"),
    ]:
        with pytest.raises(UsageError, match=field):
            stream.load_state_dict(state)
        stream.load_state_dict(state, ignore=[field])
        assert stream.first_row == 20
    same = Stream(packed, mixture=MIXTURE, seed=7)
    with pytest.raises(UsageError, match="order_version"):
        same.load_state_dict({**state, "order_version": 0})
    with pytest.raises(UsageError, match="not the state of a stream"):
        same.load_state_dict({"row": 5})
    with pytest.raises(UsageError, match="ignore can name"):
        same.load_state_dict(state, ignore=["row"])
    with pytest.raises(UsageError, match="ends at 10"):
        Stream(packed, mixture=MIXTURE, seed=7, rows=10).load_state_dict(state)


def test_weights_change_from_a_state_on_by_appending(packed):
    before = Stream(packed, mixture=MIXTURE, seed=7)
    state = json.loads(json.dumps(before.state_dict(row=20)))
    after = Stream(packed, mixture=[*state["phases"], (20, {"web": 0.1, "code": 0.9})], seed=7)
    after.load_state_dict(state)
    assert after.rows(0, 20)["input_ids"].tolist() == before.rows(0, 20)["input_ids"].tolist()
    assert (after.rows(20, 40).sources == 1).sum() >= 17
    with pytest.raises(UsageError, match="append"):
        Stream(packed, mixture=[(0, MIXTURE), (10, {"web": 1, "code": 1})], seed=7).load_state_dict(state)


def test_what_is_pickled_is_paths_and_a_few_numbers(tmp_path):
    folder = write_packed(tmp_path / "out", {"web": [1] * 300})
    stream = Stream(folder, seed=5, epochs=1)
    stream.rows(0, 300)
    data = pickle.dumps(stream)
    assert len(data) < 2000
    assert np.array_equal(pickle.loads(data).rows(5, 9)["input_ids"], stream.rows(5, 9)["input_ids"])


def test_another_dataset_in_its_place_is_noticed_in_the_other_process(tmp_path):
    folder = write_packed(tmp_path / "out", {"web": [3]})
    data = pickle.dumps(Stream(folder))
    write_packed(folder, {"web": [4]}, seed=9)
    with pytest.raises(UsageError, match="was changed"):
        pickle.loads(data)


def test_steps_outside_and_wrong_numbers_are_refused(packed):
    stream = Stream(packed, rows=10)
    for step in (-1, 3):
        with pytest.raises(IndexError, match="of 3"):
            stream.batch(step, 4)
    for arguments in [(0, 0), (0, 4, 2, 2), (0, 4, -1, 2)]:
        with pytest.raises(UsageError):
            stream.batch(*arguments)
    with pytest.raises(UsageError):
        stream.rows(5, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "tain"}, "split"),
        ({"sources": ["wob"]}, 'did you mean "web"'),
        ({"sources": "web"}, "list"),
        ({"mixture": {"web": 1}}, "no weight for code"),
        ({"mixture": {"web": 1, "cod": 1}}, "did you mean"),
        ({"epochs": 1, "rows": 5}, "one end"),
        ({"rows": 0}, "at least 1"),
        ({"weights_in": "bytes"}, "weights_in"),
    ],
)
def test_wrong_arguments_are_refused(packed, options, message):
    with pytest.raises(UsageError, match=message):
        Stream(packed, **options)


def test_what_is_no_dataset_of_tokens_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no folder"):
        Stream(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no folder"):
        Stream("unknown-store://bucket/out")


def test_threads_may_read_together(packed):
    from concurrent.futures import ThreadPoolExecutor

    stream = Stream(packed, collate=Collate(fields=("input_ids",)))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda row: stream.rows(row, row + 3)["input_ids"].tolist(), range(150)))
    rows = stream.rows(0, 153)["input_ids"].tolist()
    assert found == [rows[row : row + 3] for row in range(150)]
