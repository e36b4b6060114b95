"""What a person sees: bars on a terminal, a plain line elsewhere, workers when asked."""

import io
import os
import re

import pytest
from gristmill_testing import scripts
from gristmill_testing.watching import meet, wait_for_file, wait_until

import gristmill as gm
from gristmill.engine import progress
from gristmill.engine.observer import Observer

pytestmark = pytest.mark.usefixtures("nothing_left")


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def __call__(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr("gristmill.engine.observer.monotonic", clock)
    monkeypatch.setattr("gristmill.engine.progress.monotonic", clock)
    return clock


def shown_by(display, observer, capsys, pool=()):
    display.show(observer, pool)
    display.close(observer)
    return capsys.readouterr().err


def test_choice_of_the_display(monkeypatch):
    assert progress.choose_display(progress=False, monitor=False) is None
    assert isinstance(progress.choose_display(progress=True, monitor=False), progress.ProgressBars)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert isinstance(progress.choose_display(progress=None, monitor=False), progress.ProgressLines)
    monkeypatch.setattr("sys.stderr", _Terminal())
    assert isinstance(progress.choose_display(progress=None, monitor=False), progress.ProgressBars)


def test_no_standard_error_is_no_display(monkeypatch):
    """As under pythonw, or a daemon that closed it."""
    monkeypatch.setattr("sys.stderr", None)
    display = progress.choose_display(progress=None, monitor=False)
    if display is not None:
        observer = Observer("job", 10, display, None)
        display.show(observer, ())
        display.close(observer)


def test_plain_line(clock, capsys):
    observer = Observer("words", 10_000, None, None)
    observer.advance(1200)
    observer.num_failed = 3
    clock.now += 10
    line = shown_by(progress.ProgressLines(monitor=False), observer, capsys)
    for part in ("words", "1,200/10,000", "12%", "120/s", "1 min 13 s left", "3 failed"):
        assert part in line
    assert "\x1b" not in line


def test_plain_line_without_a_total(clock, capsys):
    observer = Observer("words", None, None, None)
    observer.advance(5)
    clock.now += 10
    line = shown_by(progress.ProgressLines(monitor=False), observer, capsys)
    assert "words: 5" in line
    assert "left" not in line
    assert "%" not in line


@pytest.mark.parametrize("total", [0, 1, None])
@pytest.mark.parametrize("done", [0, 1, 5])
@pytest.mark.parametrize("seconds", [0.0, 0.001, 1e7])
def test_no_numbers_break_the_line(clock, capsys, total, done, seconds):
    observer = Observer("words", total, None, None)
    observer.advance(done)
    clock.now += seconds
    assert "words" in progress.summarize(observer)


def test_counters_are_shown(clock, capsys):
    observer = Observer("words", 10, None, None)
    observer.count({"records": 12_000, "bytes": 7})
    observer.count({"records": 500})
    assert "12,500 records" in progress.summarize(observer)


def test_bytes_move_inside_items(clock, capsys):
    observer = Observer("stage 1", 2, None, None, num_bytes=1000)
    assert "starting workers" in progress.summarize(observer)
    observer.count({"bytes": 250, "records": 500})
    clock.now += 10
    line = progress.summarize(observer)
    for part in ("25%", "0.2/1.0 kB", "25 bytes/s", "30 s left", "500 records"):
        assert part in line


@pytest.mark.parametrize("num_columns", [50, 80, 200])
def test_a_narrow_terminal_shows_share_and_time_left_whole(clock, monkeypatch, num_columns):
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(num_columns))
    monkeypatch.setenv("TERM", "xterm")
    observer = Observer("running", 12, None, None, num_bytes=1000)
    observer.count({"bytes": 250, "records": 1_230_000})
    observer.num_deaths = 1
    clock.now += 10
    bars = progress.ProgressBars(monitor=False)
    bars.show(observer, [])
    bars.close(observer)
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).rstrip().replace("\r", "\n").splitlines()[-1]
    assert len(line) <= num_columns
    for part in ("running", "25%", "0.2/1.0 kB", "25 bytes/s", "30 s left"):
        assert part in line
    assert "…" not in line
    assert ("1,230,000 records" in line) == (num_columns >= 200)
    assert ("1 worker replaced" in line) == (num_columns >= 80)


def test_time_left_does_not_count_the_start_of_workers(clock):
    observer = Observer("words", 100, None, None)
    clock.now += 10
    observer.report_event("worker_ready")
    observer.advance(50)
    clock.now += 2
    assert "2 s left" in progress.summarize(observer)


def test_activity_is_named_after_half_a_second(capfd):
    with progress.Activity() as activity:
        activity.show("planning: one")
        wait_until(lambda: activity._has_begun)
        activity.show("planning: two")
        activity.seconds_between = activity._next_line = 0.0
        activity.show("planning: three")
        activity.show("planning: three")
    assert capfd.readouterr().err.splitlines() == ["planning: one", "planning: three"]


def test_activity_on_a_terminal_leaves_nothing(monkeypatch):
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress.Activity() as activity:
        activity.show("planning: one")
        wait_until(lambda: activity._has_begun)
    assert "planning: one" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_short_activity_says_nothing(capfd):
    with progress.Activity() as activity:
        activity.show("planning: one")
    assert capfd.readouterr().err == ""


def test_short_jobs_say_nothing(capfd):
    gm.parallel_map(abs, range(10), workers=1)
    assert capfd.readouterr().err == ""


def test_line_comes_while_the_job_runs(capfd, monkeypatch, folder):
    """With ten seconds made a moment: an item waits until the line has been seen."""
    monkeypatch.setattr(progress.ProgressLines, "seconds_between", 0.05)
    original = progress.ProgressLines.show

    def show(self, observer, pool):
        original(self, observer, pool)
        (folder / "shown").touch()

    monkeypatch.setattr(progress.ProgressLines, "show", show)
    gm.parallel_map(lambda n: wait_for_file(folder / "shown"), range(2), workers=2, desc="my job")
    lines = capfd.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith("my job: ") for line in lines)
    assert "100%, 2/2" in lines[-1]


def test_monitor_names_each_worker(capfd, monkeypatch, folder):
    monkeypatch.setattr(progress.ProgressLines, "seconds_between", 0.05)
    original = progress.ProgressLines.show

    def show(self, observer, pool):
        original(self, observer, pool)
        if len([worker for worker in pool if worker.chunks]) == 2:
            (folder / "shown").touch()

    monkeypatch.setattr(progress.ProgressLines, "show", show)

    def function(n):
        meet(folder, 2)
        wait_for_file(folder / "shown")
        return os.getpid()

    pids = gm.parallel_map(function, range(2), workers=2, chunk_size=1, monitor=True)
    text = capfd.readouterr().err
    for pid in pids:
        assert re.search(rf"\b{pid}\b.*cpu +\d+%.*mem [\d,]+ MiB", text)


def test_progress_false_says_nothing(capfd, monkeypatch):
    monkeypatch.setattr(progress.ProgressLines, "seconds_between", 0.0)
    gm.parallel_map(abs, range(10), workers=1, progress=False)
    assert capfd.readouterr().err == ""


SLOW = """
    import time
    import gristmill as gm

    def function(n):
        time.sleep(0.1)
        if n == 3:
            raise ValueError
        return n

    gm.parallel_map(function, range(20), workers=2, chunk_size=1, on_error="return", {options})
    print("the end")
"""


def test_bars_on_a_terminal(project):
    script = scripts.write(project / "script.py", SLOW.format(options='desc="my job"'))
    with scripts.Terminal(script, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}) as terminal:
        shown = terminal.read_to_end()
    assert terminal.process.returncode == 0
    assert "my job" in shown
    assert "20/20" in shown
    assert "1 failed" in shown
    assert "\x1b[" in shown
    assert shown.rstrip().endswith("the end")


def test_bars_with_workers_on_a_terminal(project):
    script = scripts.write(project / "script.py", SLOW.format(options="monitor=True"))
    with scripts.Terminal(script, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}) as terminal:
        shown = terminal.read_to_end()
    assert terminal.process.returncode == 0
    assert re.search(r"process \d+ busy cpu", shown)


def test_terminal_is_left_in_order_after_an_error(project):
    """The cursor that the bars hide is shown again."""
    script = scripts.write(
        project / "script.py", SLOW.format(options="progress=True").replace('on_error="return", ', "retries=3, ")
    )
    with scripts.Terminal(script, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}) as terminal:
        shown = terminal.read_to_end()
    assert "ValueError" in shown
    hidden, visible = shown.rfind("\x1b[?25l"), shown.rfind("\x1b[?25h")
    assert hidden == -1 or visible > hidden


def test_forced_bars_into_a_file(project):
    """`progress=True` where there is no terminal must not fail."""
    script = scripts.write(project / "script.py", SLOW.format(options="progress=True"))
    process = scripts.run(script)
    assert process.returncode == 0
    assert process.stdout == "the end\n"
    assert "20/20" in process.stderr


@pytest.mark.parametrize("desc", ["[/tmp] files", "[red]", "100 %", "{task}", "two\nlines", "\udcff", "日本語"])
def test_any_name_of_a_job(desc, clock, capsys):
    """What looks like markup is just a name."""
    for display in (progress.ProgressBars(monitor=False), progress.ProgressLines(monitor=False)):
        observer = Observer(desc, 10, display, None)
        clock.now += 60
        observer.advance(3)
        display.show(observer, ())
        display.close(observer)


class _Gone(io.StringIO):
    """A terminal whose window has been closed: the connection broke, the job was told to go on."""

    def write(self, text):
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize(
    "display", [progress.ProgressLines(monitor=False), progress.ProgressBars(monitor=False)], ids=["lines", "bars"]
)
def test_nobody_looking_is_no_reason_to_fail(monkeypatch, clock, display):
    observer = Observer("job", 10, display, None)
    monkeypatch.setattr("sys.stderr", _Gone())
    with observer:
        clock.now += 60
        observer.tick(())
        clock.now += 60
        observer.tick(())


def test_import_of_rich_waits_until_it_is_needed(project):
    script = scripts.write(
        project / "script.py",
        """
        import sys
        import gristmill as gm
        gm.parallel_map(abs, range(3), workers=1, progress=True)
        print("rich" in sys.modules)
        """,
    )
    assert scripts.run(script).stdout == "False\n"
