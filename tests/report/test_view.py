"""The viewer in a real browser and by bare requests: rows, search, addresses, and everything that it must refuse."""

import http.client
import json
import os
import signal
import subprocess
import sys
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gristmill_testing.reports import EVIL

from gristmill.cli.view import _open_collections
from gristmill.report.view.rows import count_rows
from gristmill.report.view.server import Viewer
from gristmill.shards.dataset import open_dataset


@pytest.fixture
def serve():
    """Serves collections until the test ends."""
    viewers = []

    def start(*paths):
        viewer = Viewer(_open_collections(tuple(map(str, paths))))
        viewer.start()
        viewers.append(viewer)
        return viewer

    yield start
    for viewer in viewers:
        viewer.close()


def ask(viewer, path, *, method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{viewer.port}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_what_is_refused(serve, web):
    viewer = serve(web)
    token = viewer.token
    assert viewer._server.server_address[0] == "127.0.0.1"
    assert ask(viewer, f"/{token}/info")[0] == 200
    for path in ("/", "/info", "/wrong/info", f"/{token[:-1]}/info", "/../etc/passwd"):
        assert ask(viewer, path)[0] == 403, path
    assert ask(viewer, f"/{token}/info", host="evil.example")[0] == 403
    for path in ("../../etc/passwd", "%2e%2e/manifest.json", "manifest.json", "report.html"):
        assert ask(viewer, f"/{token}/{path}")[0] == 404, path
    for path in ("rows?name=no", "rows?name=out&start=x", "search?name=out&query=(&regex=1", "search?name=out"):
        status, body = ask(viewer, f"/{token}/{path}")
        assert status == 400, path
        assert json.loads(body)["error"]
    assert ask(viewer, f"/{token}/rows?name=out", method="POST")[0] == 501


def test_rows_in_the_browser(serve, browser, web):
    viewer = serve(web)
    page = browser.open(viewer.url)
    page.wait("document.querySelectorAll('#rows article').length")
    dataset = open_dataset(web)
    texts = page.run("[...document.querySelectorAll('#rows article > pre')].map(p => p.textContent)")
    assert texts == [dataset[number]["text"] for number in range(10)]
    assert page.run("window.hacked") is None
    page.press("n", "n")
    page.wait("document.getElementById('row-10')")
    page.run("location.hash = 'out/validation%2Fweb/0'")
    page.wait("document.getElementById('position').textContent.includes('to')")
    first = len(dataset) - len(dataset.split("validation"))
    lanes = json.loads(ask(viewer, f"/{viewer.token}/info")[1])[0]["lanes"]
    start = next(lane["start"] for lane in lanes if lane["name"] == "validation/web")
    assert start >= first
    page.wait(f"document.getElementById('row-{start}')")
    page.press("/", "/")
    assert page.run("document.activeElement.id") == "query"
    page.run("location.hash = 'out//0'")
    page.wait("document.getElementById('row-0')")
    page.run("document.getElementById('query').focus()")
    page.type("document 11")
    page.press("Enter")
    page.wait("document.getElementById('search-status').dataset.done")
    expected = [n for n in range(len(dataset)) if "document 11" in dataset[n]["text"].lower()]
    hits = page.run("[...document.querySelectorAll('.hit a')].map(a => a.textContent)")
    assert hits == [f"row {number:,}" for number in expected]
    page.run("document.querySelector('.hit a').click()")
    page.wait(f"document.getElementById('row-{expected[0]}')")
    assert page.problems == []
    assert {url.split("/")[2] for url in page.requests if url != "about:blank"} == {f"127.0.0.1:{viewer.port}"}
    page.run(f"location.hash = '{quote('out · dropped')}//0'")
    page.wait("document.querySelector('#rows article b.bad')")
    page.close()


def test_tokens_and_masks(serve, browser, rows):
    viewer = serve(rows)
    page = browser.open(viewer.url)
    page.wait("document.querySelectorAll('.token').length")
    dataset = open_dataset(rows)
    shown = page.run(
        "[...document.getElementById('row-0').querySelectorAll('.document')].map(d => "
        "[...d.querySelectorAll('.token')].map(t => t.textContent).join(''))"
    )
    assert shown == dataset.documents(0)
    titles = page.run("[...document.getElementById('row-0').querySelectorAll('.token')].map(t => t.title)")
    ids = dataset[0]["input_ids"][: int(dataset[0]["lengths"].sum())].tolist()
    assert titles == [f"id {token}" for token in ids]
    page.close()


def test_raw_files(serve, tmp_path):
    chat = {"messages": [{"role": "user", "content": EVIL}, {"role": "assistant", "content": "no"}]}
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "one"}) + "\n" + json.dumps(chat) + "\n")
    pq.write_table(pa.table({"text": ["two", "three"], "n": [1, 2]}), tmp_path / "b.parquet")
    viewer = serve(tmp_path / "a.jsonl", tmp_path / "b.parquet")
    assert count_rows(viewer.collections["files"]) == 4
    shown = json.loads(ask(viewer, f"/{viewer.token}/rows?name=files")[1])
    assert [row.get("text") for row in shown] == ["one", None, "two", "three"]
    assert [turn["role"] for turn in shown[1]["turns"]] == ["user", "assistant"]
    assert shown[3]["columns"] == {"n": "2"}
    hits = ask(viewer, f"/{viewer.token}/search?name=files&query=t%5Bwh%5D&regex=1")[1].splitlines()
    assert [json.loads(line)["number"] for line in hits] == [2, 3]


def test_the_command(web):
    process = subprocess.Popen(
        [sys.executable, "-m", "gristmill", "view", str(web), "--no-browser"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "SSH_CONNECTION": "1 2 3 4", "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        address = process.stdout.readline() + process.stdout.readline()
        assert "http://127.0.0.1:" in address
        assert "ssh -L" in address + process.stdout.readline()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
