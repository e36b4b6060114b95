"""Streams from stores of fsspec: the memory of the process, `file://`, and a web server that serves ranges."""

import os
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gristmill_testing.streams import ids_of

from gristmill.core.errors import RemoteStoreError
from gristmill.storage.stores import retries
from gristmill.stream import Stream


class RangeHandler(SimpleHTTPRequestHandler):
    """Serves files of a folder, whole or in ranges."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        try:
            with open(self.translate_path(self.path), "rb") as file:
                content = file.read()
        except OSError:
            self.send_error(404)
            return
        first, last = 0, len(content) - 1
        if asked:
            first, last = int(asked[1]), min(int(asked[2] or last), last)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(last + 1 - first))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.end_headers()
        self.wfile.write(content[first : last + 1])

    def log_message(self, *words):
        pass


@pytest.fixture
def web(packed):
    """The URL of the dataset on a web server."""
    pytest.importorskip("aiohttp")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(RangeHandler, directory=str(packed)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def memory(packed):
    """The URL of the dataset in the memory of the process."""
    store = fsspec.filesystem("memory")
    for path in packed.rglob("*"):
        if path.is_file():
            store.pipe_file(f"/streamed/{path.relative_to(packed)}", path.read_bytes())
    yield "memory://streamed"
    store.rm("/streamed", recursive=True)


@pytest.mark.parametrize("place", ["memory", "web", "file"])
def test_rows_and_states_are_those_of_the_disk(request, packed, oracle, tmp_path, monkeypatch, place):
    monkeypatch.setattr("gristmill.storage.user_cache._folder", tmp_path / "copies")
    url = f"file://{packed}" if place == "file" else request.getfixturevalue(place)
    stream = Stream(url, seed=7, rows=160, cache=tmp_path / "cache")
    batches = stream.batches(7)
    first = ids_of([next(batches) for _ in range(5)])
    local = Stream(packed, seed=7, rows=160)
    local.load_state_dict(stream.state_dict())
    assert first + ids_of(local.batches(9)) == oracle
    other = Stream(url, seed=7, rows=160, cache=tmp_path / "cache", shuffle={"blocks": 3})
    assert ids_of(other.batches(8)) == ids_of(Stream(packed, seed=7, rows=160, shuffle={"blocks": 3}).batches(8))


def test_parquet_on_a_web_server(packed, web, tmp_path):
    pq.write_table(pa.table({"input_ids": [[1, 2], [3], [4, 5, 6]]}), packed / "a.parquet", row_group_size=2)
    try:
        stream = Stream(f"{web}/a.parquet", shuffle=False, epochs=1, cache=tmp_path / "cache")
        assert [
            row[:length].tolist()
            for batch in stream.batches(3)
            for row, length in zip(batch["input_ids"], batch.tokens, strict=True)
        ] == [[1, 2], [3], [4, 5, 6]]
    finally:
        (packed / "a.parquet").unlink()


def test_a_server_that_cannot_be_reached_when_its_file_system_is_opened(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_WAIT_SECONDS", 0.001)
    with pytest.raises(RemoteStoreError, match="cannot be reached"):
        Stream("ftp://127.0.0.1:1/out")


def test_a_hub_that_cannot_be_reached(tmp_path):
    code = """
from gristmill.core.errors import RemoteStoreError
from gristmill.storage.stores import retries
from gristmill.stream import Stream

retries.FIRST_WAIT_SECONDS = 0.001
for url in ("hf://datasets/a/b", "hf://datasets/a/b/*.parquet", "hf://datasets/a/b/0.tar"):
    try:
        Stream(url)
    except RemoteStoreError as error:
        print(error)
"""
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:1", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert output.count("cannot be reached") == output.count("`hf download`") == 3
