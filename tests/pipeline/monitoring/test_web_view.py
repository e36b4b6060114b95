"""`--monitor web`: a run in a real browser, its metrics, and everything that the server must refuse."""

import json
import math
import threading

import pytest
from gristmill_testing.reports import EVIL
from gristmill_testing.watching import wait_for_file, wait_until
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families
from tests.report.view.test_server import ask

import gristmill as gm
from gristmill import Recipe, steps
from gristmill.core.errors import UsageError
from gristmill.pipeline.monitoring.run_status import Bottleneck, EndedJob, RunStatus, WorkerStatus
from gristmill.pipeline.monitoring.web_view import WebView, format_metrics

STATUS = RunStatus(
    run="7",
    host="h",
    pid=1,
    backend="processes",
    written=0.0,
    job="stage 2 of 2",
    done=12,
    total=50,
    num_workers=2,
    num_busy=1,
    counts={"records": 1234, "bytes": 500},
    num_bytes=1000,
    seconds_left=61,
    records_per_second=77.0,
    bytes_per_second=1000.0,
    workers=[
        WorkerStatus(
            name=EVIL, state="busy", cpu_share=0.97, memory_bytes=312_000_000, seconds=9.0, task=EVIL, node=EVIL
        ),
        WorkerStatus(name="process 2", state="idle"),
    ],
    ended=[EndedJob(name="stage 1 of 2", seconds=5, tasks=9, counts={"records": 5000, "bytes": 99})],
    memory_limit=10**10,
    memory_available=6 * 10**9,
    bottleneck=Bottleneck("straggler", f"straggler: {EVIL}"),
)


@pytest.fixture
def view():
    """A view that nobody has shown anything yet."""
    view = WebView(EVIL)
    yield view
    view.close()


def test_what_is_refused(view):
    assert view._server.server_address[0] == "127.0.0.1"
    for path in ("/", "/metrics", "/status", "/wrong/metrics", f"/{view.token[:-1]}/status"):
        assert ask(view, path)[0] == 403, path
    assert ask(view, f"/{view.token}/metrics", host="evil.example")[0] == 403
    assert ask(view, f"/{view.token}/../../etc/passwd")[0] == 404
    assert ask(view, f"/{view.token}/status", method="POST")[0] == 501
    assert ask(view, f"/{view.token}/metrics") == (200, b"")
    with pytest.raises(UsageError, match=f"port {view.port} cannot be used"):
        WebView("out", view.port)


def test_the_page_shows_what_was_measured(view, browser):
    view.show(STATUS)
    page = browser.open(view.url)
    page.wait("document.querySelectorAll('#workers tbody tr').length === 2")
    assert page.run("document.getElementById('job').textContent") == (
        "stage 2 of 2: 50 %, 12 of 50 tasks done, 1 min 1 s left"
    )
    assert page.run("document.getElementById('why').textContent") == f"why this speed: straggler: {EVIL}"
    assert page.run("document.getElementById('progress').value") == 0.5
    cards = dict(
        page.run("[...document.querySelectorAll('#cards > div')].map(d => [...d.children].map(c => c.textContent))")
    )
    assert cards["records"] == "1,23477 a second"
    assert cards["input"] == "500 bytesof 1.0 kB, 1.0 kB/s"
    assert cards["workers"] == "1 of 2busy"
    first = page.run("[...document.querySelector('#workers tbody tr').children].map(c => c.textContent)")
    assert first == [EVIL, "busy", "97 %", "312.0 MB", "9 s", EVIL, EVIL[:8]]
    ended = page.run("[...document.querySelector('#ended tbody tr').children].map(c => c.textContent)")
    assert ended == ["stage 1 of 2", "5 s", "9", "5,000"]
    assert page.run("document.querySelectorAll('#rate polyline').length") == 1
    view.show(structs.replace(STATUS, done=13))
    page.wait("document.getElementById('job').textContent.includes('13 of 50')")
    threading.Thread(target=view.close).start()
    page.wait("document.getElementById('job').textContent.includes('the run has ended')")
    assert page.run("window.hacked") is None
    assert page.problems == []
    assert {url.split("/")[2] for url in page.requests if url != "about:blank"} == {f"127.0.0.1:{view.port}"}
    page.close()
    view.close = lambda: None


def read_metrics(text):
    """Every sample, by name and labels, as Prometheus' own parser reads it."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *sorted(sample.labels.items())): sample.value for sample in samples}


def test_metrics(view):
    view.show(STATUS)
    code, body = ask(view, f"/{view.token}/metrics")
    assert code == 200
    metrics = read_metrics(body.decode())
    assert metrics["gristmill_records_total", ("job", "stage 2 of 2")] == 1234
    assert metrics["gristmill_records_total", ("job", "stage 1 of 2")] == 5000
    assert metrics["gristmill_tasks_done_total", ("job", "stage 2 of 2")] == 12
    assert metrics["gristmill_workers", ("state", "busy")] == 1
    assert metrics["gristmill_worker_memory_bytes", ("node", EVIL), ("worker", EVIL)] == 312_000_000
    assert metrics["gristmill_bottleneck", ("cause", "straggler")] == 1
    assert metrics["gristmill_bottleneck", ("cause", "reading")] == 0


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.integers(0, 2**60), st.floats(0, 1e9))
def test_metrics_can_be_read_back(name, number, share):
    worker = WorkerStatus(name=name, state="busy", cpu_share=share, memory_bytes=number)
    status = structs.replace(STATUS, job=name, ended=[], done=number, workers=[worker])
    metrics = read_metrics(format_metrics(status))
    assert metrics["gristmill_tasks_done_total", ("job", name)] == float(number)
    assert math.isclose(metrics["gristmill_worker_cpu_share", ("node", ""), ("worker", name)], share)


def test_a_run_is_served_while_it_works(tmp_path, capfd):
    """Numbers of the page and of the metrics are those of the books."""
    lines = [json.dumps({"text": f"text {number}"}) for number in range(300)]
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, json.dumps({"text": "wait"})]) + "\n")

    def hold(record):
        if record["text"] == "wait":
            wait_for_file(tmp_path / "release")
        return record

    recipe = Recipe(
        sources={"web": steps.Read(read=str(tmp_path / "in.jsonl"))},
        steps=[steps.Map(call=hold), steps.Write(format="jsonl")],
        output=str(tmp_path / "out"),
    )
    results = []
    run = threading.Thread(
        target=lambda: results.append(gm.run(recipe, backend="processes", workers=1, progress=False, monitor="web"))
    )
    run.start()
    try:
        shown = wait_until_printed(capfd, "metrics: ")
        port, token = shown.split("http://127.0.0.1:")[1].split("/")[:2]
        server = type("Server", (), {"port": int(port)})

        def read_status():
            status = json.loads(ask(server, f"/{token}/status")[1])["status"]
            return status if status and status["num_busy"] and status["counts"].get("records") else None

        status = wait_until(read_status, "a busy worker")
        assert status["workers"][0]["task"] == f"{tmp_path}/in.jsonl, byte 0"
        metrics = read_metrics(ask(server, f"/{token}/metrics")[1].decode())
        assert metrics["gristmill_records_total", ("job", "running")] == status["counts"]["records"] == 301
    finally:
        (tmp_path / "release").touch()
        run.join()
    assert results[0].books["web"][0].records_in == 301


def wait_until_printed(capfd, words):
    text = ""

    def has_words():
        nonlocal text
        text += capfd.readouterr().err
        return text if words in text and text.endswith("\n") else None

    return wait_until(has_words, words)
