"""Balanced batches: the same global batches, dealt to ranks by cost, in every kind of loader and after every resume."""

import json

import numpy as np
import pytest
from gristmill_testing.streams import ids_of, write_packed
from gristmill_testing.token_datasets import write_tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from gristmill.core.errors import OutOfRangeError, UsageError
from gristmill.shards.dataset import open_dataset
from gristmill.stream import Collate, Stream
from gristmill.stream.examine import measure_imbalance, prove
from gristmill.stream.lanes.balance import deal_rows
from gristmill.stream.read_plan import plan_reads
from gristmill.stream.torch import TorchDataset, TorchLoader, TorchRows

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
    from gristmill.stream.torch.loader import run_loader_workers

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


NUM_RAGGED = 211


@pytest.fixture(scope="session")
def ragged(tmp_path_factory):
    """Rows of very different lengths, as of chats; the first id of each row is its number."""
    rng, folder = np.random.default_rng(5), tmp_path_factory.mktemp("ragged") / "out"
    lengths = np.minimum(rng.lognormal(3, 1.2, NUM_RAGGED).astype(int) + 1, 400)
    rows = [[number, *rng.integers(1000, 2000, length - 1).tolist()] for number, length in enumerate(lengths)]
    write_tokens(folder, {("train", "a"): [rows[:90], rows[90:150]], ("train", "b"): [rows[150:]]})
    return folder


def rows_of(batch):
    """The numbers of the rows in a batch, without those that only fill it up."""
    return batch["input_ids"][:, 0][batch.row_mask].tolist()


BUDGETS = st.fixed_dictionaries({"tokens": st.integers(1, 3000), "window": st.integers(1, 250)})


@settings(deadline=None, max_examples=30)
@given(BUDGETS, st.lists(st.tuples(st.integers(1, 7), st.integers(0, 30)), max_size=4), st.booleans(), st.booleans())
def test_batches_by_tokens_hold_every_row_once_for_any_ranks_and_resumes(ragged, budget, runs, shuffle, weighted):
    """Ranks are disjoint and complete, and a resume with other ranks continues the same batches."""
    weights = {"mixture": {"a": 0.5, "b": 0.5}, "rows_per_epoch": 100, "rows": 250} if weighted else {"epochs": 2}
    options = {"seed": 3, "shuffle": shuffle, **weights}
    whole, plain = Stream(ragged, batch_tokens=budget, **options), Stream(ragged, **options)
    batches = [rows_of(batch) for batch in whole.batches()]
    read = [row for batch in batches for row in batch]
    row = 0
    while row < len(whole):  # each epoch has the rows that it has without a budget
        end = whole.passes.end_of(row)
        assert sorted(read[row:end]) == sorted(rows_of(plain.rows(row, end)))
        row = end
    assert row == len(read)

    resumed, state = [], Stream(ragged, batch_tokens=budget, **options).state_dict()
    for world_size, most_steps in [*runs, (3, 10_000)]:
        stream = Stream(ragged, batch_tokens=budget, **options)
        stream.load_state_dict(json.loads(json.dumps(state)))
        row, num_steps = stream.next_row, 0
        while num_steps < most_steps and stream.has_batch(row, world_size):
            ranks = [stream.batch_at(row, 1, rank, world_size) for rank in range(world_size)]
            resumed += [rows for batch in ranks if (rows := rows_of(batch))]
            [row] = {batch.next_row for batch in ranks}
            num_steps += 1
        assert num_steps == min(most_steps, stream.num_steps(world_size=world_size))
        state = stream.state_dict(row=row)
    assert resumed == batches


@settings(deadline=None, max_examples=20)
@given(BUDGETS, st.sampled_from([1, 8]), st.integers(1, 5))
def test_batches_by_tokens_fit_their_budget_and_steps_can_be_found(ragged, budget, multiple, world_size):
    stream = Stream(ragged, epochs=2, batch_tokens=budget, collate=Collate(pad_to_multiple=multiple), drop_last=True)
    steps = list(stream.batches(rank=0, world_size=world_size))
    for number, batch in enumerate(steps):
        assert batch["input_ids"].size <= budget["tokens"] or len(batch["input_ids"]) == 1
        if number in (0, 1, len(steps) // 2, len(steps) - 1):
            assert rows_of(stream.batch(number, world_size=world_size)) == rows_of(batch)
    assert len(steps) == stream.num_steps(world_size=world_size)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_every_loader_has_the_same_batches_by_tokens(ragged):
    def make():
        return Stream(ragged, seed=3, epochs=2, batch_tokens={"tokens": 600, "window": 64})

    expected = [rows_of(batch) for batch in make().batches(rank=1, world_size=2)]
    loader = TorchLoader(make(), rank=1, world_size=2, num_threads=2)
    assert len(loader) == loader.steps_left
    assert [rows_of(batch) for _ in range(2) for batch in loader] == expected
    for num_workers in (0, 2, 3):
        dataset = TorchDataset(make(), rank=1, world_size=2)
        workers = {"num_workers": num_workers, "multiprocessing_context": "fork" if num_workers else None}
        batches = DataLoader(dataset, batch_size=None, **workers)
        read = []
        for batch in batches:
            read.append(batch)
            if len(read) == 5:
                break
        dataset.load_state_dict(dataset.state_after(read[-1]))
        read += [batch for _ in range(2) for batch in batches]
        assert [rows_of(batch) for batch in read] == expected


def test_a_state_inside_a_window_needs_the_same_budget_and_one_between_windows_does_not(ragged):
    def make(tokens, **options):
        return Stream(ragged, seed=3, batch_tokens={"tokens": tokens, "window": 50}, **{"epochs": 1, **options})

    stream = make(600)
    states = [stream.state_dict() for _ in stream.batches()]
    assert all(state["window"] is None or 0 < state["row"] < state["window"][1] for state in states)
    inside = next(state for state in states if state["window"] is not None)
    for other in (make(700), make(600, rows=30, epochs=None), Stream(ragged, seed=3, epochs=1)):
        with pytest.raises(UsageError, match="other batch_tokens") as caught:
            other.load_state_dict(inside)
        assert 'ignore=["window"]' in caught.value.help
    later = [(0, {"a": 0.5, "b": 0.5}), (inside["row"], {"a": 0.9, "b": 0.1})]
    weighted = make(600, mixture={"a": 0.5, "b": 0.5}, epochs=None)
    next(weighted.batches())
    assert 0 < weighted.next_row < 50
    later[1] = (weighted.next_row, later[1][1])
    with pytest.raises(UsageError, match="other weights"):  # they would change which rows of the window are left
        make(600, mixture=later, epochs=None).load_state_dict(weighted.state_dict())
    border = make(600).state_dict(row=50)
    assert border["window"] is None
    other = make(900)
    other.load_state_dict(border)
    assert sum(len(rows_of(batch)) for batch in other.batches()) == NUM_RAGGED - 50
    Stream(ragged, seed=3, epochs=1).load_state_dict(border)


def test_what_batches_by_tokens_do_not_go_with(ragged, packed):
    for options in ({"balance": True}, {}):
        data = ragged if options else packed
        with pytest.raises(UsageError, match="balance deals the rows" if options else "packed: each has 12"):
            Stream(data, batch_tokens=100, **options)
    stream = Stream(ragged, epochs=1, batch_tokens=100)
    for use in (
        lambda: stream.batches(4),
        lambda: TorchLoader(stream, 4),
        lambda: TorchRows(stream),
        lambda: plan_reads(stream, 4, 2, 3),
        lambda: prove(stream, [2], [0], [4], steps=2),
    ):
        with pytest.raises(UsageError, match="batch_tokens"):
            use()
    with pytest.raises(UsageError, match="batch_size is not set"):
        TorchLoader(Stream(ragged))
    with pytest.raises(UsageError, match="batch_tokens must be"):
        Stream(ragged, batch_tokens={"token": 3})


def test_epochs_with_fewer_batches_by_tokens_than_ranks_are_refused_with_drop_last(ragged):
    """A budget that holds the whole epoch makes one batch of it, so no step has one for each of two ranks."""
    for end in ({"rows_per_epoch": NUM_RAGGED}, {"epochs": 1}, {"epochs": 2}):
        stream = Stream(ragged, batch_tokens=1_000_000, drop_last=True, **end)
        for loader in (TorchLoader(stream, rank=0, world_size=2), TorchDataset(stream, rank=0, world_size=2)):
            with pytest.raises(UsageError, match="fewer batches of batch_tokens than there are ranks"):
                next(iter(loader))
        with pytest.raises(OutOfRangeError, match="there is no step 0"):
            stream.batch(0, world_size=2)
        assert len(list(zip(range(3), stream.batches(), strict=False))) == min(3, end.get("epochs", 3))


@pytest.mark.parametrize("options", [{}, {"rows": 900}, {"mixture": {"a": 0.1, "b": 0.9}, "rows": 900}])
def test_a_batch_by_tokens_holds_no_row_twice_where_a_window_does(ragged, options):
    """Copies of a row are equally long, so a sort by length alone would put them next to each other."""
    stream, plain = Stream(ragged, batch_tokens=2000, **options), Stream(ragged, **options)
    batches = [rows_of(stream.batch(step)) for step in range(stream.num_steps() if options else 60)]
    assert all(len(set(rows)) == len(rows) for rows in batches)
    if options:
        assert sorted(row for rows in batches for row in rows) == sorted(rows_of(plain.rows(0, 900)))
