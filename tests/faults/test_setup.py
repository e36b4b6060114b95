"""Workers that cannot be made ready: a clear error, soon, after few starts. Never a loop without end."""

import json
import os
import signal
import sys
import time
import types

import pytest
from gristmill_testing.watching import count_and_sign, sign, wait_for_file, wait_until

import gristmill as gm

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(300)]

MAX_STARTS = 20
"""No more workers than this may be started for two that cannot be made ready."""


def num_starts(folder):
    return len(list(folder.glob("start-*")))


def test_set_up_that_raises_gives_its_error(folder):
    def setup():
        sign(folder, f"start-{os.getpid()}")
        raise FileNotFoundError("model.bin")

    with pytest.raises(FileNotFoundError, match=r"model\.bin") as caught:
        gm.parallel_map(lambda n, state: n, range(10), workers=2, setup=setup)
    notes = "\n".join(caught.value.__notes__)
    assert "set up" in notes
    assert "setup" in notes  # the worker's traceback names the function
    assert 1 <= num_starts(folder) <= MAX_STARTS


@pytest.mark.full
@pytest.mark.parametrize("on_error", ["return", "skip"])
def test_set_up_that_raises_is_no_items_failure(on_error):
    def setup():
        raise FileNotFoundError("model.bin")

    with pytest.raises(FileNotFoundError):
        gm.parallel_map(lambda n, state: n, range(10), workers=2, setup=setup, on_error=on_error)


@pytest.mark.full
@pytest.mark.parametrize("backend", ["serial", "threads", "auto"])
def test_set_up_that_raises_in_other_backends(backend):
    def setup():
        raise FileNotFoundError("model.bin")

    with pytest.raises(FileNotFoundError, match=r"model\.bin"):
        gm.parallel_map(lambda n, state: n, range(10), workers=2, backend=backend, setup=setup)


@pytest.mark.parametrize("way", ["SIGKILL", "SIGSEGV", "_exit"])
def test_set_up_that_dies_gives_a_clear_error(folder, way):
    def setup():
        sign(folder, f"start-{os.getpid()}")
        if way == "_exit":
            os._exit(3)
        os.kill(os.getpid(), getattr(signal, way))

    with pytest.raises(gm.errors.SetupError) as caught:
        gm.parallel_map(lambda n, state: n, range(10), workers=2, setup=setup)
    assert ("code 3" if way == "_exit" else way) in str(caught.value)
    assert 1 <= num_starts(folder) <= MAX_STARTS


@pytest.mark.full
@pytest.mark.parametrize("dies", [False, True])
def test_set_ups_that_fail_one_after_another_end_too(folder, dies):
    """Each fails only after the next one has begun, so that there is always another one which might succeed."""
    enough = MAX_STARTS + 10

    def setup():
        before = len(list(folder.glob("start-*")))
        sign(folder, f"start-{os.getpid()}")
        if before < enough:  # then the loop has been shown, and everything may end
            deadline = time.monotonic() + 2
            while len(list(folder.glob("start-*"))) <= before + 1 and time.monotonic() < deadline:
                time.sleep(0.005)
        if dies:
            os._exit(3)
        raise ValueError("never ready")

    with pytest.raises((ValueError, gm.errors.SetupError)):
        gm.parallel_map(lambda n, state: n, range(10), workers=2, setup=setup)
    assert num_starts(folder) <= MAX_STARTS


@pytest.mark.full
def test_error_of_set_up_that_cannot_travel():
    def setup():
        from gristmill_testing.objects import TwoArguments

        raise TwoArguments("model", 3)

    with pytest.raises(gm.errors.RemoteError, match="model has 3"):
        gm.parallel_map(lambda n, state: n, range(3), workers=1, setup=setup)


@pytest.mark.full
def test_set_up_that_exits():
    """`sys.exit()` in a set-up does not end the caller's program in silence."""

    def setup():
        raise SystemExit(0)

    with pytest.raises(BaseException) as caught:  # noqa: PT011
        gm.parallel_map(lambda n, state: n, range(3), workers=1, setup=setup)
    assert not isinstance(caught.value, SystemExit) or "set up" in "\n".join(caught.value.__notes__)


@pytest.mark.full
def test_function_whose_module_is_missing_in_the_worker(monkeypatch):
    """The worker cannot load the function at all; that is said, once."""
    module = types.ModuleType("vanished")
    exec("def function(n):\n    return n", vars(module))
    monkeypatch.setitem(sys.modules, "vanished", module)
    with pytest.raises(ModuleNotFoundError, match="vanished"):
        gm.parallel_map(module.function, range(3), workers=2)


def test_worker_that_fails_once_is_replaced(folder):
    """The first worker's set-up dies, all others are fine: the job is done, with nobody blamed."""

    def setup():
        if count_and_sign(folder, "start") == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return "ready"

    assert gm.parallel_map(lambda n, state: (n, state), range(5), workers=1, setup=setup) == [
        (n, "ready") for n in range(5)
    ]


@pytest.mark.full
def test_set_up_that_fails_in_one_of_two_leaves_the_work_to_the_other(folder):
    """Only one process ever succeeds. The others are given up after a few tries."""

    def setup():
        try:
            os.close(os.open(folder / "the-one", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            sign(folder, f"start-{os.getpid()}")
            raise ValueError("there can be only one") from None
        return os.getpid()

    def function(n, pid):
        wait_until(lambda: len(list(folder.glob("start-*"))) >= 1, "another worker's failure")
        return pid

    results = gm.parallel_map(function, range(30), workers=2, setup=setup)
    assert len(set(results)) == 1
    assert 1 <= num_starts(folder) <= MAX_STARTS


@pytest.mark.full
@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_set_up_that_fails_only_in_replacements(folder, dies, workers):
    """The first workers get through, then one item after another kills them, and nobody can be made ready again."""

    def setup():
        if (folder / "broken").exists():
            sign(folder, f"start-{os.getpid()}")
            if dies:
                os._exit(3)
            raise ValueError("broken by now")

    def function(n, _):
        sign(folder, "broken")
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises((ValueError, gm.errors.SetupError)):
        gm.parallel_map(function, range(10), workers=workers, setup=setup, on_error="return")
    assert 1 <= num_starts(folder) <= MAX_STARTS


@pytest.mark.full
def test_results_before_the_end_of_all_workers_are_yielded(folder):
    """What was done before no worker could be made ready again is not lost to the caller of `parallel_imap`."""

    def setup():
        if (folder / "broken").exists():
            raise ValueError("broken by now")

    def function(n, _):
        if n == 2:
            wait_for_file(folder / "seen")
            sign(folder, "broken")
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    results = gm.parallel_imap(function, range(5), workers=1, chunk_size=1, setup=setup)
    assert [next(results), next(results)] == [0, 1]
    sign(folder, "seen")
    with pytest.raises(ValueError, match="broken by now"):
        next(results)


@pytest.mark.full
def test_set_up_that_never_ends_in_one_worker(folder):
    """The other one does all the work, and nobody waits for the first at the end."""

    def setup():
        try:
            os.close(os.open(folder / "stuck", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return "ready"
        while True:
            time.sleep(1)

    assert gm.parallel_map(lambda n, state: state, range(10), workers=2, setup=setup) == ["ready"] * 10


@pytest.mark.full
def test_failures_of_set_up_are_events(tmp_path):
    log = gm.EventLog(tmp_path / "events.jsonl")

    def setup():
        raise ValueError("never ready")

    with pytest.raises(ValueError, match="never ready"):
        gm.parallel_map(lambda n, state: n, range(3), workers=1, setup=setup, progress=log)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert events[0]["event"] == "job_started"
    assert events[-1]["event"] == "job_ended"
    assert any(event["event"] in ("worker_died", "setup_failed") for event in events), events
