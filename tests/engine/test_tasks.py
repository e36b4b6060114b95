"""Tasks: named, counted while they run, and taken apart when they kill."""

import json
import os
import signal
import time

import pytest
from gristmill_testing.watching import count_and_sign, wait_for_file

import gristmill as gm
from gristmill.engine import progress
from gristmill.engine.observer import Observer, WorkerUse
from gristmill.engine.tasks import NOT_READY, Stopwatch, Task, Unfinished, run_tasks
from gristmill.engine.worker import job as job_runner

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(300)]

every_backend = pytest.mark.parametrize("backend", ["serial", "threads", "processes"])


def tasks(*payloads):
    return [Task(f"task-{number}", payload) for number, payload in enumerate(payloads)]


@every_backend
def test_each_task_comes_back_with_its_result(backend):
    given = tasks(3, 4, 5)
    done = dict(run_tasks(lambda task, context: task.payload**2, given, workers=2, backend=backend))
    assert done == {given[0]: 9, given[1]: 16, given[2]: 25}


def test_several_tasks_in_a_message():
    """One that kills its workers is found as if it had come alone, and all others have their results."""

    def function(task, context):
        if task.payload == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return task.payload

    def replace_task(task, failure, position):
        yield task
        return Task(task.id, -1)

    results = run_tasks(
        function, tasks(*range(9)), workers=2, tasks_per_message=3, on_poison=replace_task, progress=False
    )
    assert sorted(result for _, result in results) == [-1, 0, 1, 2, 3, 5, 6, 7, 8]


@every_backend
def test_an_unfinished_task_ends_when_what_it_left_under_way_has_ended(backend, tmp_path):
    def function(task, context):
        return Unfinished(task.payload, (tmp_path / f"{task.payload}").touch)

    for task, result in run_tasks(function, tasks(0, 1, 2), workers=1, backend=backend):
        assert result == task.payload
        assert (tmp_path / f"{result}").exists()
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("tasks_per_message", [1, 2])
def test_a_process_runs_the_next_task_while_one_is_finishing(tasks_per_message, tmp_path):
    """The first task ends only when the second has begun, in the same worker; the third waits for the first."""

    def function(task, context):
        (tmp_path / f"begun-{task.payload}").touch()
        if task.payload == 2:
            context.wait_for_last_task()
            assert (tmp_path / "finished-1").exists()
        return Unfinished(task.payload, lambda: finish(task.payload))

    def finish(number):
        if number == 0:
            wait_for_file(tmp_path / "begun-1")
        (tmp_path / f"finished-{number}").touch()

    results = run_tasks(function, tasks(0, 1, 2), workers=1, tasks_per_message=tasks_per_message, progress=False)
    assert [result for _, result in results] == [0, 1, 2]


def test_an_error_while_finishing_is_one_of_the_task(tmp_path):
    """It uses up a retry; what the task had counted is counted once."""

    def function(task, context):
        context.count(records=1)
        return Unfinished(task.payload, lambda: finish(task.payload))

    def finish(number):
        if number == 1 and count_and_sign(tmp_path, "finish") == 0:
            raise OSError("the store did not answer")

    stopwatch = Stopwatch()
    results = run_tasks(function, tasks(0, 1, 2), workers=1, stopwatch=stopwatch, progress=False)
    assert sorted(result for _, result in results) == [0, 1, 2]
    assert stopwatch.counts == {"records": 3}
    with pytest.raises(OSError, match="never"):
        list(run_tasks(lambda task, context: Unfinished(1, fail), tasks(0), workers=1, retries=1, progress=False))


def fail():
    raise OSError("it never answers")


def test_a_death_while_a_task_is_finishing_blames_the_one_that_runs(tmp_path):
    """The one that was finishing has no result yet: it runs again, beside others, and its death is not counted."""
    log = tmp_path / "events.jsonl"

    def function(task, context):
        count = count_and_sign(tmp_path, f"run-{task.payload}")
        if task.payload == 1 and count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        waits = task.payload == 0 and count == 0
        return Unfinished(task.payload, lambda: wait_for_file(tmp_path / "never") if waits else None)

    results = run_tasks(function, tasks(0, 1, 2), workers=1, events=gm.EventLog(log), progress=False)
    assert sorted(result for _, result in results) == [0, 1, 2]
    [death] = [event for event in map(json.loads, log.read_text().splitlines()) if event["event"] == "worker_died"]
    assert death["item"] == 1
    assert [count_and_sign(tmp_path, f"run-{number}") for number in range(3)] == [2, 2, 1]


@pytest.mark.parametrize("is_unfinished", [False, True])
def test_waiting_for_the_task_before_is_not_the_time_of_a_task(is_unfinished):
    """The upload of the first task ends only when no time passes for the second, which waits for it."""

    def function(task, context):
        if task.payload == 0:
            return Unfinished(0, lambda: wait_until_paused(context._recorder))
        if is_unfinished:
            context.wait_for_last_task()
            assert context._recorder.read()[0] <= time.monotonic()
        return task.payload

    assert [result for _, result in run_tasks(function, tasks(0, 1), workers=1, progress=False)] == [0, 1]


def wait_until_paused(recorder):
    """Wait until item 1 has a clock that stands still, and not because its result is being sent."""
    deadline = time.monotonic() + 20
    while not (recorder.read()[1] == 1 and time.monotonic() + 1e9 < recorder.read()[0] < float("inf")):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_result_that_cannot_be_sent_after_finishing_does_not_hang(tmp_path):
    """As where memory is too short to pickle it: the worker ends, and the task runs again."""

    def function(task, context):
        if count_and_sign(tmp_path, "run") == 0:
            job_runner._pack_results = lambda *arguments, **options: fail()
        return Unfinished(7, lambda: None)

    assert [result for _, result in run_tasks(function, tasks(0), workers=1, progress=False)] == [7]
    assert count_and_sign(tmp_path, "run") == 2


def test_a_worker_that_is_finishing_is_stopped_only_afterwards(tmp_path):
    """Each worker runs one item, and then leaves."""
    results = gm.parallel_map(
        lambda number: Unfinished(number, (tmp_path / f"{number}").touch),
        range(4),
        workers=2,
        max_items_per_worker=1,
        progress=False,
    )
    assert results == [0, 1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 4


@every_backend
def test_nothing_to_do(backend):
    assert list(run_tasks(lambda task, context: 1, [], workers=2, backend=backend)) == []


@every_backend
def test_state_of_the_worker_is_in_the_context(backend):
    results = run_tasks(
        lambda task, context: context.state["value"] + task.payload,
        tasks(1, 2),
        workers=1,
        backend=backend,
        setup=lambda: {"value": 10},
    )
    assert sorted(result for _, result in results) == [11, 12]


@every_backend
def test_without_set_up_there_is_no_state(backend):
    ((_, state),) = run_tasks(lambda task, context: context.state, tasks(1), workers=1, backend=backend)
    assert state is None


@every_backend
def test_tasks_are_tried_three_times(backend, folder):
    def function(task, context):
        if task.payload == "bad":
            count_and_sign(folder, "try")
            raise ValueError("always")
        return task.payload

    with pytest.raises(ValueError, match="always") as caught:
        list(run_tasks(function, tasks("good", "bad"), workers=1, backend=backend))
    assert len(list(folder.iterdir())) == 3
    assert "task-1" in "\n".join(caught.value.__notes__)


@every_backend
def test_task_that_succeeds_at_last(backend, folder):
    def function(task, context):
        if count_and_sign(folder, "try") < 2:
            raise ValueError
        return "done"

    assert [result for _, result in run_tasks(function, tasks(0), workers=1, backend=backend)] == ["done"]


def test_what_was_yielded_before_a_failure_stays_done():
    def function(task, context):
        if task.payload == 2:
            raise ValueError("stop")
        return task.payload

    done = []
    with pytest.raises(ValueError, match="stop"):
        done.extend(run_tasks(function, tasks(0, 1, 2, 3), workers=1, retries=0))
    assert [(task.id, result) for task, result in done[:2]] == [("task-0", 0), ("task-1", 1)]


def test_full_disk_stops_at_once(folder):
    def function(task, context):
        count_and_sign(folder, "try")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        list(run_tasks(function, tasks(0), workers=1))
    assert len(list(folder.iterdir())) == 1
    assert "task-0" in "\n".join(caught.value.__notes__)


def test_endless_tasks():
    def endless():
        number = 0
        while True:
            yield Task(str(number), number)
            number += 1

    results = run_tasks(lambda task, context: task.payload, endless(), workers=2)
    assert len({next(results)[1] for _ in range(50)}) == 50
    results.close()


@every_backend
def test_counters_arrive(backend, tmp_path):
    log = gm.EventLog(tmp_path / "events.jsonl")

    def function(task, context):
        for _ in range(10):
            context.count(records=1, bytes=task.payload)
        context.count(tokens=5)

    list(run_tasks(function, tasks(1, 2, 3), workers=2, backend=backend, events=log))
    end = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert (end["counts"]["records"], end["counts"]["bytes"], end["counts"]["tokens"]) == (30, 60, 15)


@every_backend
def test_counters_may_have_any_name(backend, tmp_path):
    log = gm.EventLog(tmp_path / "events.jsonl")
    names = ["done", "failed", "seconds", "deaths", "event", "time", "job"]

    def function(task, context):
        context.count(**dict.fromkeys(names, 1))
        return "done"

    assert [result for _, result in run_tasks(function, tasks(1), workers=1, backend=backend, events=log)] == ["done"]


def test_counters_arrive_while_the_task_runs(folder, monkeypatch):
    """The task continues to count until the counters are seen outside."""

    class Display:
        seconds_between = 0.02

        def show(self, observer, pool):
            if observer.counts.get("records", 0) > 0:
                (folder / "seen").touch()

        def close(self, observer):
            pass

    monkeypatch.setattr(progress, "choose_display", lambda **_: Display())

    def function(task, context):
        deadline = time.monotonic() + 30
        while not (folder / "seen").exists():
            context.count(records=1)
            time.sleep(0.01)
            assert time.monotonic() < deadline, "nobody saw the counts"
        return "seen"

    assert [result for _, result in run_tasks(function, tasks(0), workers=1)] == ["seen"]


def test_counting_costs_few_messages(tmp_path):
    """A hundred thousand counts make a few messages, and all arrive."""
    log = gm.EventLog(tmp_path / "events.jsonl")

    def function(task, context):
        for _ in range(100_000):
            context.count(records=1)

    list(run_tasks(function, tasks(0, 1), workers=2, events=log))
    end = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert end["counts"]["records"] == 200_000


def test_nothing_is_counted_twice_after_a_death(tmp_path, folder):
    """What a task had counted when its worker died is taken back; what trials count never stands."""
    log = gm.EventLog(tmp_path / "events.jsonl")

    def function(task, context):
        for number, record in enumerate(task.payload):
            context.at(number)
            context.count(records=1)
            context.flush()
            if record == "poison":
                os._exit(3)
            if record == "raise once" and count_and_sign(folder, "raised") == 0:
                raise ValueError(record)
        return len(task.payload)

    def on_poison(task, failure, position):
        yield Task("trial", task.payload[:position])
        return Task(task.id, task.payload[:position] + task.payload[position + 1 :])

    given = [Task("a", ["x", "y", "poison", "z"]), Task("b", ["x", "raise once", "y"])]
    assert sorted(result for _, result in run_tasks(function, given, workers=2, on_poison=on_poison, events=log)) == [
        3,
        3,
    ]
    end = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert end["counts"] == {"records": 6}


def bisecting(calls):
    """As the pipeline does it: halves, each run alone, until one record is left; then all without it."""

    def on_poison(task, failure, position):
        calls.append((task.id, failure.kind, position))
        suspects = list(task.payload)
        while len(suspects) > 1:
            half = suspects[: len(suspects) // 2]
            outcome = yield Task(f"{task.id}?", half)
            suspects = half if isinstance(outcome, gm.Failure) else suspects[len(suspects) // 2 :]
        return Task(task.id, [record for record in task.payload if record != suspects[0]])

    return on_poison


def test_poison_record_is_found_among_a_thousand():
    """One record of 1,000 kills its worker. It is found, and the task runs whole without it; others are not touched."""

    def function(task, context):
        for number, record in enumerate(task.payload):
            context.at(number)
            if record == 617:
                os.kill(os.getpid(), signal.SIGKILL)
        return sum(task.payload)

    calls = []
    given = [Task("before", [1, 2]), Task("poisoned", list(range(1000))), Task("after", [3, 4])]
    done = {task.id: result for task, result in run_tasks(function, given, workers=2, on_poison=bisecting(calls))}
    assert done == {"before": 3, "poisoned": sum(range(1000)) - 617, "after": 7}
    assert calls == [("poisoned", "worker_died", 617)]


def test_position_leads_straight_to_the_record():
    """With positions no search is needed."""

    def function(task, context):
        for number, record in enumerate(task.payload):
            context.at(number)
            if record == "poison":
                os._exit(3)
        return task.payload

    def on_poison(task, failure, position):
        return Task(task.id, task.payload[:position] + task.payload[position + 1 :])
        yield

    ((_, result),) = run_tasks(function, [Task("a", ["x", "poison", "y"])], workers=1, on_poison=on_poison)
    assert result == ["x", "y"]


def test_late_record_is_found_by_its_position(folder):
    """The timeout is a record's: a long task of quick records is not late, one slow record is."""

    def function(task, context):
        for number, record in enumerate(task.payload):
            context.at(number)
            time.sleep(3600 if record == "slow" else 0.1)
        return task.payload

    kinds = []

    def on_poison(task, failure, position):
        kinds.append((failure.kind, position))
        return Task(task.id, task.payload[:position] + task.payload[position + 1 :])
        yield

    payload = ["quick"] * 12 + ["slow"] + ["quick"] * 2
    ((_, result),) = run_tasks(function, [Task("a", payload)], workers=1, timeout=0.8, on_poison=on_poison)
    assert result == ["quick"] * 14
    assert kinds == [("timeout", 12)]


def test_task_of_many_quick_records_is_never_late():
    """Its positions are read while it writes them, thousands of times: none of these reads may look like a late one.

    The other tasks only make the parent look often.
    """

    def function(task, context):
        if task.payload == 0:
            end = time.monotonic() + 4
            position = 0
            while time.monotonic() < end:
                context.at(position)
                position += 1
        return task.payload

    results = run_tasks(function, tasks(*range(10_000)), workers=2, timeout=1.5, retries=0)
    assert sorted(result for _, result in results) == list(range(10_000))


def test_probe_that_gives_up_lets_the_task_fail():
    def function(task, context):
        os._exit(3)

    def on_poison(task, failure, position):
        return None
        yield

    with pytest.raises(gm.errors.WorkerDiedError) as caught:
        list(run_tasks(function, tasks("x"), workers=1, on_poison=on_poison))
    assert "task-0" in "\n".join(caught.value.__notes__)


def test_probe_is_told_results_and_failures():
    """Halves that pass give their results, those that raise and those that die their failures."""

    def function(task, context):
        if task.payload == "raise":
            raise ValueError("probe")
        if task.payload == "fine":
            return "result"
        os._exit(3)

    told = []

    def on_poison(task, failure, position):
        told.append((yield Task("p", "fine")))
        told.append((yield Task("p", "raise")))
        told.append((yield Task("p", "die")))
        return Task(task.id, "fine")

    ((task, result),) = run_tasks(function, [Task("a", "die")], workers=1, on_poison=on_poison)
    assert (task, result) == (Task("a", "die"), "result")
    assert told[0] == "result"
    assert [failure.kind for failure in told[1:]] == ["exception", "worker_died"]


def test_two_poisons_in_one_task():
    """After the first has been taken out the second is found in the same way."""

    def function(task, context):
        for number, record in enumerate(task.payload):
            context.at(number)
            if record in (3, 11):
                os._exit(3)
        return task.payload

    calls = []
    ((_, result),) = run_tasks(function, [Task("a", list(range(16)))], workers=1, on_poison=bisecting(calls))
    assert result == [n for n in range(16) if n not in (3, 11)]
    assert len(calls) == 2


def test_on_poison_that_gives_no_generator_loses_nothing():
    """A hook written wrongly must not make a task vanish without a word."""

    def function(task, context):
        if task.payload == "bad":
            os._exit(3)
        return task.payload

    with pytest.raises(BaseException):  # noqa: B017, PT011
        list(run_tasks(function, tasks("good", "bad"), workers=1, on_poison=lambda *_: None))


def test_on_poison_that_raises_is_the_callers_error():
    def function(task, context):
        os._exit(3)

    def on_poison(task, failure, position):
        raise RuntimeError("in the hook")
        yield

    with pytest.raises(RuntimeError, match="in the hook"):
        list(run_tasks(function, tasks("bad"), workers=1, on_poison=on_poison))


def test_killed_task_is_run_again_by_another_worker(folder):
    def function(task, context):
        if task.payload == 0 and count_and_sign(folder, "try") == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return task.payload

    assert sorted(result for _, result in run_tasks(function, tasks(0, 1), workers=2, retries=0)) == [0, 1]


def test_tasks_may_share_an_id_and_payloads_may_be_unhashable():
    given = [Task("same", [1]), Task("same", [2])]
    results = [(task.payload, result) for task, result in run_tasks(lambda t, c: t.payload[0], given, workers=2)]
    assert sorted(results) == [([1], 1), ([2], 2)]


def test_slow_tasks_run_side_by_side(folder):
    """One task at a time to a worker: none waits behind another while a worker is free."""

    def function(task, context):
        if task.payload < 6:
            return task.payload
        (folder / f"started-{task.payload}").touch()
        wait_for_file(folder / f"started-{13 - task.payload}", seconds=20)  # 6 waits for 7, and 7 for 6
        return task.payload

    results = [result for _, result in run_tasks(function, tasks(*range(8)), workers=2, retries=0)]
    assert sorted(results) == list(range(8))


def test_a_task_that_waited_for_a_result_starts_as_soon_as_the_caller_has_it(monkeypatch):
    """The input is asked again at once, not at the next tick: nothing else would end the wait."""

    def fail(seconds):
        raise AssertionError(f"slept {seconds} s while a task was ready")

    monkeypatch.setattr("gristmill.engine.backends.in_process.time.sleep", fail)
    results = []

    def linked_tasks():
        yield Task("first", 1)
        while not results:
            yield NOT_READY
        yield Task("second", results[0] + 1)
        while len(results) < 2:
            yield NOT_READY

    for _, result in run_tasks(
        lambda task, context: task.payload * 10, linked_tasks(), backend="serial", progress=False
    ):
        results.append(result)
    assert results == [10, 110]


def test_cpu_time_of_workers_on_other_machines_is_that_of_each_job():
    stopwatch = Stopwatch()
    names = ("actor 1 (far, process 9)", "actor 2 (far, process 10)")
    for cpu_seconds in (5.0, 7.5):
        observer = Observer("job", 1, None, None)
        observer.workers = [WorkerUse(name, 0, 1, cpu_seconds, 100, "n1", "far") for name in names]
        stopwatch.add(observer)
    assert [[worker.cpu_seconds for worker in job.workers] for job in stopwatch.jobs] == [[5.0, 5.0], [2.5, 2.5]]


class Looks:
    """A watch that notes the counts of every look, and raises at one of them."""

    seconds_between = 0.0

    def __init__(self, error_at=None):
        self.counts, self._error_at = [], error_at

    def look(self, observer, workers):
        self.counts.append((observer.num_done, observer.counts.get("bytes", 0)))
        if len(self.counts) == self._error_at:
            raise LookupError("seen enough")

    def end_job(self, observer):
        pass


def count_slowly(task, context):
    for _ in range(4):
        context.count(bytes=1)
    return task.id


def test_progress_moves_inside_a_task_of_this_thread(monkeypatch):
    monkeypatch.setattr("gristmill.engine.worker.job._COUNTS_SECONDS", -1.0)
    looks = Looks()
    [(_, result)] = run_tasks(
        count_slowly, [Task("one", 0)], backend="serial", num_bytes=4, progress=False, watch=looks
    )
    assert result == "one"
    assert [bytes_ for done, bytes_ in looks.counts if not done and bytes_] == [1, 2, 3, 4]


def test_a_watch_that_raises_inside_a_task_ends_the_job(monkeypatch):
    monkeypatch.setattr("gristmill.engine.worker.job._COUNTS_SECONDS", -1.0)
    tasks = [Task(name, 0) for name in "ab"]
    runs = []

    def run(task, context):
        runs.append(task.id)
        return count_slowly(task, context)

    looks = Looks(error_at=3)
    with pytest.raises(LookupError, match="seen enough"):
        list(run_tasks(run, tasks, backend="serial", progress=False, watch=looks))
    assert runs == ["a"]  # no second try: the error is not the task's
