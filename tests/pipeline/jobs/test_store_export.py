"""Exports to a real object store: the bytes of a local export, and nothing else that stays."""

import signal
import subprocess
import sys

import pytest
from gristmill_testing.faulty_proxy import DENIED, FaultyProxy
from gristmill_testing.token_datasets import write_tokens

import gristmill as gm
from gristmill import steps
from gristmill.cli.main import main
from gristmill.core.errors import StoreRefusedError, UsageError
from gristmill.exports.formats import export_formats
from gristmill.storage.stores.open_store import forget_stores

PACKED = ("megatron-bridge", "mds", "numpy")
PROMPTS = ("verl", "trl-prompts", "nemo-rl")
SHARDS = [[[1, 2, 3], [4]], [[5, 6, 7, 8]], [[9, 10]]]

# The export stops for ever when one file is uploaded, and says so on standard output.
SCRIPT = """
import signal, sys
import gristmill as gm
from gristmill.storage import parallel_files
from gristmill.storage.locations import StorePath

commit = parallel_files.PendingFile.commit

def stop_after_upload(file, **options):
    commit(file, **options)
    if isinstance(file.path, StorePath):
        print("here", flush=True)
        signal.pause()

parallel_files.PendingFile.commit = stop_after_upload
gm.export(sys.argv[1], to="jsonl", path=sys.argv[2], backend="serial", progress=False)
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield
    assert not list((tmp_path / "home").glob(".cache/gristmill/exports/*"))


@pytest.fixture
def documents(tmp_path):
    shards = {("train", "web"): SHARDS, ("validation", "web"): SHARDS[:1]}
    return write_tokens(tmp_path / "documents", shards)


@pytest.fixture
def packed(tmp_path):
    shards = [[[row, row[:1]] for row in shard] for shard in SHARDS]
    return write_tokens(
        tmp_path / "packed", {("train", "web"): shards, ("validation", "web"): shards[:1]}, row_length=8
    )


def export(dataset, to, path, **options):
    return gm.export(dataset, to=to, path=path, backend="serial", progress=False, **options)


def read_bucket(bucket):
    return {key: bucket.get(key) for key in bucket.list_keys()}


def read_folder(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def prompts(tmp_path):
    recipe = gm.Recipe(
        sources={"sums": steps.Read(read=[{"question": f"{n} + {n}", "answer": str(2 * n)} for n in range(9)])},
        steps=[
            steps.Render(template="chatml", until="prompt", fields={"prompt": "question", "response": "answer"}),
            steps.Write(format="parquet"),
        ],
        output=str(tmp_path / "prompts"),
    )
    gm.run(recipe, backend="serial", progress=False)
    return tmp_path / "prompts"


def test_every_format_has_the_bytes_of_a_local_export(s3, documents, packed, prompts, tmp_path):
    for each in export_formats():
        dataset = prompts if each.name in PROMPTS else packed if each.name in PACKED else documents
        local = export(dataset, each.name, tmp_path / "local" / each.name / "x")
        stored = export(dataset, each.name, f"{s3.url}/{each.name}/x")
        assert stored.rows == local.rows
        assert stored.uploaded == {
            f"{s3.url}/{path.relative_to(tmp_path / 'local')}": path.stat().st_size for path in local.files
        }
        for usage in stored.usage:
            line, _, copy = usage.partition("  # after: ")
            if each.readable_stores:
                assert f"{s3.url}/{each.name}/x" in line
            else:  # the line names a local file, and a command that copies it
                assert "s3://" not in line
                assert f'filesystem("s3").get("{s3.url.removeprefix("s3://")}/{each.name}/x' in copy
    assert read_bucket(s3) == read_folder(tmp_path / "local")


def test_nothing_is_overwritten_unless_asked_and_then_nothing_stale_stays(s3, documents, tmp_path):
    target = f"{s3.url}/x"
    s3.put("x_train-00003.jsonl", b"of a longer export")
    with pytest.raises(UsageError, match=r"x_train-00003\.jsonl would be overwritten"):
        export(documents, "jsonl", target)
    assert s3.list_keys() == ["x_train-00003.jsonl"]
    export(documents, "jsonl", target, overwrite=True)
    export(documents, "jsonl", tmp_path / "local/x")
    assert read_bucket(s3) == read_folder(tmp_path / "local")
    with pytest.raises(UsageError, match="and 3 more would be overwritten"):
        export(documents, "jsonl", target)
    with pytest.raises(UsageError, match="is a file"):
        export(documents, "nanogpt", f"{target}_train-00000.jsonl")
    with pytest.raises(UsageError, match="is a folder"):
        export(documents, "jsonl", s3.url)
    with pytest.raises(UsageError, match="not written safely"):
        export(documents, "jsonl", "https://localhost:1/x")


def test_a_refused_upload_leaves_nothing(s3, seaweed, documents, monkeypatch):
    proxy = FaultyProxy(
        seaweed.port, lambda line, number: DENIED if line.startswith("PUT") and "0002.j" in line else None
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    forget_stores()
    try:
        with pytest.raises(StoreRefusedError, match=r"x_train-00002\.jsonl"):
            export(documents, "jsonl", f"{s3.url}/x")
    finally:
        proxy.close()
    assert any("PUT" in line and "x_train-00000.jsonl" in line for line in proxy.requests)
    assert s3.list_keys() == []


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ended_in_the_middle_the_next_export_is_whole(s3, documents, tmp_path, number):
    command = [sys.executable, "-c", SCRIPT, str(documents), f"{s3.url}/x"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == b"here\n"
        assert "x_train-00000.jsonl" in s3.list_keys()
        process.send_signal(number)
        process.wait()
    if number == signal.SIGINT:
        assert s3.list_keys() == []
    export(documents, "jsonl", f"{s3.url}/x")
    export(documents, "jsonl", tmp_path / "local/x")
    assert read_bucket(s3) == read_folder(tmp_path / "local")


def test_on_the_command_line(s3, documents, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["export", str(documents), "--to", "megatron", "--path", f"{s3.url}/a/b/c", "--backend", "serial"])
    assert ended.value.code in (0, None)
    shown = capsys.readouterr().out
    assert f"{s3.url}/a/b/c_train.bin  20 bytes" in shown
    assert f"--data-path {s3.url}/a/b/c_train" in shown
    assert s3.list_keys() == [
        f"a/b/c_{name}" for name in ("train.bin", "train.idx", "validation.bin", "validation.idx")
    ]
