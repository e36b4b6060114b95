"""Balanced batches: the same global batches, dealt to ranks by cost, in every kind of loader and after every resume."""

import json

import numpy as np
import pytest
from gristmill_testing.streams import ids_of, write_packed
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.shards.dataset import open_dataset
from gristmill.stream import Stream
from gristmill.stream.examining.imbalance import measure_imbalance
from gristmill.stream.examining.prove import prove
from gristmill.stream.examining.read_plan import plan_reads
from gristmill.stream.lanes.balance import deal_rows
from gristmill.stream.torch import TorchDataset, TorchLoader

PHASES = [(0, {"web": 0.5, "code": 0.5}), (24, {"web": 0.9, "code": 0.1})]


@given(
    st.integers(1, 9).flatmap(
        lambda world_size: st.integers(1, 8).flatmap(
            lambda size: st.tuples(
                st.just(world_size),
                st.lists(st.integers(0, 1 << 40), min_size=world_size * size, max_size=world_size * size),
            )
        )
    )
)
def test_every_row_is_dealt_once_and_the_most_expensive_rank_is_not_far(drawn):
    world_size, costs = drawn
    dealt = deal_rows(np.array(costs), world_size)
    assert sorted(dealt.ravel().tolist()) == list(range(len(costs)))
    totals = [sum(costs[row] for row in rank) for rank in dealt.tolist()]
    # In a round the rank with the least gets the most. So two ranks never differ by more than one row may cost.
    assert max(totals) - min(totals) <= max(costs)


@pytest.mark.parametrize("mixture", [None, PHASES], ids=["one lane", "phases"])
@pytest.mark.parametrize(("batch_size", "world_size"), [(4, 3), (5, 2), (2, 7), (30, 2)])
def test_global_batches_are_the_same(packed, mixture, batch_size, world_size):
    """Also the last one of an epoch, which some ranks fill up with empty rows."""
    plain = Stream(packed, seed=7, mixture=mixture, rows=53)
    balanced = Stream(packed, seed=7, mixture=mixture, rows=53, balance=True)
    for step in range(plain.num_steps(batch_size, world_size)):
        ranks = [balanced.batch(step, batch_size, rank, world_size) for rank in range(world_size)]
        batches = [plain.batch(step, batch_size, rank, world_size) for rank in range(world_size)]
        assert sorted(ids_of(ranks)) == sorted(ids_of(batches))
        assert {(batch.first_row, batch.next_row) for batch in ranks} == {(batches[0].first_row, batches[0].next_row)}
        assert {batch["input_ids"].shape for batch in ranks} == {(batch_size, 12)}


def cost_of(batch, costs):
    return sum(costs[tuple(row)] for row in ids_of([batch]))


def test_costs_are_those_of_the_documents(packed):
    """The deal against costs that are worked out from the records."""
    dataset = open_dataset(packed)
    costs = {
        tuple(dataset[row]["input_ids"].tolist()): int(np.square(dataset[row]["lengths"]).sum())
        for row in range(len(dataset))
    }
    spreads = []
    for balance in (False, True):
        stream = Stream(packed, seed=7, balance=balance)
        ranks = [[cost_of(stream.batch(step, 6, rank, 4), costs) for rank in range(4)] for step in range(8)]
        spreads.append(sum(map(max, ranks)) / (sum(map(sum, ranks)) / 4))
    assert measure_imbalance(Stream(packed, seed=7), 6, 4, 8) == pytest.approx(tuple(spreads))
    assert spreads[1] < 1.03 < 1.08 < spreads[0]


def test_elastic_resume_is_exact(packed):
    """Against a slow reader that deals by itself, with processes of loader workers, too."""
    from gristmill.stream.torch.prove import run_loader_workers

    stream = Stream(packed, seed=7, epochs=9, balance=True)
    assert prove(stream, [3, 2, 5], [0], [2, 4], steps=3)
    assert prove(stream, [2], [2], [3], steps=3, read_ranks=run_loader_workers)


def test_a_proof_notices_another_deal(packed, monkeypatch):
    stream = Stream(packed, seed=7, epochs=9, balance=True)
    monkeypatch.setattr(
        "gristmill.stream.lanes.balance.deal_rows", lambda costs, world: np.arange(len(costs)).reshape(world, -1)
    )
    proof = prove(stream, [3], [0], [4])
    assert not proof


def test_it_can_be_switched_on_in_mid_training(packed, oracle):
    plain = Stream(packed, seed=7, epochs=1)
    first = [batch for rank in range(2) for batch in [plain.batch(0, 4, rank, 2)]]
    state = json.loads(json.dumps(plain.state_dict(row=8)))
    rest = []
    for rank in range(3):
        stream = Stream(packed, seed=7, epochs=1, balance=True)
        loader = TorchLoader(stream, 5, rank=rank, world_size=3)
        loader.load_state_dict(state)
        rest += list(loader)
    assert sorted(ids_of([*first, *rest])) == sorted(oracle[:53])


def test_where_names_the_rank(packed):
    stream = Stream(packed, seed=7, epochs=1, balance=True)
    for rank in range(3):
        rows = stream.where(1, 4, world_size=3, rank=rank)
        assert {origin.rank for origin in rows} == {rank}
        assert stream.rows(rows[0].row, rows[0].row + 1)["input_ids"].tolist()[0] in ids_of(
            [stream.batch(1, 4, rank, 3)]
        )
    everyone = stream.where(1, 4, world_size=3)
    assert sorted(origin.row for origin in everyone) == list(range(12, 24))


def test_rows_of_several_datasets_have_their_own_costs(tmp_path):
    folders = {
        name: write_packed(tmp_path / name, {"a": [5, 8], "b": [6]}, seed=number) for number, name in enumerate("xy")
    }
    stream = Stream(folders, seed=3, balance=True, epochs=1)
    assert prove(stream, [3, 2], [0], [4], steps=2)
    weighted = Stream({name: (folder, 0.5) for name, folder in folders.items()}, seed=3, balance=True)
    assert prove(weighted, [3, 2], [0], [4], steps=2)


def test_reads_of_one_of_several_nodes_are_not_planned(packed):
    with pytest.raises(UsageError, match="with balance"):
        plan_reads(Stream(packed, balance=True), 2, 4, 3, nodes=2)


def test_workers_deal_as_well(packed, oracle):
    from torch.utils.data import DataLoader

    found = []
    for rank in range(2):
        dataset = TorchDataset(Stream(packed, seed=7, epochs=1, balance=True), 4, rank=rank, world_size=2)
        found += list(DataLoader(dataset, batch_size=None, num_workers=0))
    assert sorted(ids_of(found)) == sorted(oracle[:53])


def test_samples_have_no_costs(tmp_path):
    import gristmill as gm
    from gristmill import steps

    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(tmp_path / "a.jsonl"))}, steps=[], output=str(tmp_path / "out")
    )
    gm.run(recipe, backend="serial", progress=False)
    with pytest.raises(UsageError, match="rows of tokens"):
        Stream(tmp_path / "out", balance=True)
