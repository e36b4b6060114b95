"""What every store promises: complete objects, conditional writes, listings, uploads in parts."""

import os
import threading
import uuid

import pytest

from gristmill.core.errors import SourceChangedError, StoreRefusedError, UsageError
from gristmill.storage.commit import PendingFile
from gristmill.storage.folders import open_folder
from gristmill.storage.locations import StorePath, measure_file
from gristmill.storage.paths import find_files
from gristmill.storage.stores.base import PIECE_BYTES, ObjectChangedError, ObjectExistsError
from gristmill.storage.stores.open_store import forget_stores


@pytest.fixture(params=["memory", "s3", "gs", "az"])
def folder(request):
    if request.param == "memory":
        return StorePath(f"memory://{uuid.uuid4().hex}/folder")
    bucket = request.getfixturevalue(request.param)
    return StorePath(f"{bucket.url if request.param == 's3' else bucket}/folder")


def put(folder, name, data, **options):
    store, key = (folder / name).open_store()
    return store.put(key, data, **options)


def test_one_of_many_creators_wins(folder):
    winners = []

    def create(number):
        try:
            put(folder, "lease", str(number).encode(), create=True)
        except ObjectExistsError:
            return
        winners.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert (folder / "lease").read_bytes() == str(winners[0]).encode()


def test_only_the_version_that_was_seen_is_replaced(folder):
    first = put(folder, "manifest", b"one", create=True)
    second = put(folder, "manifest", b"two", replaces=first)
    with pytest.raises(ObjectChangedError):
        put(folder, "manifest", b"three", replaces=first)
    assert (folder / "manifest").read_bytes() == b"two"
    store, key = (folder / "manifest").open_store()
    assert store.head(key).version == second
    with pytest.raises(ObjectChangedError):
        put(folder, "nothing", b"x", replaces=second)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, 2 * PIECE_BYTES + 12345])
def test_a_file_has_every_byte(folder, size):
    data = os.urandom(size)
    with PendingFile(folder / "file", "run") as file:
        for start in range(0, size, 1_000_003):
            file.write(data[start : start + 1_000_003])
        assert measure_file(folder / "file") is None
        file.commit()
    assert (folder / "file").read_bytes() == data
    assert (file.num_bytes, measure_file(folder / "file")) == (size, size)
    with (folder / "file").open() as stream:
        middle = size // 2
        stream.seek(middle)
        assert stream.read(1000) + stream.read() == data[middle:]


@pytest.mark.parametrize("size", [10, 3 * PIECE_BYTES])
def test_what_is_not_committed_leaves_nothing(folder, size, request):
    with PendingFile(folder / "file", "run") as file:
        file.write(bytes(size))
    assert list(open_folder(folder).list_below()) == []
    if "s3" in request.node.callspec.id:
        assert request.getfixturevalue("s3").unfinished_uploads() == []


def test_listings(folder):
    for name in ("a", "b/c", "b/d/e", "b0", "z ü+%.txt"):
        put(folder, name, name.encode())
    assert sorted(open_folder(folder).list_below()) == sorted(
        (name, len(name.encode())) for name in ("a", "b/c", "b/d/e", "b0", "z ü+%.txt")
    )
    store, key = folder.open_store()
    entries = [entry if isinstance(entry, str) else entry.key[len(key) + 1 :] for entry in store.list_folder(key)]
    assert sorted(entries) == ["a", "b", "b0", "z ü+%.txt"]
    store.delete([f"{key}/a", f"{key}/b/c", f"{key}/never-there"])
    assert sorted(name for name, _ in open_folder(folder).list_below()) == ["b/d/e", "b0", "z ü+%.txt"]
    assert list(open_folder(folder / "nothing").list_below()) == []
    assert (folder / "b").is_dir()
    assert not (folder / "b").is_file()
    assert not (folder / "nothing").exists()


def test_copies(folder):
    put(folder, "a", b"data")
    store, key = folder.open_store()
    store.copy(f"{key}/a", f"{key}/b/c")
    assert (folder / "b/c").read_bytes() == b"data"


@pytest.mark.parametrize("size", [0, 5])
def test_a_stream_from_anywhere_ends_where_the_object_does(folder, size):
    put(folder, "x", bytes(range(size)))
    store, key = (folder / "x").open_store()
    for start in (0, 3, 5, 9):
        with store.open(key, start) as stream:
            assert stream.read() == bytes(range(size))[start:]
            assert stream.read(1) == b""
    with store.open(key) as stream:
        assert stream.seek(0, os.SEEK_END) == size
    with pytest.raises(FileNotFoundError):
        store.open(f"{key}-nothing").read(1)


def test_ranges_of_one_version(folder):
    store, key = (folder / "x").open_store()
    version = store.put(key, b"0123456789")
    assert bytes(store.read(key, 2, 5, version=version)) == b"234"
    assert bytes(store.read(key, 7)) == b"789"
    store.put(key, b"abcdefghij")
    with pytest.raises(SourceChangedError):
        store.read(key, 2, 5, version=version)


def test_orphaned_parts_are_found_and_aborted(s3):
    upload = s3.client.create_multipart_upload(Bucket=s3.name, Key="out/orphan")
    s3.client.upload_part(
        Bucket=s3.name, Key="out/orphan", UploadId=upload["UploadId"], PartNumber=1, Body=bytes(5 << 20)
    )
    for theirs in ("other/theirs", "out/theirs"):
        s3.client.create_multipart_upload(Bucket=s3.name, Key=theirs)
    store, key = StorePath(f"{s3.url}/out").open_store()
    assert list(store.abort_uploads(f"{key}/", lambda key: key.endswith("orphan"))) == ["out/orphan"]
    assert sorted(s3.unfinished_uploads()) == ["other/theirs", "out/theirs"]


def test_a_refusal_names_the_url_and_whose_keys_were_used(s3, tmp_path, monkeypatch):
    """In one line, without the keys."""
    (tmp_path / "credentials").write_text("[research]\naws_access_key_id = K1\naws_secret_access_key = S1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S2")
    monkeypatch.setenv("AWS_PROFILE", "research")
    for name, used in (("AWS_ACCESS_KEY_ID", "the keys in AWS_ACCESS_KEY_ID"), (None, "profile research")):
        monkeypatch.setenv(name, "K2") if name else monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        forget_stores()
        with pytest.raises(StoreRefusedError) as caught:
            StorePath(f"{s3.url}/x").read_bytes()
        assert caught.value.message.startswith(f"{s3.url}/x ({used}): access is denied: ")
        assert "\n" not in caught.value.message
        assert not [secret for secret in ("K1", "S1", "K2", "S2") if secret in str(caught.value)]


def test_a_bucket_that_does_not_exist_is_no_empty_folder(s3):
    missing = StorePath(f"{s3.url}-missing/web")
    for ask in (missing.is_dir, missing.read_bytes, lambda: find_files(f"{missing}/*.jsonl")):
        with pytest.raises(UsageError, match=rf"{s3.url}-missing/ \(.*\): there is no such bucket"):
            ask()
