"""Uploads in parts: complete or not there at all, and what arrived is what was sent."""

import json

import pytest
from gristmill_testing.buckets import CREDENTIALS
from gristmill_testing.faulty_proxy import CHANGED, DENIED, FaultyProxy

import gristmill as gm
from gristmill.core.errors import GristmillError, RemoteStoreError
from gristmill.steps import Map, Read
from gristmill.storage.commit import PendingFile
from gristmill.storage.locations import StorePath
from gristmill.storage.stores.base import PIECE_BYTES, StoredObject
from gristmill.storage.stores.object_store import CONCURRENT_PARTS
from gristmill.storage.stores.open_store import forget_stores
from gristmill.storage.stores.uploads import Upload, collect_uploads


@pytest.fixture
def proxy(seaweed, s3, monkeypatch):
    proxy = FaultyProxy(seaweed.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    forget_stores()
    yield proxy
    proxy.close()


def upload(bucket, data):
    with PendingFile(StorePath(f"{bucket.url}/large"), "00000001") as file:
        file.write(data)
        file.commit()


def is_part(line):
    return line.startswith("PUT") and "partNumber=" in line


@pytest.mark.parametrize("fault", [CHANGED, DENIED])
def test_a_part_that_does_not_arrive_ends_the_upload_and_leaves_nothing(s3, proxy, fault):
    proxy.fault = lambda line, number: fault if is_part(line) else None
    with pytest.raises(GristmillError, match="large"):
        upload(s3, bytes(2 * PIECE_BYTES + 5))
    assert any(map(is_part, proxy.requests))
    assert s3.list_keys() == []
    assert s3.unfinished_uploads() == []


@pytest.mark.parametrize("size", [5, 2 * PIECE_BYTES + 5])
def test_a_collected_upload_is_there_when_it_is_complete(s3, size):
    """Its writer need not wait. Who wants the file synced does, also where others are collected."""
    with collect_uploads() as uploads:
        for name, sync in (("later", False), ("now", True)):
            with PendingFile(StorePath(f"{s3.url}/{name}"), "00000001") as file:
                file.write(bytes(size))
                file.commit(sync=sync)
        assert s3.list_keys() == ["now"]
    assert uploads
    uploads.complete()
    assert s3.list_keys() == ["later", "now"]
    assert s3.unfinished_uploads() == []


def test_what_was_collected_before_an_error_leaves_nothing(s3):
    def fail_after_commit():
        with PendingFile(StorePath(f"{s3.url}/large"), "00000001") as file:
            file.write(bytes(2 * PIECE_BYTES + 5))
            file.commit(sync=False)
        raise KeyError("another file of the task failed")

    with pytest.raises(KeyError), collect_uploads():
        fail_after_commit()
    assert s3.list_keys() == []
    assert s3.unfinished_uploads() == []


def test_a_collected_upload_that_fails_is_told_when_it_is_completed(s3, proxy):
    proxy.fault = lambda line, number: DENIED if is_part(line) else None
    with collect_uploads() as uploads:
        for name in ("large", "small"):
            with PendingFile(StorePath(f"{s3.url}/{name}"), "00000001") as file:
                file.write(bytes(PIECE_BYTES - 1 if name == "small" else PIECE_BYTES + 1))
                file.commit(sync=False)
    with pytest.raises(GristmillError, match="large"):
        uploads.complete()
    assert s3.list_keys() == ["small"]
    assert s3.unfinished_uploads() == []


def test_an_upload_that_its_writer_gives_up_leaves_nothing(s3, proxy):
    with PendingFile(StorePath(f"{s3.url}/large"), "00000001") as file:
        file.write(bytes((CONCURRENT_PARTS + 1) * PIECE_BYTES + 5))  # parts are under way, and no commit follows
    assert any(map(is_part, proxy.requests))
    assert s3.list_keys() == []
    assert s3.unfinished_uploads() == []


def test_whole_parts_arrive_unchanged(s3, proxy):
    data = bytes(range(256)) * ((2 * PIECE_BYTES + 256) // 256)
    upload(s3, data)
    assert s3.get("large") == data
    # The answer tells that there are three parts: nobody has to look at the size.
    assert [line.split()[0] for line in proxy.requests if not is_part(line)] == ["POST", "POST"]


@pytest.mark.parametrize("version", ["", "0123abcd", "0123abcd-2"])
def test_an_upload_whose_answer_tells_nothing_is_looked_at(version):
    class ForgetfulStore:
        def url(self, key):
            return f"s3://bucket/{key}"

        def put_stream(self, key, pieces):
            self.num_bytes = sum(map(len, pieces)) - 1
            return version

        def head(self, key):
            return StoredObject(key, self.num_bytes, version)

    file = Upload(ForgetfulStore(), "large")
    file.open()
    file.write(memoryview(bytes(2 * PIECE_BYTES + 5)))
    with pytest.raises(RemoteStoreError, match="after the upload"):
        file.commit(sync=True)


def note_modules(record):
    import sys

    record["text"] = " ".join(sorted({"botocore", "obstore"} & sys.modules.keys()))
    return record


def test_workers_with_keys_in_the_environment_do_not_import_botocore(s3, tmp_path):
    s3.put("in/a.jsonl", "".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(5)).encode())
    recipe = gm.Recipe(
        sources={"a": Read(read=f"{s3.url}/in/*.jsonl")}, steps=[Map(call=note_modules)], output=str(tmp_path / "out")
    )
    gm.run(recipe, backend="processes", workers=1, progress=False)
    assert [record["text"] for record in gm.open_dataset(tmp_path / "out")] == ["obstore"] * 5


def test_a_bucket_with_a_profile_is_looked_up_by_the_worker(s3, tmp_path, monkeypatch):
    config = tmp_path / "config"
    keys = {name.lower(): value for name, value in CREDENTIALS.items()}
    config.write_text("[profile other]\n" + "".join(f"{name} = {value}\n" for name, value in keys.items()))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    s3.put("in/a.jsonl", b'{"text": "a"}\n')
    recipe = gm.Recipe(
        sources={"a": Read(read=f"{s3.url}/in/*.jsonl")},
        steps=[Map(call=note_modules)],
        storage_options={"profile": "other"},
        output=str(tmp_path / "out"),
    )
    gm.run(recipe, backend="processes", workers=1, progress=False)
    assert [record["text"] for record in gm.open_dataset(tmp_path / "out")] == ["botocore obstore"]
