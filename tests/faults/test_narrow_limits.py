"""Machines that are short of things: file descriptors, standard streams, room on the command line."""

import json
import os
import subprocess
import sys

import pytest
from gristmill_testing import scripts

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_too_few_file_descriptors_mean_fewer_workers(project):
    script = scripts.write(
        project / "script.py",
        """
        import json, os, resource, time, warnings
        warnings.simplefilter("error")
        import psutil
        import gristmill as gm

        gm.parallel_map(abs, range(3), workers=1)  # what is imported lazily has been
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
        before = len(os.listdir("/proc/self/fd"))

        def function(n):
            time.sleep(0.01)
            return n

        results = gm.parallel_map(function, range(200), workers=30, chunk_size=1, progress=False)
        after = len(os.listdir("/proc/self/fd"))
        print(json.dumps([results == list(range(200)), after - before, len(psutil.Process().children())]))
        """,
    )
    process = scripts.run(script)
    assert process.returncode == 0, process.stderr
    complete, num_leaked, num_children = json.loads(process.stdout)
    assert complete
    assert num_leaked == 0, "file descriptors leaked where a start had failed"
    assert num_children == 0
    assert scripts.count_tracebacks(process.stderr) == 0, process.stderr


@pytest.mark.full
def test_no_file_descriptors_at_all_is_an_error(project):
    script = scripts.write(
        project / "script.py",
        """
        import os, resource
        import gristmill as gm

        gm.parallel_map(abs, range(3), workers=1)
        fds = os.listdir("/proc/self/fd")
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(fds) + 1, len(fds) + 1))
        try:
            gm.parallel_map(abs, range(3), workers=2)
        except OSError as error:
            print(error.strerror)
        """,
    )
    process = scripts.run(script)
    assert process.stdout == "Too many open files\n", process.stderr


CLOSED = {"stdin": "<&-", "stdout": ">&-", "stderr": "2>&-", "all": "<&- >&- 2>&-"}


@pytest.mark.parametrize("which", CLOSED)
def test_closed_standard_streams(project, which):
    """As under some daemons: the next file opened would get number 0, 1 or 2."""
    script = scripts.write(
        project / "script.py",
        """
        import os
        import gristmill as gm

        def function(n):
            if n == 3:
                os.kill(os.getpid(), 9)
            return n

        try:
            results = gm.parallel_map(function, range(6), workers=2, on_error="skip")
        except BaseException as error:
            results = repr(error)
        with open("results", "w") as file:
            file.write(repr(results))
        """,
    )
    subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" "$1" {CLOSED[which]}', sys.executable, script],
        cwd=project,
        timeout=240,
        stderr=subprocess.DEVNULL,
    )
    assert (project / "results").read_text() == "[0, 1, 2, 4, 5]"


@pytest.mark.full
def test_long_module_path(project):
    """Build systems make paths of thousands of entries; one argument of a program may have 128 KiB."""
    script = scripts.write(
        project / "script.py",
        """
        import sys
        import gristmill as gm

        sys.path += [f"/nowhere/{number:0200d}" for number in range(1000)]
        print(gm.parallel_map(lambda n: len(sys.path), range(2), workers=1) == [len(sys.path)] * 2)
        """,
    )
    process = scripts.run(script)
    assert process.stdout == "True\n", process.stderr


@pytest.mark.full
def test_vanished_current_folder(project):
    """The folder in which the program was started has been deleted."""
    script = scripts.write(
        project / "script.py",
        """
        import os
        import gristmill as gm

        os.mkdir("gone")
        os.chdir("gone")
        os.rmdir("../gone")
        print(gm.parallel_map(abs, [-1, -2], workers=2))
        """,
    )
    process = scripts.run(script, cwd=project)
    assert process.stdout == "[1, 2]\n", process.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_event_log_on_a_full_disk_does_not_lose_the_job(project):
    """The log is a service; the results are the job."""
    script = scripts.write(
        project / "script.py",
        """
        import gristmill as gm

        print(gm.parallel_map(abs, [-1, -2], workers=1, progress=gm.EventLog("/dev/full")))
        """,
    )
    process = scripts.run(script)
    assert process.stdout == "[1, 2]\n" or "No space left" in process.stderr


@pytest.mark.full
def test_strict_interpreter_sees_no_warning(project):
    """Development mode with warnings as errors, in the program and so in its workers, with deaths and all."""
    script = scripts.write(
        project / "script.py",
        """
        import itertools, logging, os
        import gristmill as gm

        logging.disable()

        def function(n):
            if n == 3:
                os.kill(os.getpid(), 9)
            return n

        assert gm.parallel_map(function, range(6), workers=2, on_error="skip", progress=False) == [0, 1, 2, 4, 5]
        results = gm.parallel_imap(abs, itertools.count(), workers=2)
        next(results)
        del results
        results = gm.parallel_imap(abs, itertools.count(), workers=2, backend="threads")
        next(results)
        results.close()
        """,
    )
    process = scripts.run("-X", "dev", "-W", "error", script)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
