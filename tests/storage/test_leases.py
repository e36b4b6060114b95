"""Two runs on one output, dead holders, stolen leases, lost answers: one holder at a time, and the other one knows."""

import errno
import itertools
import subprocess
import sys
import threading
import uuid

import msgspec
import pytest
from gristmill_testing.faulty_proxy import LOST, FaultyProxy

from gristmill.core.errors import FolderLockedError, LeaseLostError, UsageError
from gristmill.storage import leases
from gristmill.storage.leases import Holder, Lease, describe_process
from gristmill.storage.locations import StorePath
from gristmill.storage.stores.open_store import forget_stores, open_store
from gristmill.storage.stores.posix_store import PosixStore


@pytest.fixture(params=["memory", "posix", "s3"])
def place(request, tmp_path):
    """A store and a prefix in it."""
    if request.param == "posix":
        return PosixStore(tmp_path), ".gristmill/lease"
    if request.param == "s3":
        return open_store(f"{request.getfixturevalue('s3').url}/out/.gristmill/lease")
    return StorePath(f"memory://{uuid.uuid4().hex}/lease").open_store()


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self, while_waiting=lambda: None):
        self.now = 0.0
        self.while_waiting = while_waiting

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.while_waiting()


def write_holder(place, epoch, **changes):
    store, prefix = place
    holder = msgspec.structs.replace(describe_process(), **changes)
    store.put(f"{prefix}/{epoch:08d}.json", msgspec.json.encode(holder))
    return holder


def end_process():
    """A process of this machine that has ended."""
    code = "from gristmill.storage.leases import *; print(msgspec.json.encode(describe_process()).decode())"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
    return msgspec.json.decode(output, type=Holder)


def test_epochs_follow_one_another(place):
    for epoch in (1, 2, 3):
        with Lease(*place) as lease:
            assert lease.epoch == epoch
            lease.check()
            lease.remove_old_files()
    store, prefix = place
    names = sorted(entry.key.rpartition("/")[2] for entry in store.list_folder(prefix))
    assert names == ["00000003.json", "00000003.released"]


def test_a_second_run_is_refused(place):
    match = f"process {describe_process().pid} on"
    with Lease(*place), pytest.raises(FolderLockedError, match=match), Lease(*place):
        pass
    with Lease(*place) as lease:
        assert lease.epoch == 2


def test_a_dead_process_of_this_machine_is_replaced_at_once(place):
    store, prefix = place
    store.put(f"{prefix}/00000001.json", msgspec.json.encode(end_process()))
    clock = Clock()
    with Lease(*place, clock=clock, sleep=clock.sleep) as lease:
        assert lease.epoch == 2
    assert clock.now == 0


def test_a_process_number_that_is_used_again_is_not_the_holder(place):
    write_holder(place, 1, started="17")
    with Lease(*place) as lease:
        assert lease.epoch == 2


def test_a_silent_holder_elsewhere_loses_the_lease_after_a_minute(place):
    write_holder(place, 1, host="elsewhere")
    clock = Clock()
    with Lease(*place, clock=clock, sleep=clock.sleep) as lease:
        assert lease.epoch == 2
    assert clock.now >= leases.EXPIRY_SECONDS


def test_a_holder_elsewhere_that_beats_keeps_the_lease(place):
    store, prefix = place
    write_holder(place, 1, host="elsewhere")
    beats = itertools.count()
    clock = Clock(lambda: store.put(f"{prefix}/00000001.beat", str(next(beats)).encode()))
    with pytest.raises(FolderLockedError, match="elsewhere"), Lease(*place, clock=clock, sleep=clock.sleep):
        pass
    assert clock.now < leases.EXPIRY_SECONDS


def test_a_holder_elsewhere_that_ends_meanwhile(place):
    store, prefix = place
    write_holder(place, 1, host="elsewhere")
    clock = Clock(lambda: store.put(f"{prefix}/00000001.released", b""))
    with Lease(*place, clock=clock, sleep=clock.sleep) as lease:
        assert lease.epoch == 2
    assert clock.now < leases.EXPIRY_SECONDS


def test_a_stolen_lease_is_noticed(place):
    with Lease(*place) as first:
        first.check()
        with Lease(*place, take_over=True) as second:
            assert second.epoch == 2
            with pytest.raises(LeaseLostError):
                first.check()
            second.check()
    store, prefix = place
    # The first one must not release what is no longer its own.
    assert f"{prefix}/00000001.released" not in [entry.key for entry in store.list_folder(prefix)]


def test_the_heartbeat_notices_a_stolen_lease(place):
    with Lease(*place, beat_seconds=0.01) as first:
        write_holder(place, 2, host="elsewhere")
        first._thread.join(30)
        assert not first._thread.is_alive()
        with pytest.raises(LeaseLostError):
            first.check()


def test_a_lease_that_was_stolen_twice_is_lost_though_the_thief_has_left(place):
    """The run that came last has removed the files of all earlier ones."""
    with Lease(*place) as first:
        with Lease(*place, take_over=True):
            pass
        with Lease(*place) as third:
            third.remove_old_files()
        with pytest.raises(LeaseLostError):
            first.check()


def test_a_disk_that_fails_once_does_not_end_the_heartbeat(tmp_path, caplog):
    store = PosixStore(tmp_path)
    put, beaten = store.put, threading.Event()
    failures = [OSError(errno.ESTALE, "Stale file handle"), OSError(errno.EIO, "Input/output error")]

    def fail_at_first(key, data, **conditions):
        if key.endswith(".beat") and failures:
            raise failures.pop()
        version = put(key, data, **conditions)
        if key.endswith(".beat"):
            beaten.set()
        return version

    store.put = fail_at_first
    with Lease(store, "lease", beat_seconds=0.01) as lease:
        assert beaten.wait(30)
        lease.check()
    assert [record.message for record in caplog.records if "Stale file handle" in record.message]


def test_a_lease_that_cannot_be_released_does_not_hide_how_the_run_ended(tmp_path, caplog):
    store = PosixStore(tmp_path)
    put = store.put

    def fail_at_last(key, data, **conditions):
        if key.endswith(".released"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return put(key, data, **conditions)

    store.put = fail_at_last
    with pytest.raises(KeyError, match="of the run"), Lease(store, "lease"):
        raise KeyError("of the run")
    assert "could not be released" in caplog.text


def test_many_contenders_have_one_winner(place):
    write_holder(place, 1, started="17")
    leave, entered, refused = threading.Event(), [], []
    arrived = threading.Barrier(9)

    def contend():
        try:
            with Lease(*place) as lease:
                entered.append(lease.epoch)
                arrived.wait(60)
                leave.wait(60)
        except FolderLockedError:
            refused.append(1)
            arrived.wait(60)

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    arrived.wait(60)
    leave.set()
    for thread in threads:
        thread.join()
    assert (entered, len(refused)) == ([2], 7)


def test_a_create_whose_answer_was_lost_has_succeeded(seaweed, s3, monkeypatch):
    proxy = FaultyProxy(seaweed.port)
    lost = []

    def lose_first(line, number):
        if line.startswith("PUT") and "00000001.json" in line and not lost:
            lost.append(line)
            return LOST
        return None

    proxy.fault = lose_first
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    forget_stores()
    with Lease(*open_store(f"{s3.url}/out/lease")) as lease:
        assert lease.epoch == 1
    assert lost
    proxy.close()


def test_a_store_without_conditional_creates_is_refused():
    store, prefix = StorePath(f"memory://{uuid.uuid4().hex}/lease").open_store()
    careless = store.put
    store.put = lambda key, data, **conditions: careless(key, data)
    with pytest.raises(UsageError, match="two writers"), Lease(store, prefix):
        pass
    assert list(store.list_folder(prefix)) == []
