"""Loops over a loader are epochs: each row once, in another order each time, and exact after a resume."""

import pytest
from gristmill_testing.streams import ids_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from gristmill.core.errors import UsageError
from gristmill.stream import Stream
from gristmill.stream.lanes.row_order import Passes
from gristmill.stream.torch import TorchDataset, TorchLoader, TorchRows
from gristmill.stream.trainers.grain import GrainSource

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def reader(kind, stream, batch_size=4, **options):
    """A loader of one kind, as something to loop over."""
    if kind == "loader":
        return TorchLoader(stream, batch_size, **options)
    num_workers = {"dataset": 0, "workers": 2, "persistent": 2}[kind]
    method = {"multiprocessing_context": "fork", "persistent_workers": kind == "persistent"} if num_workers else {}
    return DataLoader(TorchDataset(stream, batch_size, **options), batch_size=None, num_workers=num_workers, **method)


KINDS = ["loader", "dataset", "workers", "persistent"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_loop_is_an_epoch_and_one_too_many_is_refused(packed, oracle, kind):
    batches = reader(kind, Stream(packed, seed=7, epochs=3))
    for epoch in range(3):
        assert len(batches) == 14
        read = list(batches)
        assert ids_of(read) == oracle[53 * epoch : 53 * (epoch + 1)]
        assert [batch.next_row for batch in read][-1] == 53 * (epoch + 1)
    with pytest.raises(UsageError, match="3 epochs were read"):
        list(batches)


@pytest.mark.parametrize("kind", ["loader", "dataset"])
def test_a_loop_that_was_left_goes_on(packed, oracle, kind):
    batches = reader(kind, Stream(packed, seed=7, epochs=2))
    read = []
    for batch in batches:
        read.append(batch)
        if len(read) == 5:
            break
    read += list(batches)
    assert ids_of(read) == oracle[:53]
    assert ids_of(batches) == oracle[53:106]


@pytest.mark.parametrize("kind", ["workers", "persistent"])
def test_what_was_used_of_a_loop_of_workers_that_was_left_must_be_said(packed, oracle, kind):
    batches = reader(kind, Stream(packed, seed=7, epochs=3))
    dataset = batches.dataset
    iterator = iter(batches)
    read = [next(iterator) for _ in range(2)]
    state = dataset.state_after(read[-1])
    del iterator
    with pytest.raises(UsageError, match="left before its end"):
        next(iter(batches))
    dataset.load_state_dict(state)
    assert ids_of([*read, *batches]) == oracle[:53]
    assert ids_of(batches) == oracle[53:106]


def test_a_generator_that_is_seeded_anew_repeats_nothing(packed, oracle):
    import torch

    batches = reader("workers", Stream(packed, seed=7, epochs=2))
    for epoch in range(2):
        torch.manual_seed(1)
        assert ids_of(batches) == oracle[53 * epoch : 53 * (epoch + 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_set_epoch(packed, oracle, kind):
    stream = Stream(packed, seed=7, epochs=4)
    batches = reader(kind, stream)
    owner = batches if kind == "loader" else batches.dataset
    owner.set_epoch(2)
    assert stream.epoch == 2
    assert ids_of(batches) == oracle[106:159]
    owner.set_epoch(0)
    assert ids_of(batches) == oracle[:53]
    owner.set_epoch(1)  # where it stands already
    stream.load_state_dict(stream.state_dict(row=70))
    owner.set_epoch(1)
    assert ids_of(batches) == oracle[70:106]
    with pytest.raises(UsageError, match="4 epochs"):
        owner.set_epoch(4)


@pytest.mark.parametrize("kind", ["loader", "workers"])
def test_an_epoch_of_a_mixture_is_what_the_user_says(packed, mixed_oracle, kind):
    mixture = {"code": 0.3, "web": 0.7}
    batches = reader(kind, Stream(packed, seed=7, mixture=mixture, rows_per_epoch=30, epochs=2))
    for epoch in range(2):
        assert len(batches) == 8
        assert ids_of(batches) == mixed_oracle[30 * epoch : 30 * (epoch + 1)]
    one_pass = reader(kind, Stream(packed, seed=7, mixture=mixture, rows=60))
    assert ids_of(one_pass) == mixed_oracle[:60]
    with pytest.raises(UsageError, match="60 rows were read"):
        list(one_pass)


def test_an_endless_stream_says_that_it_goes_on(packed, oracle):
    for kind in ("loader", "dataset"):
        batches = reader(kind, Stream(packed, seed=7))
        next(iter(batches))
        with pytest.warns(UserWarning, match="endless: this loop continues at row 4"):
            iterator = iter(batches)
        assert ids_of([next(iterator)]) == oracle[4:8]
    endless = reader("loader", Stream(packed, seed=7, rows_per_epoch=20))
    assert len(endless) == 5
    assert [ids_of(endless), ids_of(endless)] == [oracle[:20], oracle[20:40]]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_data_loader_may_not_batch_batches(packed, batch_size, num_workers):
    options = {"multiprocessing_context": "fork"} if num_workers else {}
    loader = DataLoader(TorchDataset(Stream(packed), 4), batch_size=batch_size, num_workers=num_workers, **options)
    with pytest.raises(UsageError, match="batch_size=None"):
        next(iter(loader))


@pytest.mark.parametrize("kind", ["loader", "dataset", "workers"])
def test_incomplete_batches_are_left_out_of_every_epoch(packed, oracle, kind):
    batches = reader(kind, Stream(packed, seed=7, epochs=2, drop_last=True))
    for epoch in range(2):
        read = list(batches)
        assert len(read) == len(batches) == 13
        assert ids_of(read) == oracle[53 * epoch : 53 * epoch + 52]
        assert read[-1].next_row == 53 * (epoch + 1)
    with pytest.raises(UsageError, match="fewer than a batch"):
        next(iter(reader(kind, Stream(packed, epochs=2, drop_last=True), 60)))


def test_epochs_stay_where_they_are_when_batches_change(packed, oracle):
    state, read = None, []
    for world_size, batch_size, num_steps in [(2, 5, 3), (1, 7, 99), (3, 4, 2), (2, 3, 99), (1, 9, 99)]:
        steps = []
        for rank in range(world_size):
            loader = TorchLoader(Stream(packed, seed=7, epochs=3), batch_size, rank=rank, world_size=world_size)
            if state is not None:
                loader.load_state_dict(state)
            steps.append([batch for _, batch in zip(range(num_steps), loader, strict=False)])
        read += [ids_of(list(step)) for step in zip(*steps, strict=True)]
        state = Stream(packed, seed=7, epochs=3).state_dict(row=steps[0][-1].next_row)
    assert [row for rows in read for row in rows] == oracle[:159]
    assert state["row"] == 159


def test_steps_are_those_of_the_loader(packed):
    stream = Stream(packed, seed=7, epochs=2)
    loader = TorchLoader(Stream(packed, seed=7, epochs=2), 10)
    batches = [batch for _ in range(2) for batch in loader]
    assert stream.num_steps(10) == len(batches) == 12
    for step, batch in enumerate(batches):
        assert ids_of([stream.batch(step, 10)]) == ids_of([batch])
        assert [row.row for row in stream.where(step, 10)] == list(range(batch.first_row, batch.next_row))


@settings(max_examples=120, deadline=None)
@given(
    epoch_rows=st.integers(1, 40) | st.none(),
    num_rows=st.integers(1, 150),
    drop_last=st.booleans(),
    first=st.integers(0, 149),
    global_size=st.integers(1, 20),
)
def test_steps_and_rows_agree(epoch_rows, num_rows, drop_last, first, global_size):
    """Walking from batch to batch is what the closed forms say."""
    passes = Passes(epoch_rows, num_rows, drop_last)
    first = first % num_rows
    rows, row = [], first
    while row < num_rows:
        if passes.has_batch(row, global_size):
            rows.append(row)
            end = passes.batch_end(row, global_size)
            assert end <= passes.end_of(row)
            if epoch_rows is not None and not passes.has_batch(row + global_size, global_size):
                assert end == passes.end_of(row)
            assert end == passes.end_of(row) or end == row + global_size
            row = end
        else:
            assert drop_last
            row = passes.later_pass(row, 1)
    assert passes.steps_to_end(first, global_size) == len(rows)
    assert [passes.row_of_step(first, step, global_size) for step in range(len(rows))] == rows
    assert not passes.has_batch(passes.row_of_step(first, len(rows), global_size), global_size)


@pytest.mark.parametrize("kind", ["loader", "dataset"])
@pytest.mark.parametrize("end", [{"rows": 10}, {"tokens": 40}, {"epochs": 1.5}, {"rows": 10, "rows_per_epoch": 10}])
def test_an_end_is_named_as_it_was_given(packed, kind, end):
    batches = reader(kind, Stream(packed, **end))
    for _ in range(2 if "epochs" in end else 1):
        assert list(batches)
    with pytest.raises(UsageError, match="were read") as caught:
        iter(batches)
    name, value = next(iter(end.items()))
    assert f"its {value} {name}" in caught.value.message
    assert f"{name}={2 if name == 'epochs' else 2 * value})" in caught.value.help


@pytest.mark.parametrize("kind", ["loader", "dataset"])
def test_a_stream_shorter_than_a_batch_says_so(packed, kind):
    batches = reader(kind, Stream(packed, rows=10, drop_last=True), 16)
    with pytest.raises(UsageError, match=r"last 10 rows do not fill a batch of all ranks \(16\)"):
        iter(batches)


def test_steps_left_are_those_of_the_next_loop(packed):
    """Two rows of an epoch are left, no whole batch: the next loop is the next epoch."""
    stream = Stream(packed, epochs=2, drop_last=True)
    stream.load_state_dict(stream.state_dict(row=51))
    loader = TorchLoader(stream, 4)
    assert loader.steps_left == 13
    assert len(list(loader)) == 13
    assert loader.steps_left == 0


@pytest.mark.parametrize("kind", KINDS)
def test_with_restart_each_loop_begins_at_row_0(packed, oracle, kind):
    """Also after one that was left, and with an end of one epoch: so validation runs every few steps."""
    batches = reader(kind, Stream(packed, seed=7, epochs=1), restart=True)
    for _ in range(2):
        assert ids_of(list(batches)) == oracle[:53]
        for _ in batches:
            break


def test_without_restart_the_error_of_a_second_loop_names_it(packed):
    batches = TorchLoader(Stream(packed, epochs=1), 4)
    list(batches)
    with pytest.raises(UsageError) as caught:
        list(batches)
    assert "restart=True" in str(caught.value.help)


@pytest.mark.parametrize("kind", [TorchLoader, TorchDataset, TorchRows, GrainSource])
def test_a_folder_in_place_of_a_stream_is_refused_at_once(packed, kind):
    sizes = () if kind in (TorchRows, GrainSource) else (8,)
    with pytest.raises(UsageError, match=f"{kind.__name__} reads a Stream, not '"):
        kind(str(packed), *sizes)
