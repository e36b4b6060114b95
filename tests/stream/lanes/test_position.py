"""One owner of the position: the stream. Whoever reads it in order moves it; whoever reads ahead says so."""

import json
import pickle
import threading

import pytest
from gristmill_testing.scripts import run
from gristmill_testing.streams import ids_of
from torch.utils.data import DataLoader

from gristmill.core.errors import UsageError
from gristmill.stream import Stream
from gristmill.stream.lanes.position import Position
from gristmill.stream.torch import TorchDataset, TorchLoader, TorchRows

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def workers(dataset, num_workers, method="fork", **options):
    if num_workers:
        options = {"multiprocessing_context": method, **options}
    return DataLoader(dataset, batch_size=None, num_workers=num_workers, **options)


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def test_every_reader_goes_on_where_the_one_before_it_stopped(packed, oracle):
    stream = Stream(packed, seed=7, rows=60)
    read = take(stream.batches(4), 2)
    loader = TorchLoader(stream, 3)
    read += take(iter(loader), 2)
    assert stream.next_row == stream.state_dict()["row"] == loader.state_dict()["row"] == 14
    read += take(stream.batches(2), 3)
    assert (len(loader), loader.steps_left) == (20, 14)  # 40 rows are left
    read += list(TorchDataset(stream, 7))
    assert ids_of(read) == oracle[:60]


def test_accounts_are_of_all_readers(packed):
    stream = Stream(packed, rows=60)
    take(stream.batches(4), 2)
    loader = TorchLoader(stream, 4)
    take(iter(loader), 2)
    assert loader.accounting.report().rows == stream.accounting.report().rows == 16


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_reader_that_was_overtaken_is_refused(packed, oracle, num_threads):
    stream = Stream(packed, seed=7, rows=60)
    first, second = iter(TorchLoader(stream, 4, num_threads=num_threads)), stream.batches(5)
    read = take(first, 2) + take(second, 2)
    with pytest.raises(UsageError, match="is at row 18, but this iteration is at row 8"):
        next(first)
    assert ids_of([*read, *second]) == oracle[:60]
    later = stream.batches(4)
    stream.load_state_dict(stream.state_dict(row=12))
    take(later, 1)
    stream.load_state_dict(stream.state_dict(row=40))
    with pytest.raises(UsageError, match="row 40"):
        next(later)


def test_reading_does_not_move_the_steps(packed):
    stream = Stream(packed, rows=60)
    take(stream.batches(4), 3)
    assert stream.batch(1, 5).first_row == 5
    assert [row.row for row in stream.where(1, 2)] == [2, 3]
    stream.load_state_dict(stream.state_dict())
    assert stream.batch(1, 5).first_row == 17


def test_a_pickled_stream_stands_where_it_stood(packed):
    stream = Stream(packed)
    TorchDataset(stream, 4)
    take(stream.batches(4), 3)
    other = pickle.loads(pickle.dumps(stream))
    take(stream.batches(4), 1)
    assert other.next_row == 12


@pytest.mark.parametrize("num_workers", [0, 2])
def test_no_state_is_given_that_could_be_wrong(packed, oracle, num_workers):
    stream = Stream(packed, seed=7, rows=60)
    dataset = TorchDataset(stream, 4)
    assert stream.state_dict()["row"] == 0  # before the first batch it is right
    batches = iter(workers(dataset, num_workers))
    batch = take(batches, 3)[-1]
    with pytest.raises(UsageError, match="state_after"):
        stream.state_dict()
    with pytest.raises(UsageError, match="state_after"):
        dataset.state_dict()
    assert not hasattr(dataset, "state_dict")
    stream.load_state_dict(dataset.state_after(batch))
    assert stream.state_dict()["row"] == 12
    assert ids_of(stream.batches(4)) == oracle[12:60]


PASSES = [(0, {}), (2, {}), (2, {"persistent_workers": True})]


@pytest.mark.parametrize(("num_workers", "options"), PASSES, ids=["none", "workers", "persistent"])
@pytest.mark.parametrize("through", ["dataset", "stream"])
def test_the_first_pass_after_a_load_is_the_rest_of_its_epoch(packed, oracle, num_workers, options, through):
    stream = Stream(packed, seed=7, epochs=3)
    dataset = TorchDataset(stream, 4)
    state = json.loads(json.dumps(stream.state_dict(row=20)))
    loaded = {"dataset": dataset, "stream": stream}[through]
    loader = workers(dataset, num_workers, **options)
    loaded.load_state_dict(state)
    assert (len(loader), dataset.steps_left) == (14, 9)
    assert ids_of(loader) == oracle[20:53]
    assert (len(loader), dataset.steps_left) == (14, 14)
    assert ids_of(loader) == oracle[53:106]
    loaded.load_state_dict(state)  # the workers that live hear of it
    assert ids_of(loader) == oracle[20:53]
    assert ids_of(workers(dataset, 3)) == oracle[53:106]  # of another loader too
    assert ids_of(loader) == oracle[106:159]
    with pytest.raises(UsageError, match="3 epochs were read"):
        list(loader)


def test_passes_of_spawned_workers(packed, oracle):
    dataset = TorchDataset(Stream(packed, seed=7, epochs=3), 4)
    dataset.load_state_dict(dataset.stream.state_dict(row=20))
    loader = workers(dataset, 1, "spawn", persistent_workers=True)
    assert ids_of(loader) == oracle[20:53]
    assert ids_of(loader) == oracle[53:106]
    dataset.load_state_dict(dataset.stream.state_dict(row=40))
    assert ids_of(loader) == oracle[40:53]
    assert ids_of(workers(dataset, 0)) == oracle[53:106]


def test_a_forked_trainer_goes_its_own_way(packed, oracle):
    """Not a worker of this process: what it reads and loads moves nothing here."""
    import multiprocessing

    stream = Stream(packed, seed=7, epochs=2)
    dataset = TorchDataset(stream, 4)
    take(stream.batches(4), 5)

    def train(answers):
        read = [ids_of(workers(dataset, 0)) for _ in range(2)]
        dataset.load_state_dict(stream.state_dict(row=40))
        answers.send([*read, ids_of(TorchLoader(stream, 4))])

    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=train, args=(there,))
    process.start()
    assert here.recv() == [oracle[20:53], oracle[53:106], oracle[40:53]]
    process.join()
    assert stream.state_dict()["row"] == 20
    assert ids_of(dataset) == oracle[20:53]


def test_forked_workers_open_files_for_themselves(packed, oracle):
    """Also when a thread of the parent was just opening one: its lock would never be released in them."""
    stream = Stream(packed, seed=7, epochs=1)
    rows = TorchRows(stream)
    with stream.reader.table._opening:
        loader = DataLoader(rows, batch_size=10, num_workers=1, multiprocessing_context="fork", timeout=240)
        read = [row.tolist() for batch in loader for row in batch["input_ids"]]
    assert read == oracle[:53]


def test_an_unfinished_loader_ends_quietly_with_the_interpreter(packed, tmp_path):
    script = tmp_path / "unfinished.py"
    script.write_text(
        "import sys\n"
        "from gristmill.stream import Stream\n"
        "from gristmill.stream.torch import TorchLoader\n"
        "batches = iter(TorchLoader(Stream(sys.argv[1]), 4, num_threads=2))\n"
        "next(batches)\n"
        "held = [batches]\n"  # a cycle is only taken apart when modules are empty already
        "held.append(held)\n"
        "del batches\n"
    )
    done = run(script, packed)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_thread_is_left_by_a_loader_that_failed(packed):
    before = threading.active_count()
    stream = Stream(packed, rows=60)
    batches = iter(TorchLoader(stream, 4, num_threads=2))
    next(batches)
    stream.load_state_dict(stream.state_dict(row=0))
    with pytest.raises(UsageError):
        next(batches)
    del batches
    assert threading.active_count() == before


class _Interrupted(list):
    """Shared numbers; what `then` does happens between the first and the second time that the pass is read."""

    def __init__(self, numbers, then):
        super().__init__(numbers)
        self._then = then

    def __getitem__(self, place):
        value = super().__getitem__(place)
        if place == 1 and self._then is not None:  # the word that names the pass
            then, self._then = self._then, None
            then()
        return value


@pytest.mark.parametrize("ends_too", [False, True])
def test_a_worker_is_overtaken_by_another_of_its_pass(packed, ends_too):
    passes = Stream(packed, epochs=3).passes
    position = Position()
    for worker in (0, 1):
        position.begin_pass(7, worker, 2, passes, is_first=True)
        position.end_pass(worker)

    def overtake():
        position.begin_pass(8, 0, 2, passes, is_first=False)
        if ends_too:
            position.end_pass(0)

    position._numbers = _Interrupted(position._numbers, overtake)
    assert position.begin_pass(8, 1, 2, passes, is_first=False) == 53


def test_a_pass_that_one_worker_has_not_ended_was_left(packed):
    passes = Stream(packed, epochs=3).passes
    position = Position()
    for worker in (0, 1):
        position.begin_pass(7, worker, 2, passes, is_first=True)
    position.end_pass(0)
    with pytest.raises(UsageError, match="left before its end"):
        position.begin_pass(8, 1, 2, passes, is_first=False)
