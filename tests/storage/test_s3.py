"""Against a real S3 protocol: a moto server in this process, reached through s3fs."""

import socket

import pytest

from gristmill.core.errors import UsageError
from gristmill.storage.checksums import compute_file_checksum
from gristmill.storage.compression import compress_frame, decompress
from gristmill.storage.files import open_input, read_version
from gristmill.storage.paths import find_files

pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")
NAMES = ("web/part-0000.jsonl", "web/part-0001.jsonl", "web/deep/x.jsonl", "web/_tmp/y.jsonl", "books/z.txt")


@pytest.fixture(scope="module")
def endpoint():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture(scope="module")
def bucket(endpoint):
    import s3fs

    monkeypatch = pytest.MonkeyPatch()
    for key, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(key, value)
    s3fs.S3FileSystem.clear_instance_cache()
    fs = s3fs.S3FileSystem()
    fs.mkdir("corpus")
    for name in NAMES:
        fs.pipe(f"corpus/{name}", name.encode())
    fs.pipe("corpus/web/empty/", b"")  # the marker some tools make for a folder
    yield fs
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.undo()


def relatives(patterns):
    return [file.relative for file in find_files(patterns)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("web", ["deep/x.jsonl", "part-0000.jsonl", "part-0001.jsonl"]),
        ("web/*.jsonl", ["part-0000.jsonl", "part-0001.jsonl"]),
        ("web/**/*.jsonl", ["_tmp/y.jsonl", "deep/x.jsonl", "part-0000.jsonl", "part-0001.jsonl"]),
        ("web/part-{0000..0001}.jsonl", ["part-0000.jsonl", "part-0001.jsonl"]),
        ("{web,books}/*", ["books/z.txt", "web/part-0000.jsonl", "web/part-0001.jsonl"]),
        ("{web,books}", ["books/z.txt", "web/deep/x.jsonl", "web/part-0000.jsonl", "web/part-0001.jsonl"]),
        ("books/z.txt", ["z.txt"]),
        ("*/*/x.jsonl", ["web/deep/x.jsonl"]),
    ],
)
def test_patterns(bucket, pattern, expected):
    assert relatives(f"s3://corpus/{pattern}") == expected


@pytest.mark.parametrize(
    "pattern", ["web/*.txt", "nothing/*", "web/part-{0000..0002}.jsonl", "nothing.txt", "web/empty"]
)
def test_nothing_found(bucket, pattern):
    with pytest.raises(UsageError) as caught:
        find_files(f"s3://corpus/{pattern}")
    assert pattern in str(caught.value)


def test_a_bucket_that_does_not_exist_is_an_error(bucket):
    for pattern in ("s3://nowhere/*.jsonl", "s3://nowhere/**/*.jsonl", "s3://nowhere/a"):
        with pytest.raises(UsageError):
            find_files(pattern)


@pytest.mark.slow
def test_more_names_than_one_request_lists(bucket):
    bucket.pipe({f"corpus/many/{number:05d}": b"" for number in range(1100)})
    assert len(find_files("s3://corpus/many/*")) == len(find_files("s3://corpus/many")) == 1100
    assert len(find_files("s3://corpus/many/{00000..01099}")) == 1100


def test_content_and_ranges(bucket):
    data = bytes(range(256)) * 80_000  # more than two blocks of read-ahead
    bucket.pipe("corpus/big.bin", data)
    for start in (0, 12_345_678, len(data)):
        with open_input("s3://corpus/big.bin", start) as stream:
            assert stream.read() == data[start:]
    bucket.pipe("corpus/big.bin.zst", compress_frame(data, "zstd"))
    with open_input("s3://corpus/big.bin.zst") as stream:
        assert b"".join(decompress(stream, "zstd")) == data


def test_a_checksum_of_a_remote_file(bucket, tmp_path):
    (tmp_path / "x").write_bytes(NAMES[0].encode())
    assert compute_file_checksum(f"s3://corpus/{NAMES[0]}") == compute_file_checksum(tmp_path / "x")


def test_the_etag_tells_a_changed_object_of_the_same_size(bucket):
    (file,) = find_files("s3://corpus/books/z.txt")
    (listed,) = find_files("s3://corpus/books/*")
    assert file == listed
    assert read_version(file.path) == (file.num_bytes, file.version)
    bucket.pipe("corpus/books/z.txt", NAMES[-1].upper().encode())
    size, version = read_version(file.path)
    assert size == file.num_bytes
    assert version != file.version
    assert find_files("s3://corpus/books/z.txt")[0].version == version
