"""Batches as tensors: threads, worker processes, samplers; the order of the slow oracle in all of them."""

import json
import pickle
import threading

import pytest
import torch
from gristmill_testing.streams import ids_of
from torch.utils.data import DataLoader

from gristmill.core.errors import UsageError
from gristmill.stream import Stream
from gristmill.stream.torch import TorchDataset, TorchLoader, TorchRows

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores are meant here


def ranks(make, world_size):
    """Global batches of all ranks, in the order of rows."""
    return [batch for step in zip(*(make(rank) for rank in range(world_size)), strict=True) for batch in step]


def loader(dataset, num_workers, **options):
    if num_workers:
        options = {"multiprocessing_context": "fork", **options}
    return DataLoader(dataset, batch_size=None, num_workers=num_workers, **options)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("batch_size", [1, 2, 6])
@pytest.mark.parametrize(
    "num_workers", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_grid_of_worlds_workers_and_batches(packed, oracle, world_size, batch_size, num_workers):
    def batches(rank):
        stream = Stream(packed, seed=7, rows=101)
        return loader(TorchDataset(stream, batch_size, rank=rank, world_size=world_size), num_workers)

    assert ids_of(ranks(batches, world_size)) == oracle[:101]


@pytest.mark.parametrize(("world_size", "num_workers", "batch_size"), [(2, 3, 6), (3, 1, 2)])
def test_worker_processes_keep_the_order(packed, oracle, world_size, num_workers, batch_size):
    test_grid_of_worlds_workers_and_batches(packed, oracle, world_size, batch_size, num_workers)


@pytest.mark.full
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_way_to_start_workers(packed, oracle, method):
    dataset = TorchDataset(Stream(packed, seed=7, rows=40), 4)
    dataset.stream.rows(0, 40)  # files are open in this process before others are started
    num_workers = 2 if method == "fork" else 1  # the others import torch anew: seconds
    batches = list(loader(dataset, num_workers, multiprocessing_context=method))
    assert ids_of(batches) == oracle[:40]
    assert [batch.next_row for batch in batches] == list(range(4, 41, 4))
    assert all(isinstance(batch["labels"], torch.Tensor) for batch in batches)


def test_the_state_is_that_of_the_last_batch_used(packed, oracle):
    """Workers have read ahead by then; resumed with another number of workers, ranks and rows in a batch."""
    state = None
    read = []
    for world_size, num_workers, batch_size, num_steps in [(2, 3, 2, 4), (3, 0, 3, 2), (1, 2, 5, 99), (1, 2, 5, 99)]:
        iterators = []
        for rank in range(world_size):
            dataset = TorchDataset(Stream(packed, seed=7, epochs=2), batch_size, rank=rank, world_size=world_size)
            if state is not None:
                dataset.load_state_dict(json.loads(state))
            iterators.append((dataset, iter(loader(dataset, num_workers))))
        for _ in range(num_steps):
            step = [next(iterator, None) for _, iterator in iterators]
            if step[0] is None:
                break
            read += ids_of(step)
            states = {
                json.dumps(dataset.state_after(batch)) for (dataset, _), batch in zip(iterators, step, strict=True)
            }
            [state] = states
    assert read == oracle[:106]


def test_what_a_worker_is_sent_is_small(packed):
    assert len(pickle.dumps(TorchDataset(Stream(packed), 4))) < 3000


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_loader_threads_keep_the_order(packed, oracle, num_threads):
    def batches(rank):
        return TorchLoader(Stream(packed, seed=7, rows=101), 6, rank=rank, world_size=2, num_threads=num_threads)

    before = threading.active_count()
    assert ids_of(ranks(batches, 2)) == oracle[:101]
    assert threading.active_count() == before


def test_every_state_of_a_loader_gives_the_full_tail(packed, oracle):
    whole = TorchLoader(Stream(packed, seed=7, epochs=1), 4, num_threads=2, prefetch=8)
    states = [whole.state_dict(), *(whole.state_dict() for _ in whole)]
    assert [state["row"] for state in states] == [*range(0, 53, 4), 53]
    assert (len(whole), whole.steps_left) == (14, 0)
    for state in states[:-1]:
        resumed = TorchLoader(Stream(packed, seed=7, epochs=1), 3)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert (len(resumed), resumed.steps_left) == (18, -(-(53 - state["row"]) // 3))
        assert ids_of(resumed) == oracle[state["row"] : 53]


def test_a_loader_that_was_left_goes_on_and_leaves_no_thread(packed, oracle):
    before = threading.active_count()
    batches = TorchLoader(Stream(packed, seed=7, rows=60), 4, num_threads=2)
    read = []
    for batch in batches:
        read += ids_of([batch])
        if len(read) == 12:
            break
    del batch
    read += ids_of(batches)
    assert read == oracle[:60]
    assert threading.active_count() == before


def test_an_error_in_a_thread_reaches_the_user(packed):
    class Broken(Stream):
        def batch_at(self, *arguments, **options):
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        next(iter(TorchLoader(Broken(packed), 4)))


def test_ranks_from_the_environment(packed, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    for made in (TorchLoader(Stream(packed), 2), TorchDataset(Stream(packed), 2)):
        assert (made.rank, made.world_size) == (1, 3)
    assert TorchLoader(Stream(packed), 2, rank=0, world_size=1).world_size == 1
    with pytest.raises(UsageError, match="both"):
        TorchLoader(Stream(packed), 2, rank=0)
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(UsageError, match="numbers"):
        TorchLoader(Stream(packed), 2)


def test_samplers_of_others_read_every_row_once(packed):
    from torch.utils.data import DistributedSampler

    rows = TorchRows(Stream(packed, rows=52))
    read = []
    for rank in range(2):
        sampler = DistributedSampler(rows, num_replicas=2, rank=rank, shuffle=True)
        read += [
            row.tolist() for batch in DataLoader(rows, batch_size=5, sampler=sampler) for row in batch["input_ids"]
        ]
    assert sorted(read) == sorted(Stream(packed).rows(0, 52)["input_ids"].tolist())


def test_accounts_of_a_loader(packed):
    batches = TorchLoader(Stream(packed, mixture={"web": 0.7, "code": 0.3}, rows=100), 10)
    for _ in batches:
        pass
    values = batches.accounting.as_dict()
    assert values["data/rows"] == 100
    assert values["data/web/rows"] == 70
    assert values["data/web/share"] == pytest.approx(0.7)
    assert values["data/web/planned_share"] == pytest.approx(0.7, abs=0.01)
    assert values["data/code/epochs"] == pytest.approx(30 / 23)
    assert values["data/wait_seconds"] > 0
    assert 0 < values["data/padding_share"] < 0.3
    assert "code 30.0% (plan 30.0%, epoch 1.30)" in batches.accounting.log_line()
