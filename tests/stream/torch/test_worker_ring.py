"""Batches of loader workers through shared slots: the same values, and nothing left behind whoever is killed."""

import gc
import os
import pickle
import signal
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

import numpy as np
import psutil
import pytest
import torch
from gristmill_testing.streams import ids_of
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from gristmill.core.errors import UsageError
from gristmill.stream import Stream
from gristmill.stream.collate import Batch
from gristmill.stream.torch import TorchDataset, worker_ring
from gristmill.stream.torch.worker_ring import BatchSender, WorkerRing

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.skipif(sys.platform != "linux", reason="other systems send tensors as torch does"),
]

DTYPES = ["int64", "int32", "uint8", "bool", "float32", "float16", "bfloat16", "complex64"]


def loader(dataset, num_workers=2, method="fork", **options):
    return DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=method, **options)


def make_batch(**items):
    batch = Batch(items)
    batch.first_row, batch.next_row = 3, 7
    batch.sources, batch.tokens = np.array([0, -1]), np.array([5, 0])
    return batch


def send(sender, batch):
    """What the parent gets, and whether it came through a slot. A process may also send to itself."""
    rebuild, arguments = sender.reduce_batch(batch)
    return rebuild(*arguments), rebuild is worker_ring._redeem


def assert_equal_batches(ours, other):
    assert type(ours) is Batch
    assert list(ours.__dict__) == list(other.__dict__)
    assert (ours.next_row, ours.sources.tolist()) == (other.next_row, other.sources.tolist())
    assert set(ours) == set(other)
    for name, value in other.items():
        if isinstance(value, torch.Tensor):
            assert ours[name].dtype == value.dtype
            assert torch.equal(ours[name], value)
        else:
            assert ours[name] == value


@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3), st.booleans()),
        max_size=4,
    )
)
def test_every_kind_of_tensor_arrives_as_it_was(kinds):
    tensors = {
        f"t{number}": (torch.rand(shape) * 9).to(getattr(torch, dtype))
        for number, (dtype, shape, _) in enumerate(kinds)
    }
    for number, (_, shape, transposed) in enumerate(kinds):
        if transposed and len(shape) > 1:
            tensors[f"t{number}"] = tensors[f"t{number}"].transpose(0, 1)
    batch = make_batch(**tensors, texts=["a", "b"], max_seqlen=3)
    assert_equal_batches(send(BatchSender(), batch)[0], batch)


def test_slots_are_used_again_and_batches_do_not_depend_on_them():
    sender = BatchSender()
    sent = [make_batch(ids=torch.full((3, 5), number)) for number in range(500)]
    received = [send(sender, batch) for batch in sent]  # each slot is written 500 times
    for (batch, by_slot), original in zip(received, sent, strict=True):
        assert by_slot
        assert_equal_batches(batch, original)


def test_without_a_free_slot_or_room_the_tensors_go_the_ordinary_way():
    sender = BatchSender()
    pending = [sender.reduce_batch(make_batch(ids=torch.full((600,), number))) for number in range(70)]
    by_slot = [rebuild is worker_ring._redeem for rebuild, _ in pending]
    assert by_slot == [True] * 64 + [False] * 6
    assert [int(rebuild(*arguments)["ids"][9]) for rebuild, arguments in pending] == list(range(70))
    assert send(sender, make_batch(ids=torch.zeros(4 * 600)))[1]
    assert not send(sender, make_batch(ids=torch.zeros(100_000)))[1]
    assert send(sender, make_batch(ids=torch.zeros(8)))[1]


def test_a_process_without_descriptors_sends_the_ordinary_way(monkeypatch):
    def refuse(*arguments):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    batch = make_batch(ids=torch.arange(4))
    received, by_slot = send(BatchSender(), batch)
    assert not by_slot
    assert_equal_batches(received, batch)


def test_a_later_worker_of_the_same_number_has_a_ring_of_its_own():
    """Numbers of processes come again: the ring of the first worker may still be mapped, or not be read yet."""
    first, second = BatchSender(), BatchSender()
    send(first, make_batch(ids=torch.zeros(8)))
    rebuild, unread = first.reduce_batch(make_batch(ids=torch.zeros(8)))
    os.close(first.ring.place.fd)
    batch = make_batch(ids=torch.ones(8))
    received, is_slot = send(second, batch)
    assert is_slot
    assert second.ring.place.fd == first.ring.place.fd
    assert_equal_batches(received, batch)
    del worker_ring._rings[first.ring.place]
    with pytest.raises(UsageError, match="another process has its number"):
        rebuild(*unread)


def test_only_slots_that_were_used_take_memory():
    ring = WorkerRing(1 << 20)
    assert ring.copy_in({"x": np.ones(1 << 17)}) is not None
    assert os.fstat(ring.place.fd).st_blocks * 512 < 2 << 20


@pytest.mark.parametrize(("method", "num_workers"), [("fork", 2), ("spawn", 1)])
def test_a_list_of_all_batches(packed, oracle, method, num_workers):
    dataset = TorchDataset(Stream(packed, seed=7, rows=101), 2)
    made = loader(dataset, num_workers, method)
    iterator = iter(made)
    batches = [next(iterator) for _ in range(6)]
    assert len(worker_ring._rings) >= num_workers
    batches += list(iterator)
    assert ids_of(batches) == oracle[:101]


def test_two_loaders_at_once_and_one_after_the_other(packed, oracle):
    first, second = (TorchDataset(Stream(packed, seed=7, rows=60), 4) for _ in range(2))
    pairs = list(zip(loader(first), loader(second, 1), strict=True))
    assert ids_of([ours for ours, _ in pairs]) == ids_of([other for _, other in pairs]) == oracle[:60]
    dataset = TorchDataset(Stream(packed, seed=7, epochs=2), 5)
    assert ids_of([*loader(dataset), *loader(dataset, 1)]) == oracle[:106]


def test_persistent_workers_keep_their_ring_and_leave_it_with_the_loader(packed, oracle):
    gc.collect()
    before = set(worker_ring._rings)
    dataset = TorchDataset(Stream(packed, seed=7, epochs=3), 5)
    persistent = loader(dataset, persistent_workers=True)
    rings, batches = [], []
    for _ in range(3):
        batches += list(persistent)
        rings.append(set(worker_ring._rings) - before)
    assert ids_of(batches) == oracle[:159]
    assert rings[0] == rings[1] == rings[2]
    assert len(rings[0]) == 2
    del persistent
    gc.collect()
    assert not rings[0] & set(worker_ring._rings)


class Repeated(IterableDataset):
    """A user's dataset around ours, which yields batches twice, and parts of them in dicts of its own."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        for batch in self.dataset:
            yield batch
            yield batch
            yield {"first": batch["input_ids"][0], "copy": pickle.loads(pickle.dumps(batch))}


def test_datasets_around_ours_may_do_what_they_like(packed, oracle):
    batches = list(loader(Repeated(TorchDataset(Stream(packed, seed=7, rows=20), 4)), 1))
    assert ids_of(batches[::3]) == ids_of(batches[1::3]) == oracle[:20]
    for batch, own in zip(batches[1::3], batches[2::3], strict=True):
        assert torch.equal(own["first"], batch["input_ids"][0])
        assert torch.equal(own["copy"]["input_ids"], batch["input_ids"])


def test_the_pickler_of_the_parent_is_left_alone(packed):
    list(loader(TorchDataset(Stream(packed, seed=7, rows=20), 4)))
    assert Batch not in ForkingPickler._extra_reducers


def test_a_killed_worker_is_an_error_and_leaves_nothing(packed):
    iterator = iter(loader(TorchDataset(Stream(packed, seed=7), 4)))
    batches = [next(iterator) for _ in range(5)]
    workers = [process.pid for process in iterator._workers]
    os.kill(workers[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="worker"):
        batches.extend(iterator)
    assert [batch.first_row for batch in batches] == list(range(0, 4 * len(batches), 4))
    del iterator
    gc.collect()
    assert not any(psutil.pid_exists(pid) for pid in workers)
    assert not {place.process for place in worker_ring._rings} & set(workers)
    assert left_in_shared_memory(workers) == []


TRAINER = """
import sys
from torch.utils.data import DataLoader
from gristmill.stream import Stream
from gristmill.stream.torch import TorchDataset
iterator = iter(DataLoader(TorchDataset(Stream(sys.argv[1], seed=7), 4), batch_size=None, num_workers=2))
for _ in range(20):
    next(iterator)
print(*(process.pid for process in iterator._workers), flush=True)
for _ in iterator:
    pass
"""


def test_a_killed_trainer_leaves_nothing(packed):
    with subprocess.Popen([sys.executable, "-c", TRAINER, str(packed)], stdout=subprocess.PIPE, text=True) as trainer:
        try:
            workers = [psutil.Process(int(pid)) for pid in trainer.stdout.readline().split()]
            assert len(workers) == 2
        finally:
            trainer.kill()
    # The pipe to its parent broke, or torch looked for the parent in vain (every 5 s).
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
    assert left_in_shared_memory([trainer.pid, *(worker.pid for worker in workers)]) == []


def left_in_shared_memory(pids):
    return [name for name in os.listdir("/dev/shm") for pid in pids if f"_{pid}_" in name]
