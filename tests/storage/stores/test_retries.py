"""Stores that cannot be reached, that refuse, and whose connections break: asked again, or one line with what to do."""

import io
import multiprocessing
import pickle
import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gristmill_testing.buckets import CREDENTIALS, Bucket
from gristmill_testing.faulty_proxy import (
    BROKEN,
    BUSY,
    CONFLICT,
    CUT,
    DENIED,
    EXPIRED,
    RESET,
    FaultyProxy,
    half_of_them,
)

from gristmill import Recipe, run, steps
from gristmill.cli.main import main
from gristmill.core.errors import RemoteStoreError, SourceChangedError, StoreRefusedError, UsageError
from gristmill.storage.files import open_input, read_version
from gristmill.storage.paths import find_files
from gristmill.storage.stores import object_store, retries
from gristmill.storage.stores.base import ObjectChangedError, ObjectExistsError
from gristmill.storage.stores.fsspec_store import ReopenedStream
from gristmill.storage.stores.open_store import forget_stores, open_store
from gristmill.storage.stores.retries import TRIES, TRIES_UNREACHED, ask_store

pytest.importorskip("obstore")
moto_server = pytest.importorskip("moto.server")
CONTENT = bytes(range(256)) * 40_000


@pytest.fixture
def forked():
    """Calls a function in a forked process, and returns the text of its error."""

    def call(function):
        def answer():
            try:
                sender.send(str(function()))
            except BaseException as error:
                sender.send(f"{type(error).__name__}: {error} {getattr(error, 'help', '')}")

        receiver, sender = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=answer)
        process.start()
        try:
            assert receiver.poll(60), "the forked process waits forever"
            return receiver.recv()
        finally:
            process.kill()
            process.join()

    return call


@pytest.mark.parametrize("protocol", ["s3", "gs", "az", "hf", "https"])
def test_a_forked_process_is_refused_by_every_store_alike(protocol, forked):
    ask_store("s3://bucket/file", lambda: 1)
    error = forked(lambda: ask_store(f"{protocol}://bucket/file", lambda: 1))
    assert error.startswith(f"UsageError: {protocol}://bucket/file cannot be used in a forked process")
    assert 'multiprocessing_context="spawn"' in error
    assert forked(lambda: ask_store("memory://bucket/file", lambda: 1)) == "1"


def test_every_request_of_a_forked_process_is_refused(s3, forked):
    store, key = open_store(f"{s3.url}/file")
    store.put(key, b"content")
    requests = [
        lambda: store.read(key),
        lambda: store.head(key),
        lambda: store.open(key).read(),
        lambda: list(store.list_all("")),
        lambda: list(store.list_folder("")),
        lambda: store.put(key, b"new"),
        lambda: store.put_stream(key, iter([b"new"])),
        lambda: store.delete([key]),
        lambda: open_store(f"{s3.url}/other")[0].read(key),
    ]
    for request in requests:
        assert "cannot be used in a forked process" in forked(request)
    assert store.read(key) == b"content"


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    """Waits are counted, not waited for."""
    waits = []
    monkeypatch.setattr(retries.time, "sleep", waits.append)
    monkeypatch.setattr(retries.random, "uniform", lambda low, high: 1.0)
    return waits


@pytest.fixture(scope="module")
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found = probe.getsockname()[1]
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=found, verbose=False)
    server.start()
    yield found
    server.stop()


@pytest.fixture
def credentials(monkeypatch):
    for key, value in CREDENTIALS.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def proxy(port, credentials, monkeypatch):
    """Before a bucket with a few files."""
    bucket = Bucket(f"http://127.0.0.1:{port}", "faulty").create()
    bucket.put("large.bin", CONTENT)
    for number in range(3):
        lines = (f'{{"text": "document {number} {n}"}}\n' for n in range(50))
        bucket.put(f"web/{number}.jsonl", "".join(lines).encode())
    faulty = FaultyProxy(port)
    faulty.bucket = bucket  # past the proxy, for tests that write
    monkeypatch.setenv("AWS_ENDPOINT_URL", faulty.endpoint)
    forget_stores()
    yield faulty
    faulty.close()
    forget_stores()


@pytest.mark.parametrize("seed", range(2))
def test_half_of_the_connections_break(proxy, seed):
    proxy.fault = half_of_them(seed, RESET, CUT, BUSY, BROKEN)
    assert [file.relative for file in find_files("s3://faulty/web/*.jsonl")] == ["0.jsonl", "1.jsonl", "2.jsonl"]
    assert len(find_files("s3://faulty/web")) == 3
    (file,) = find_files("s3://faulty/large.bin")
    assert read_version(file.path) == (len(CONTENT), file.version)
    with open_input(file.path, 1000) as stream:
        assert stream.read(5) == CONTENT[1000:1005]
        assert stream.read() == CONTENT[1005:]
        stream.seek(-3, io.SEEK_END)
        assert stream.read(100) == CONTENT[-3:]


def test_a_run_over_broken_connections_gives_the_same_dataset(proxy, tmp_path):
    hashes = set()
    for seed in (None, 1):
        proxy.fault = (lambda line, number: None) if seed is None else half_of_them(seed, RESET, CUT, BUSY)
        recipe = Recipe(
            sources={"web": steps.Read(read="s3://faulty/web/*.jsonl")}, steps=[], output=str(tmp_path / f"out{seed}")
        )
        result = run(recipe, backend="serial", progress=False)
        assert len(result.dataset()) == 150
        hashes.add(result.manifest.dataset_hash)
    assert len(hashes) == 1


def test_answers_of_a_web_server_that_break_off(tmp_path):
    """What aiohttp says of them looks like a refusal: it has a status, 400."""
    (tmp_path / "large.bin").write_bytes(CONTENT)
    handler = partial(_QuietHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        faulty = FaultyProxy(server.server_address[1])
        faulty.fault = lambda line, number: CUT if line.startswith("GET") and number % 2 == 0 else None
        url = f"{faulty.endpoint}/large.bin"
        with open_input(url) as stream:
            assert stream.read() == CONTENT
        faulty.fault = lambda line, number: CUT if line.startswith("GET") else None
        with pytest.raises(RemoteStoreError, match="does not answer, after 8 tries"), open_input(url) as stream:
            stream.read()
        faulty.close()
        server.shutdown()


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def test_a_store_that_never_answers(proxy, no_waits):
    proxy.fault = lambda line, number: RESET
    with pytest.raises(RemoteStoreError, match=r"s3://faulty/web: it does not answer") as caught:
        find_files("s3://faulty/web/*.jsonl")
    assert "AWS_ENDPOINT_URL" in caught.value.help
    assert no_waits == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_connection_that_breaks_for_good_is_no_damage(proxy, tmp_path, kind):
    """Readers take an OSError for a damaged file: a lost connection must not lose the rest of it."""
    table = pa.table({"text": [f"document {n}" for n in range(1000)]})
    sink = pa.BufferOutputStream()
    (pq.write_table if kind == "parquet" else _write_arrow)(table, sink)
    proxy.bucket.put(f"tables/x.{kind}", sink.getvalue().to_pybytes())

    def gets():
        return sum(line.startswith("GET") and f"x.{kind}" in line for line in proxy.requests)

    def recipe(name):
        read = steps.Read(read=f"s3://faulty/tables/x.{kind}")
        return Recipe(sources={"web": read}, steps=[], output=str(tmp_path / name))

    before = gets()
    run(recipe("whole"), backend="serial", progress=False)
    num_gets, before = gets() - before, gets()
    # The plan is made; the last request of the run, and all after it, fail.
    proxy.fault = lambda line, number: RESET if gets() - before >= num_gets else None
    with pytest.raises(RemoteStoreError, match=rf"x\.{kind}"):
        run(recipe("broken"), backend="serial", progress=False)
    assert not (tmp_path / "broken/manifest.json").exists()


def _write_arrow(table, sink):
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def test_conflicts_of_conditional_writes_are_asked_again(proxy, tmp_path):
    """S3 documents 409 for a write with a condition while another is under way; each object meets one here."""
    conflicts = set()

    def meet_once(line, number):
        if not line.startswith("PUT") or line in conflicts:
            return None
        conflicts.add(line)
        return CONFLICT

    proxy.fault = meet_once
    store, _ = open_store("s3://faulty/own")
    version = store.put("own", b"1", create=True)
    with pytest.raises(ObjectExistsError):
        store.put("own", b"2", create=True)
    store.put("own", b"3", replaces=version)
    with pytest.raises(ObjectChangedError):
        store.put("own", b"4", replaces=version)
    assert store.read("own") == b"3"

    (tmp_path / "a.jsonl").write_text('{"text": "a document"}\n')
    recipe = Recipe(sources={"a": steps.Read(read=str(tmp_path / "a.jsonl"))}, steps=[], output="s3://faulty/out")
    assert len(run(recipe, backend="serial", progress=False).dataset()) == 1
    assert any("manifest.json" in line for line in conflicts)


def test_conflicts_that_do_not_end_are_no_traceback(proxy):
    proxy.fault = lambda line, number: CONFLICT if line.startswith("PUT") else None
    with pytest.raises(RemoteStoreError, match="after 8 tries: ConditionalRequestConflict"):
        open_store("s3://faulty/own")[0].put("own", b"1", create=True)


def test_access_denied_is_said_at_once(proxy, no_waits):
    proxy.fault = lambda line, number: DENIED
    for read in (lambda: find_files("s3://faulty/web/*.jsonl"), lambda: read_version("s3://faulty/large.bin")):
        with pytest.raises(StoreRefusedError, match="denied") as caught:
            read()
        assert "credentials" in caught.value.help
    with pytest.raises(StoreRefusedError, match="denied") as caught:
        open_store("s3://faulty/own")[0].put("own", b"1", create=True)
    assert "writing" in caught.value.help
    assert no_waits == []


def test_credentials_that_have_expired_are_named(proxy, no_waits):
    proxy.fault = lambda line, number: EXPIRED
    for request in (lambda store: store.read("own"), lambda store: store.put("own", b"1")):
        with pytest.raises(StoreRefusedError, match="the credentials have expired: ExpiredToken") as caught:
            request(open_store("s3://faulty/own")[0])
        assert "the same command resumes" in caught.value.help
    assert no_waits == []


def test_what_is_missing_is_said_at_once(proxy, no_waits):
    with pytest.raises(UsageError, match="no file matches"):
        find_files("s3://faulty/nothing.jsonl")
    with pytest.raises(UsageError):
        find_files("s3://no-such-bucket/*.jsonl")
    with pytest.raises(FileNotFoundError):
        open_input("s3://faulty/nothing.jsonl").read(1)
    assert no_waits == []


def test_an_address_that_cannot_be_is_refused_at_once(proxy, no_waits):
    with pytest.raises((StoreRefusedError, UsageError), match="s3://x/"):
        find_files("s3://x/*.jsonl")
    assert no_waits == []


def test_a_file_that_changes_between_two_connections(proxy):
    proxy.bucket.put("changing.bin", b"a" * 20_000_000)
    with open_input("s3://faulty/changing.bin") as stream:
        assert stream.read(10) == b"a" * 10
        proxy.bucket.put("changing.bin", b"b" * 20_000_000)
        with pytest.raises(SourceChangedError, match=r"changing\.bin"):
            stream.read(19_000_000)


def test_a_file_that_changes_between_its_first_ranges(proxy, monkeypatch):
    """They are asked for at once, before any answer has told the version."""
    proxy.bucket.put("changing.bin", b"a" * 20_000_000)
    both = threading.Barrier(2, timeout=30)

    def read_in_turn(store, key, start, stop):
        if start == 0:
            answer = read_first(store, key, start, stop)
            both.wait()
            return answer
        both.wait()
        proxy.bucket.put("changing.bin", b"b" * 20_000_000)
        return read_first(store, key, start, stop)

    read_first = object_store.ObjectStore.read_first
    monkeypatch.setattr(object_store.ObjectStore, "read_first", read_in_turn)
    with (
        open_input("s3://faulty/changing.bin", 0, 8 << 20) as stream,
        pytest.raises(SourceChangedError, match=r"changing\.bin"),
    ):
        stream.read(8 << 20)


@pytest.fixture
def recipe_of(tmp_path):
    def write(url):
        path = tmp_path / "recipe.yaml"
        path.write_text(f'output: out\nsources:\n  web: {{read: "{url}"}}\n')
        return str(path)

    return write


def refused(recipe, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["plan", recipe])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    error = said[said.index("error: ") :]
    assert "\n  help: " in error
    assert len(error.splitlines()) <= 3
    return said


def test_no_credentials(recipe_of, capsys, monkeypatch, tmp_path, no_waits):
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for key in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(key, str(tmp_path / "none"))
    forget_stores()
    said = refused(recipe_of("s3://faulty/*.jsonl"), capsys)
    assert "no credentials" in said
    assert "AWS_ACCESS_KEY_ID" in said
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    forget_stores()
    assert "nobody" in refused(recipe_of("s3://faulty/*.jsonl"), capsys)
    assert no_waits == []


def test_a_dead_endpoint(recipe_of, capsys, credentials, monkeypatch, no_waits):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{probe.getsockname()[1]}")
        forget_stores()
        said = refused(recipe_of("s3://faulty/*.jsonl"), capsys)
    assert "cannot be reached" in said
    assert no_waits == [0.5, 1.0]


def test_no_network_for_the_hub(recipe_of, capsys, monkeypatch):
    """In place of a machine without a network: no name can be looked up."""

    def unknown(*arguments, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said = refused(recipe_of("hf://datasets/stanfordnlp/imdb/*.parquet"), capsys)
    assert "cannot be reached" in said
    assert "hf download" in said


def test_a_web_server_that_is_not_there(recipe_of, capsys):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/x.jsonl"
        assert "cannot be reached" in refused(recipe_of(url), capsys)


def test_errors_survive_pickling():
    for kind in (RemoteStoreError, StoreRefusedError):
        copy = pickle.loads(pickle.dumps(kind("s3://x: gone", help="check")))
        assert (type(copy), copy.message, copy.help) == (kind, "s3://x: gone", "check")
        assert not isinstance(copy, OSError)


class _Shaky(io.BytesIO):
    """Fails at every second read, gives half of what it has at every fourth."""

    calls = 0
    size = 0

    def read(self, size=-1):
        _Shaky.calls += 1
        if _Shaky.calls % 2:
            raise ConnectionResetError("reset by peer")
        data = super().read(size)
        return data[: len(data) // 2] if _Shaky.calls % 4 == 0 and len(data) > 1 else data


def test_a_stream_gives_every_byte_once():
    def open_file():
        file = _Shaky(CONTENT)
        file.size = len(CONTENT)
        return file

    with ReopenedStream("shaky://x", open_file) as stream:
        pieces = [stream.read(1_000_003) for _ in range(4)]
        assert b"".join([*pieces, stream.read()]) == CONTENT
        stream.seek(5)
        buffer = bytearray(7)
        assert stream.readinto(buffer) == 7
        assert bytes(buffer) == CONTENT[5:12]
        assert (stream.tell(), stream.seekable(), stream.readable()) == (12, True, True)
    assert stream.closed


def test_wrong_use_is_not_tried_again(no_waits):
    def fails():
        raise ValueError("bad address")

    with pytest.raises(StoreRefusedError, match="bad address"):
        ask_store("odd://x", fails)
    assert no_waits == []


def test_a_store_that_has_answered_and_is_away_for_a_while_is_asked_as_often_as_a_broken_one(no_waits):
    def refuse():
        raise ConnectionRefusedError("connection refused")

    with pytest.raises(RemoteStoreError, match="cannot be reached"):
        ask_store("odd://x", refuse)
    num_waits = len(no_waits)
    with pytest.raises(RemoteStoreError, match="cannot be reached"):
        ask_store("odd://x", refuse, has_answered=True)
    assert (num_waits, len(no_waits) - num_waits) == (TRIES_UNREACHED - 1, TRIES - 1)


def test_a_bucket_knows_that_its_store_has_answered(proxy, monkeypatch):
    asked = []

    def ask(url, request, tries=TRIES, *, has_answered=False):
        asked.append(has_answered)
        return request()

    monkeypatch.setattr(object_store, "ask_store", ask)
    store, key = open_store("s3://faulty/large.bin")
    assert store.read(key, 0, 4) == CONTENT[:4]
    assert asked[-1] is False
    store.read(key, 0, 4)
    assert asked[-1] is True
