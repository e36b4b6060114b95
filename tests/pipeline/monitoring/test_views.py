"""Statuses as lines: within the screen, without what controls a terminal, in one line for logs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gristmill.pipeline.monitoring.run_status import Bottleneck, EndedJob, RunStatus, WorkerStatus
from gristmill.pipeline.monitoring.views import open_view, render_status, summarize_status, to_text
from gristmill.report.view.describe import measure

WORKERS = [
    WorkerStatus(
        name=f"process {n}",
        state="busy",
        cpu_share=0.5,
        memory_bytes=10**8,
        seconds=n,
        task=f"file-{n}.jsonl, byte {n}",
        records=n,
    )
    for n in range(40)
]
STATUS = RunStatus(
    run="7",
    host="h",
    pid=1,
    backend="processes",
    written=0.0,
    job="stage 2 of 3",
    done=12,
    total=50,
    num_workers=40,
    num_busy=40,
    counts={"records": 1234, "bytes": 500, "store:reads": 3},
    num_bytes=1000,
    seconds_left=61,
    workers=WORKERS,
    ended=[EndedJob(name=f"job {n}", seconds=n, tasks=n, counts={"records": n}) for n in range(12)],
    bottleneck=Bottleneck("computing", "computing: busy workers use 50% of a CPU each"),
)


def test_everything_is_said():
    text = "\n".join(to_text(render_status(STATUS, "out")))
    for words in (
        "out  run 7 on h", "stage 2 of 3", "50%", "12 of 50 tasks", "1,234 records", "500 bytes of 1.0 kB",
        "1 min 1 s left", "40 workers (processes), 40 busy", "39 s: file-39.jsonl, byte 39, 39 records",
        "job 11: done in 11 s, 11 tasks, 11 records", "why this speed: computing",
    ):  # fmt: skip
        assert words in text
    assert "store:" not in text
    assert "50%, 12 of 50 tasks" in summarize_status(STATUS)
    assert "1 min 1 s left; 40 of 40 workers busy, 4.0 GB; computing:" in summarize_status(STATUS)


@pytest.mark.parametrize("height", [5, 10, 24, 60, 200])
@pytest.mark.parametrize("width", [1, 12, 19, 40, 80, 200])
def test_it_fits_the_screen(width, height):
    wide = structs.replace(STATUS, job="段階2")  # two columns a character
    lines = to_text(render_status(wide, "out", width=width, max_lines=height))
    assert len(lines) <= max(height, 7)
    assert max(sum(map(measure, line)) for line in lines) <= width
    if width < 40:
        assert width < 12 or any("50%" in line for line in lines)  # no bar in its place
        return
    assert any("why this speed" in line for line in lines)
    assert ("more" in "\n".join(lines)) == (height < 60)


def test_a_long_path_keeps_its_end():
    worker = structs.replace(WORKERS[3], task=f"/{'folder/' * 20}file-3.jsonl, byte 3")
    [line] = [
        line
        for line in to_text(render_status(structs.replace(STATUS, workers=[worker]), "out", width=100, max_lines=40))
        if "process 3" in line
    ]
    assert line.endswith("folder/file-3.jsonl, byte 3")
    assert "…" in line


def test_without_a_terminal_there_are_lines(capsys, monkeypatch):
    view = open_view("terminal", 0, "out")
    view.show(STATUS)
    assert capsys.readouterr().err == ""  # not before ten seconds
    monkeypatch.setattr("gristmill.pipeline.monitoring.views._LINE_SECONDS", 0.0)
    view.show(STATUS)
    view.close()
    assert capsys.readouterr().err == summarize_status(STATUS) + "\n"


@given(st.text(max_size=30))
def test_no_name_controls_the_terminal(name):
    worker = structs.replace(WORKERS[0], task=name, name=name)
    status = structs.replace(STATUS, workers=[worker], job=name, bottleneck=Bottleneck("stalled", name))
    for lines in (render_status(status, name), render_status(status, name, width=80, max_lines=24)):
        assert all(line.isprintable() for line in to_text(lines))
    assert summarize_status(status).isprintable()
