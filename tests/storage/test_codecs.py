import bz2
import gzip
import io
import lzma
import shutil
import subprocess
import tracemalloc

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.storage.codecs import compress_frame, decompress, find_codec, strip_codec

CODECS = ("gzip", "zstd", "bz2", "xz", "lz4")
SUFFIXES = {"gzip": ".gz", "zstd": ".zst", "bz2": ".bz2", "xz": ".xz", "lz4": ".lz4"}
LIBRARIES = {
    "gzip": gzip.decompress,
    "bz2": bz2.decompress,
    "xz": lzma.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read(),
    "lz4": lambda data: lz4.frame.LZ4FrameFile(io.BytesIO(data)).read(),
}


class Trickle(io.RawIOBase):
    """A stream that gives a few bytes at a time, as a pipe or a remote store may."""

    def __init__(self, data, step):
        self.data, self.step, self.position = data, step, 0

    def readable(self):
        return True

    def readinto(self, buffer):
        piece = self.data[self.position : self.position + min(self.step, len(buffer))]
        buffer[: len(piece)] = piece
        self.position += len(piece)
        return len(piece)


def unpack(data, codec):
    return b"".join(decompress(io.BytesIO(data), codec))


@pytest.mark.parametrize("codec", CODECS)
@given(pieces=st.lists(st.binary(max_size=300).map(lambda data: data * 50), max_size=5))
def test_frames_one_after_the_other_are_one_stream(codec, pieces):
    packed = b"".join(compress_frame(piece, codec) for piece in pieces)
    assert unpack(packed, codec) == b"".join(pieces)
    if packed:
        assert LIBRARIES[codec](packed) == b"".join(pieces)


@pytest.mark.parametrize("codec", CODECS)
def test_the_stock_tool_reads_what_we_write_and_we_read_what_it_writes(codec, tmp_path):
    tool = codec if codec != "bz2" else "bzip2"
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    pieces = [b"first\n" * 1000, b"", b"".join(b"second %d\n" % number for number in range(20_000))]
    path = tmp_path / ("x" + SUFFIXES[codec])
    path.write_bytes(b"".join(compress_frame(piece, codec) for piece in pieces))
    assert subprocess.run([tool, "-dc", path], capture_output=True, check=True).stdout == b"".join(pieces)
    packed = subprocess.run([tool, "-c"], input=b"".join(pieces), capture_output=True, check=True).stdout
    assert unpack(packed * 2, codec) == b"".join(pieces) * 2


@pytest.mark.parametrize("codec", CODECS)
def test_equal_data_give_equal_bytes_from_any_kind_of_buffer(codec):
    data = bytes(range(256)) * 500
    frame = compress_frame(data, codec)
    assert frame == compress_frame(data, codec) == compress_frame(bytearray(data), codec)
    assert frame == compress_frame(memoryview(data), codec)


def test_a_gzip_member_holds_no_time_and_no_system():
    assert compress_frame(b"x", "gzip")[3:10] == b"\x00\x00\x00\x00\x00\x00\xff"


@pytest.mark.parametrize("codec", CODECS)
def test_levels(codec):
    data = b"some text, some more text\n" * 10_000
    assert unpack(compress_frame(data, codec, 1) + compress_frame(data, codec, 9), codec) == data * 2
    with pytest.raises(UsageError, match="level"):
        compress_frame(data, codec, 99)


def test_an_unknown_codec_is_wrong_use():
    with pytest.raises(UsageError, match="compression"):
        compress_frame(b"", "rar")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("step", [1, 1000, 65_537])
def test_chunks_do_not_depend_on_how_the_bytes_arrive(codec, step):
    data = b"".join(b"line %d of some text\n" % number for number in range(5_000 if step == 1 else 150_000))
    packed = compress_frame(data, codec, 1) * 2
    assert list(decompress(Trickle(packed, step), codec)) == list(decompress(io.BytesIO(packed), codec))
    assert unpack(packed, codec) == data * 2


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_unpacked_in_small_chunks(codec):
    num_bytes = 100 * 2**20
    bomb = compress_frame(bytes(num_bytes), codec, 1)
    total = largest = 0
    tracemalloc.start()
    for chunk in decompress(io.BytesIO(bomb), codec):
        total += len(chunk)
        largest = max(largest, len(chunk))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == num_bytes
    assert largest <= 1.125 * 2**20
    assert peak < 16 * 2**20


@pytest.mark.parametrize("codec", CODECS)
def test_an_empty_file_is_an_empty_stream(codec):
    assert unpack(b"", codec) == b""
    assert unpack(compress_frame(b"", codec), codec) == b""


@pytest.mark.parametrize("codec", ["gzip", "xz"])
def test_zeros_between_and_after_members_are_padding(codec):
    frame = compress_frame(b"data", codec)
    assert unpack(frame + bytes(8) + frame + bytes(200_000), codec) == b"datadata"


def test_skippable_zstd_frames_are_skipped():
    skippable = b"\x5a\x2a\x4d\x18" + (3_000_000).to_bytes(4, "little") + bytes(3_000_000)
    frame = compress_frame(b"data", "zstd")
    assert unpack(skippable + frame + skippable + frame, "zstd") == b"datadata"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"write_checksum": True},
        {"write_content_size": False},
        {"level": 19},
        {"threads": 2},
        {"compression_params": zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)},
    ],
)
@pytest.mark.parametrize("num_bytes", [0, 1, 255, 256, 70_000, 3_000_000])
def test_all_kinds_of_zstd_headers_are_read(options, num_bytes):
    data = (b"0123456789" * (num_bytes // 10 + 1))[:num_bytes]
    frame = zstandard.ZstdCompressor(**options).compress(data)
    stream = io.BytesIO()
    with zstandard.ZstdCompressor(**options).stream_writer(stream, closefd=False) as writer:
        writer.write(data)
    assert unpack(frame + stream.getvalue(), "zstd") == data * 2


def test_a_codec_is_known_by_its_suffix():
    assert [find_codec(f"a.jsonl{suffix}") for suffix in (".gz", ".zst", ".zstd", ".bz2", ".xz", ".lz4", "")] == [
        *("gzip", "zstd", "zstd", "bz2", "xz", "lz4"),
        None,
    ]
    assert strip_codec("s3://b/a.JSONL.GZ") == "s3://b/a.JSONL"
    assert strip_codec("a.gz.txt") == "a.gz.txt"
