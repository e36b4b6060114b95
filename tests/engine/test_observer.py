"""The event log: one JSON object a line, for every start, death, retry, failure and the end."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from gristmill_testing.watching import count_and_sign, open_files

import gristmill as gm
from gristmill.core.errors import UsageError

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def read(path):
    text = path.read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def names(path):
    return [event["event"] for event in read(path)]


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_quiet_job(path, backend):
    before = time.time()
    gm.parallel_map(abs, [-1, -2], workers=1, backend=backend, desc="my job", progress=gm.EventLog(path))
    events = read(path)
    assert [event["event"] for event in events] == ["job_started", "worker_started", "worker_ready", "job_ended"]
    assert events[0]["job"] == "my job"
    assert events[0]["total"] == 2
    assert (events[-1]["done"], events[-1]["failed"], events[-1]["deaths"]) == (2, 0, 0)
    times = [event["time"] for event in events]
    assert times == sorted(times)
    assert before - 1 <= times[0] <= times[-1] <= time.time() + 1


def test_retries_and_failures(path, folder):
    def function(n):
        if n == 1:
            count_and_sign(folder, "try")
            raise ValueError("bad")
        return n

    log = gm.EventLog(path)
    gm.parallel_map(function, range(3), workers=1, retries=2, on_error="skip", progress=log)
    events = read(path)
    retried = [event for event in events if event["event"] == "item_retried"]
    assert [event["item"] for event in retried] == [1, 1]
    (failed,) = [event for event in events if event["event"] == "item_failed"]
    assert (failed["item"], failed["kind"], failed["error"], failed["message"]) == (1, "exception", "ValueError", "bad")
    assert failed["attempts"] == 3
    assert (events[-1]["done"], events[-1]["failed"]) == (3, 1)


def test_starts_and_deaths_balance(path):
    def function(n):
        if n == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    gm.parallel_map(function, range(5), workers=2, on_error="skip", progress=gm.EventLog(path))
    events = read(path)
    ready = {event["worker"] for event in events if event["event"] == "worker_ready"}
    died = {event["worker"] for event in events if event["event"] == "worker_died"}
    assert len(died) == 6
    assert died <= ready
    assert [event["item"] for event in events if event["event"] == "isolated_run"] == [2, 2, 2]
    starts = [event for event in events if event["event"] in ("worker_started", "isolated_run")]
    assert {event["worker"] for event in starts} >= ready, "every worker that became ready was seen to start"


@pytest.mark.parametrize("how", ["raise", "close", "forget"])
def test_end_is_written_however_it_comes(path, how):
    log = gm.EventLog(path)
    if how == "raise":
        with pytest.raises(ZeroDivisionError):
            gm.parallel_map(lambda n: 1 / n, [1, 0], workers=1, progress=log)
    else:
        results = gm.parallel_imap(lambda n: n, range(1000), workers=1, progress=log)
        next(results)
        results.close() if how == "close" else None
        del results
    assert names(path)[-1] == "job_ended"
    assert names(path).count("job_ended") == 1


def test_file_is_closed_and_may_be_used_again(path):
    before = open_files()
    log = gm.EventLog(path)
    for _ in range(2):
        gm.parallel_map(abs, [1], backend="serial", progress=log)
        assert open_files() == before
    assert names(path).count("job_ended") == 2


def test_earlier_lines_are_kept(path):
    path.write_text('{"event": "mine"}\n')
    gm.parallel_map(abs, [1], backend="serial", progress=gm.EventLog(path))
    assert names(path)[0] == "mine"
    assert len(names(path)) == 5


def test_file_that_cannot_be_opened_is_wrong_use(tmp_path):
    """Said before any work is done."""
    taken = []
    with pytest.raises(gm.errors.UsageError, match="nowhere"):
        gm.parallel_map(taken.append, [1], backend="serial", progress=gm.EventLog(tmp_path / "nowhere" / "log.jsonl"))
    assert taken == []


def test_any_message_can_be_written(path):
    """Also halves of letters, as in names of files that are not UTF-8."""
    messages = ['quote " and \\', "two\nlines", "\u2028", "\x00", "caf\udce9", "日本語", "\U0001f600"]

    def function(message):
        raise ValueError(message)

    gm.parallel_map(function, messages, workers=1, on_error="return", progress=gm.EventLog(path), desc="caf\udce9")
    failed = [event for event in read(path) if event["event"] == "item_failed"]
    assert len(failed) == len(messages)
    assert failed[0]["message"] == messages[0]
    assert failed[5]["message"] == messages[5]


def test_lines_are_whole_when_two_jobs_share_a_file(path):
    def job(k):
        gm.parallel_map(
            lambda n: 1 / 0, range(30), backend="threads", workers=2, on_error="skip", progress=gm.EventLog(path)
        )

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(job, range(3)))
    assert names(path).count("item_failed") == 90
    assert names(path).count("job_ended") == 3


def test_path_may_be_a_string(path):
    gm.parallel_map(abs, [1], backend="serial", progress=gm.EventLog(str(path)))
    assert names(path)[-1] == "job_ended"


def test_another_file_is_left_alone(path):
    manifest = '{\n  "kind": "tokens"\n}\n'
    path.write_text(manifest)
    with pytest.raises(UsageError, match="is not a log of events"):
        gm.parallel_map(abs, [-1], backend="serial", progress=gm.EventLog(path))
    assert path.read_text() == manifest
