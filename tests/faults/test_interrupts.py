"""Ctrl-C, SIGTERM and kill -9 of the parent: everything ends, soon, and nothing is left."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from gristmill_testing import scripts
from gristmill_testing.watching import is_alive, marked_processes, wait_for_file, wait_for_files, wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")

GONE_SECONDS = 2.0
"""The specification: when the parent is killed, its workers are gone within two seconds."""

JOB = """
    import os, random, sys, time
    import gristmill as gm
    gm.parallel_map, gm.Failure

    def function(n):
        time.sleep(random.random() / 50)
        if n % 40 == 39:
            os.kill(os.getpid(), 9)  # replacements are being started too
        return bytes(200_000)

    open("started", "w").close()
    options = dict(workers=3, backend={backend!r}, on_error="skip", progress=False)
    for _ in gm.parallel_imap(function, range(100_000), **options):
        pass
"""
MOMENTS = [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.6, 0.9]
"""Seconds after the job's start, from before the first worker is up to well into the work."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_interrupt_at_any_moment(project, nothing_left, moment):
    script = scripts.write(project / "script.py", JOB.format(backend="processes"))
    with scripts.running(script, folder=project, cwd=project) as process:
        wait_for_file(project / "started")
        time.sleep(moment + random.random() / 50)  # not a wait for something: the moment is what is tested
        scripts.interrupt(process)
        code = process.wait(240)
    text = (project / "stderr").read_text()
    assert code in (-signal.SIGINT, 130), text
    assert scripts.count_tracebacks(text) <= 1, text
    assert "Exception ignored" not in text
    wait_until(lambda: not marked_processes(nothing_left), "the end of all workers", GONE_SECONDS)


LINES = """
    import faulthandler, os, signal, sys
    import gristmill as gm

    def function(n):
        if n == 4:
            os.kill(os.getpid(), 9)
        return n

    def run():
        list(gm.parallel_imap(function, range(8), workers=2, backend="processes", on_error="skip", progress=False))

    def trace(stops):
        counts = {}
        def tracer(frame, event, _):
            place = frame.f_code.co_filename, frame.f_lineno
            function_name = f"{place[0]}:{frame.f_code.co_name}"
            if event == "line" and any(name in function_name for name in NAMES):
                counts[place] = counts.get(place, 0) + 1
                if stops(place):
                    sys.settrace(None)
                    signal.raise_signal(signal.SIGINT)
            return tracer
        sys.settrace(tracer)
        try:
            run()
        finally:
            sys.settrace(None)
        return counts

    NAMES = sys.argv[1].split(",")
    run()  # imports
    places = sorted(trace(lambda place: False))
    assert places
    for place in places:
        if not (child := os.fork()):
            os.setsid()
            os.dup2(os.open("stderr-of-one", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            faulthandler.dump_traceback_later(120, exit=True)
            try:
                trace(lambda other: other == place)
                os._exit(0)  # this time it did not come there
            except KeyboardInterrupt:
                os._exit(130)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with open("stderr-of-one") as file:
            text = file.read()
        if code not in (0, 130) or "Exception ignored" in text:
            print(*place, code, text)
    print(len(places), "places")
"""


@pytest.mark.parametrize(
    "names",
    [
        "processes.py:_remove,worker_process.py:reap,selectors.py:unregister,subprocess.py:__del__",
        pytest.param("/engine/backends/,/selectors.py,/subprocess.py,/wire.py,/recorder.py", marks=pytest.mark.full),
        pytest.param("/engine/worker_,/scheduler.py,/job_workers.py,/failures.py", marks=pytest.mark.full),
    ],
)
@pytest.mark.every_case
def test_interrupt_at_any_line(project, names):
    """While a worker starts, runs, dies and is replaced; as a destructor runs, too, where Python drops exceptions."""
    done = scripts.run(scripts.write(project / "script.py", LINES), names, cwd=project)
    assert done.returncode == 0, done.stderr
    *lost, count = done.stdout.splitlines()
    assert lost == []
    assert int(count.split()[0]) > 20


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_interrupt_in_other_backends(project, backend):
    source = JOB.format(backend=backend).replace("os.kill(os.getpid(), 9)", "raise ValueError(n)")
    script = scripts.write(project / "script.py", source)
    with scripts.running(script, folder=project, cwd=project) as process:
        wait_for_file(project / "started")
        time.sleep(0.2 + random.random() / 5)
        scripts.interrupt(process)
        code = process.wait(240)
    text = (project / "stderr").read_text()
    assert code in (-signal.SIGINT, 130), text
    assert scripts.count_tracebacks(text) <= 1, text


@pytest.mark.full
def test_impatient_interrupts(project, nothing_left):
    """Ctrl-C five times in a row."""
    script = scripts.write(project / "script.py", JOB.format(backend="processes"))
    with scripts.running(script, folder=project, cwd=project) as process:
        wait_for_file(project / "started")
        time.sleep(random.random() / 2)
        for _ in range(5):
            scripts.interrupt(process)
            time.sleep(random.random() / 50)
        code = process.wait(240)
    assert code in (-signal.SIGINT, 130)
    wait_until(lambda: not marked_processes(nothing_left), "the end of all workers", GONE_SECONDS)


@pytest.mark.full
def test_interrupt_while_workers_hold_the_interpreter(project, nothing_left):
    """Workers that can run nothing else, and have started processes of their own."""
    script = scripts.write(project / "script.py", STUCK)
    with scripts.running(script, "interpreter", folder=project, cwd=project) as process:
        wait_for_files(project, 2, "stuck-*")
        scripts.interrupt(process)
        code = process.wait(240)
    assert code in (-signal.SIGINT, 130)
    wait_until(lambda: not marked_processes(nothing_left), "the end of all workers", GONE_SECONDS)


@pytest.mark.full
def test_interrupted_call_can_be_survived(project):
    """A program that catches it, as notebooks do, goes on, and its next call works."""
    script = scripts.write(
        project / "script.py",
        """
        import os, time
        import psutil
        import gristmill as gm

        def function(n):
            if n == 5:
                open("started", "w").close()
                time.sleep(3600)
            return n

        files = len(os.listdir("/proc/self/fd"))
        try:
            gm.parallel_map(function, range(10), workers=2, progress=False)
        except KeyboardInterrupt:
            print("interrupted", len(psutil.Process().children()), len(os.listdir("/proc/self/fd")) - files)
        print(gm.parallel_map(abs, [-1, -2], workers=2))
        """,
    )
    with scripts.running(script, folder=project, cwd=project) as process:
        wait_for_file(project / "started")
        scripts.interrupt(process)
        assert process.wait(240) == 0, (project / "stderr").read_text()
    assert scripts.lines_of(project / "stdout") == ["interrupted 0 0", "[1, 2]"]
    assert (project / "stderr").read_text() == ""


STUCK = """
    import os, re, subprocess, sys, time
    import gristmill as gm

    def function(n):
        child = subprocess.Popen(["sleep", "3600"])
        with open(f"new-{n}", "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        os.rename(f"new-{n}", f"stuck-{n}")
        if sys.argv[1] == "interpreter":
            re.match(r"(a+)+$", "a" * 64 + "b")
        elif sys.argv[1] == "send":
            return bytes(100 << 20)
        else:
            time.sleep(3600)

    def setup():
        if sys.argv[1] == "setup":
            function(os.getpid())

    results = gm.parallel_imap(lambda n, _: function(n), range(2), workers=2, chunk_size=1, setup=setup)
    next(results)
    time.sleep(3600)  # with results that nobody reads
"""


@pytest.mark.parametrize(
    ("how", "number"),
    [(how, signal.SIGKILL) for how in ("interpreter", "sleep", "send", "setup")]
    + [("interpreter", number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)],
)
def test_workers_and_their_children_die_with_the_parent(project, nothing_left, how, number):
    script = scripts.write(project / "script.py", STUCK)
    with scripts.running(script, how, folder=project, cwd=project) as process:
        names = wait_for_files(project, 2, "stuck-*")
        pids = [int(pid) for name in names for pid in (project / name).read_text().split()]
        assert len(pids) == 4
        assert all(is_alive(pid) for pid in pids) or how == "send"
        process.send_signal(number)
        assert process.wait(240) == -number
        wait_until(lambda: not any(map(is_alive, pids)), f"the end of {pids}", GONE_SECONDS)
        wait_until(lambda: not marked_processes(nothing_left), "the end of all", GONE_SECONDS)


@pytest.mark.full
@pytest.mark.parametrize("moment", [0.0, 0.01, 0.03, 0.06, 0.1, 0.2])
def test_parent_killed_while_workers_are_starting(project, nothing_left, moment):
    script = scripts.write(project / "script.py", JOB.format(backend="processes"))
    with scripts.running(script, folder=project, cwd=project) as process:
        wait_for_file(project / "started")
        time.sleep(moment)
        process.kill()
        process.wait(240)
        wait_until(lambda: not marked_processes(nothing_left), "the end of all", GONE_SECONDS)


@pytest.mark.full
def test_parent_killed_though_a_fork_of_it_lives(project, nothing_left):
    """The user's program has forked: the child holds copies of all its descriptors, so there is no end of file."""
    script = scripts.write(
        project / "script.py",
        """
        import os, time
        import gristmill as gm

        def function(n):
            with open(f"new-{n}", "w") as file:
                file.write(str(os.getpid()))
            os.rename(f"new-{n}", f"stuck-{n}")
            time.sleep(3600)

        def items():
            yield 0
            if os.fork() == 0:
                with open("new-fork", "w") as file:
                    file.write(str(os.getpid()))
                os.rename("new-fork", "fork")
                time.sleep(3600)
            yield 1

        list(gm.parallel_imap(function, items(), workers=2, chunk_size=1))
        """,
    )
    with scripts.running(script, folder=project, cwd=project) as process:
        names = wait_for_files(project, 2, "stuck-*")
        wait_for_file(project / "fork")
        pids = [int((project / name).read_text()) for name in names]
        fork = int((project / "fork").read_text())
        try:
            process.kill()
            process.wait(240)
            wait_until(lambda: not any(map(is_alive, pids)), f"the end of workers {pids}", GONE_SECONDS)
            assert is_alive(fork), "the test would prove nothing"
        finally:
            os.kill(fork, signal.SIGKILL)


@pytest.mark.full
def test_nothing_is_printed_when_the_parent_is_killed(project, nothing_left):
    """No workers that complain about broken pipes."""
    script = scripts.write(project / "script.py", STUCK)
    with scripts.running(script, "send", folder=project, cwd=project) as process:
        wait_for_files(project, 2, "stuck-*")
        process.kill()
        process.wait(240)
        wait_until(lambda: not marked_processes(nothing_left), "the end of all", GONE_SECONDS)
    assert (project / "stderr").read_text() == ""


def test_interrupt_of_a_pipeline_in_a_shell(project):
    """`python script.py | head`: the reader goes away in the middle of a job."""
    script = scripts.write(
        project / "script.py",
        """
        import gristmill as gm
        for result in gm.parallel_imap(str, range(1_000_000), workers=2, progress=False):
            print(result)
        """,
    )
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "0\n"
    process.stdout.close()
    text = process.stderr.read()
    process.stderr.close()
    process.wait(240)
    assert "BrokenPipeError" in text
    assert scripts.count_tracebacks(text) <= 1
