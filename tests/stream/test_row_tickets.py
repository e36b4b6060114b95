"""Rows that workers name and their parent gathers: the same batches whoever makes them, and the choice."""

import itertools
import sys
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from gristmill_testing.streams import ids_of
from hypothesis import given
from hypothesis import strategies as st
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader

from gristmill.core.errors import UsageError
from gristmill.stream import Collate, Stream
from gristmill.stream.batches.collate import Batch
from gristmill.stream.batches.read_ahead import ReadAhead
from gristmill.stream.torch import TorchDataset, row_tickets
from gristmill.stream.torch.row_tickets import RowTicket, TicketChooser
from gristmill.stream.torch.tensors import as_tensors
from gristmill.stream.torch.worker_ring import COPY, GATHER, BatchSender

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.skipif(sys.platform != "linux", reason="other systems send tensors as torch does"),
]


def loader(dataset, num_workers=2, **options):
    return DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context="fork", **options)


@pytest.fixture
def sender():
    """The sender of a worker that has sent one batch."""
    made = BatchSender()
    made.reduce_batch(Batch(ids=torch.arange(8)))
    return made


@pytest.fixture(scope="module")
def worker():
    """Where the ring of a worker is that has sent one batch."""
    made = BatchSender()
    made.reduce_batch(Batch(ids=torch.arange(8)))
    return made.ring.place


@pytest.fixture
def alternate(monkeypatch):
    """Every second batch of a worker is a ticket, whatever it costs."""
    turns = itertools.count()
    choose = TicketChooser.choose_ticket

    def choose_in_turn(chooser, stream, *place):
        if next(turns) % 2 == 0 or chooser._sender.ring is None:
            return None
        chooser._batches_left, chooser._num_tickets, chooser._num_slow = 0, 0, sys.maxsize
        chooser._sender.ring.costs.note(COPY, 1)
        return choose(chooser, stream, *place)

    monkeypatch.setattr(TicketChooser, "choose_ticket", choose_in_turn)
    monkeypatch.setattr(ReadAhead, "is_cold", False)


def test_the_choice(packed, sender, monkeypatch):
    monkeypatch.setattr(ReadAhead, "is_cold", False)
    stream = Stream(packed)
    chooser, costs = TicketChooser(sender), sender.ring.costs

    def choose(count):
        """Which of so many batches are tickets."""
        return [chooser.choose_ticket(stream, 0, 4, 0, 1) is not None for _ in range(count)]

    assert not any(choose(8 + 3))  # the parent has copied none yet
    costs.note(COPY, 100)
    costs.note(COPY, 90)
    assert all(choose(10))
    costs.note(GATHER, 400)
    assert all(choose(22))  # the first ones may be slower
    assert not any(choose(513))
    assert all(choose(32))  # and then it tries again: the machine may have been busy
    assert not any(choose(513))
    costs.note(GATHER, 360)
    assert all(choose(40))
    costs.note_slow()
    assert choose(35) == [False] * 33 + [True] * 2
    monkeypatch.setattr(ReadAhead, "is_cold", True)
    assert not any(choose(3))


def test_without_a_ring_there_are_no_tickets(packed):
    chooser = TicketChooser(BatchSender())
    assert all(chooser.choose_ticket(Stream(packed), 0, 4, 0, 1) is None for _ in range(20))


FIELDS = ("input_ids", "labels", "position_ids", "document_ids", "attention_mask", "cu_seqlens", "row_mask")


@given(row=st.integers(0, 60), batch_size=st.integers(1, 5), world_size=st.integers(1, 3), data=st.data())
def test_a_ticket_is_the_batch(packed, worker, row, batch_size, world_size, data):
    rank = data.draw(st.integers(0, world_size - 1))
    stream = Stream(packed, seed=3, rows=61, collate=Collate(fields=FIELDS))
    place = row, batch_size, rank, world_size
    message = ForkingPickler.dumps(RowTicket(stream.key, *place, 1 << 60, worker))
    received, expected = ForkingPickler.loads(message), as_tensors(stream.batch_at(*place))
    assert type(received) is Batch
    assert set(received) == set(expected)
    assert all(np.array_equal(received[name], expected[name]) for name in expected)
    assert {name: np.asarray(value).tolist() for name, value in vars(received).items()} == {
        name: np.asarray(value).tolist() for name, value in vars(expected).items()
    }
    assert stream.accounting.report().rows == int(received.row_mask.sum())


def test_slow_tickets_and_their_costs_are_noted(packed, sender):
    stream = Stream(packed)
    for slow_ns in (1 << 60, 0):
        row_tickets._gather(stream.key, 0, 4, 0, 1, slow_ns, sender.ring.place)
    copy_ns, gather_ns, num_slow = sender.ring.costs.read()
    assert copy_ns == 0
    assert gather_ns > 0
    assert num_slow >= 1


def test_a_batch_that_cannot_be_made_is_an_error_of_the_loader(worker):
    failure = row_tickets._gather("no such stream", 0, 4, 0, 1, 0, worker)
    assert isinstance(failure, ExceptionWrapper)
    with pytest.raises(UsageError, match="not in the process"):
        failure.reraise()


@pytest.mark.usefixtures("alternate")
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"pin_memory": True}])
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_loaders_yield_and_count_the_same_batches(packed, oracle, options):
    stream = Stream(packed, seed=7, epochs=2)
    made = loader(TorchDataset(stream, 3), **options)
    batches = [*made, *made]
    assert ids_of(batches) == oracle[:106]
    assert all(type(batch) is Batch for batch in batches)
    report = stream.accounting.report()
    assert (report.row, report.rows) == (106, 106)
    assert report.tokens == sum(int(batch.tokens.sum()) for batch in batches)
    assert stream.next_row == 0  # only a used batch says how far a loader is


@pytest.mark.usefixtures("alternate")
def test_two_loaders_of_one_dataset_at_once(packed, oracle):
    dataset = TorchDataset(Stream(packed, seed=7, rows=40), 4)
    first = iter(loader(dataset, 1))
    ours = [next(first)]
    other = TorchDataset(Stream(packed, seed=8, rows=40), 4)
    pairs = list(zip(first, loader(other), strict=False))
    assert ids_of(ours + [batch for batch, _ in pairs]) == oracle[:40]
    assert ids_of([batch for _, batch in pairs]) == ids_of(list(Stream(packed, seed=8, rows=40).batches(4)))[:36]


def list_fields(batch):
    """A user's collate function, which sees whole batches."""
    assert type(batch) is Batch
    return sorted(batch), batch["input_ids"].tolist()


@pytest.mark.usefixtures("alternate")
def test_a_collate_function_sees_batches(packed):
    batches = list(loader(TorchDataset(Stream(packed, rows=24), 4), 1, collate_fn=list_fields))
    expected = Stream(packed, rows=24).batches(4)
    assert batches == [(["input_ids", "labels"], batch["input_ids"].tolist()) for batch in expected]
