"""Reading from a real object store."""

import pytest

from gristmill.core.errors import UsageError
from gristmill.storage.codecs import compress_frame, decompress
from gristmill.storage.files import compute_file_checksum, open_input, read_version
from gristmill.storage.paths import find_files

NAMES = ("web/part-0000.jsonl", "web/part-0001.jsonl", "web/deep/x.jsonl", "web/_tmp/y.jsonl", "books/z.txt")


@pytest.fixture
def bucket(s3):
    for name in NAMES:
        s3.put(name, name.encode())
    s3.put("web/empty/", b"")  # the marker some tools make for a folder
    return s3


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
    assert relatives(f"{bucket.url}/{pattern}") == expected


def test_a_name_with_special_characters_is_found_as_it_is(bucket):
    for name in ("odd/[1].txt", "odd/1.txt", "odd/[2]/x.txt"):
        bucket.put(name, b"")
    assert relatives(f"{bucket.url}/odd/[1].txt") == ["[1].txt"]
    assert relatives(f"{bucket.url}/odd/[2]") == ["x.txt"]
    assert relatives(f"{bucket.url}/odd/[12].txt") == ["1.txt"]


@pytest.mark.parametrize("pattern", ["/web/part-0000.jsonl", "web//*.jsonl"])
def test_an_empty_name_between_slashes_is_refused(bucket, pattern):
    with pytest.raises(UsageError, match="an empty name between slashes"):
        find_files(f"{bucket.url}/{pattern}")


@pytest.mark.parametrize(
    "pattern", ["web/*.txt", "nothing/*", "web/part-{0000..0002}.jsonl", "nothing.txt", "web/empty"]
)
def test_nothing_found(bucket, pattern):
    with pytest.raises(UsageError) as caught:
        find_files(f"{bucket.url}/{pattern}")
    assert pattern in str(caught.value)


def test_a_bucket_that_does_not_exist_is_an_error(bucket):
    for pattern in ("s3://nowhere/*.jsonl", "s3://nowhere/**/*.jsonl", "s3://nowhere/a"):
        with pytest.raises(UsageError):
            find_files(pattern)


@pytest.mark.slow
def test_more_names_than_one_request_lists(bucket):
    for number in range(1100):
        bucket.put(f"many/{number:05d}", b"1")
    assert len(find_files(f"{bucket.url}/many/*")) == len(find_files(f"{bucket.url}/many")) == 1100
    assert len(find_files(f"{bucket.url}/many/{{00000..01099}}")) == 1100


def test_content_and_ranges(bucket):
    data = bytes(range(256)) * 80_000  # more than two blocks of read-ahead
    bucket.put("big.bin", data)
    for start in (0, 12_345_678, len(data)):
        with open_input(f"{bucket.url}/big.bin", start) as stream:
            assert stream.read() == data[start:]
    bucket.put("big.bin.zst", compress_frame(data, "zstd"))
    with open_input(f"{bucket.url}/big.bin.zst") as stream:
        assert b"".join(decompress(stream, "zstd")) == data


def test_a_checksum_of_a_remote_file(bucket, tmp_path):
    (tmp_path / "x").write_bytes(NAMES[0].encode())
    assert compute_file_checksum(f"{bucket.url}/{NAMES[0]}") == compute_file_checksum(tmp_path / "x")


def test_the_etag_tells_a_changed_object_of_the_same_size(bucket):
    (file,) = find_files(f"{bucket.url}/books/z.txt")
    (listed,) = find_files(f"{bucket.url}/books/*")
    assert file == listed
    assert read_version(file.path) == (file.num_bytes, file.version)
    bucket.put("books/z.txt", NAMES[-1].upper().encode())
    size, version = read_version(file.path)
    assert size == file.num_bytes
    assert version != file.version
    assert find_files(f"{bucket.url}/books/z.txt")[0].version == version
