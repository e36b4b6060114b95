"""The inputs of the contests, written once into a folder: real text, or files that are hard on memory."""

import itertools
import json
import random
import sysconfig
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

MIB = 1 << 20
_PARTS_BYTES = 16 * MIB


def packed_parts(corpus, folder):
    """JSONL files, cut at lines into parts of about 16 MiB, each one zstd frame."""
    parts = folder / "parts"
    if parts.exists():
        return parts
    lines = itertools.chain.from_iterable(path.open("rb") for path in corpus) if corpus else python_sources()
    number = 0
    parts.mkdir()
    while part := _gathered(lines, _PARTS_BYTES):
        packed = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(part)
        (parts / f"part-{number:03d}.jsonl.zst").write_bytes(packed)
        number += 1
    return parts


def python_sources(num_bytes=256 * MIB):
    """Python's own library in new orders, each time with other numbers in it: no text occurs twice."""
    found = Path(sysconfig.get_path("stdlib")).rglob("*.py")
    pool = [line for path in sorted(found) for line in path.read_text(errors="replace").split("\n") if line.strip()]
    rng = random.Random(1)
    written = number = 0
    while written < num_bytes:
        text = "\n".join(f"{line}  # {rng.random()}" for line in rng.choices(pool, k=rng.randrange(2, 120)))
        line = json.dumps({"id": number, "text": text}).encode() + b"\n"
        yield line
        written += len(line)
        number += 1


def _gathered(lines, num_bytes):
    part = bytearray()
    for line in lines:
        part += line
        if len(part) >= num_bytes:
            break
    return bytes(part)


def records(num_bytes, rng, *, max_bytes=MIB):
    """Lines of very different lengths, up to 1 MiB."""
    words = [f"{rng.getrandbits(30):x}" for _ in range(50_000)]
    text = " ".join(rng.choices(words, k=4 * max_bytes // 8))
    written = 0
    while written < num_bytes:
        size = min(max_bytes - 64, int(rng.lognormvariate(8, 2)) + 1)
        start = rng.randrange(len(text) - size)
        line = b'{"text": "' + text[start : start + size].encode() + b'"}\n'
        yield line
        written += len(line)


def large_jsonl(folder):
    """2 GiB in one plain file."""
    path = folder / "large.jsonl"
    if not path.exists():
        with path.open("wb") as file:
            file.writelines(records(2048 * MIB, random.Random(2)))
    return path


def large_gzip(folder):
    """1 GiB in one member."""
    path = folder / "large.jsonl.gz"
    if not path.exists():
        packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        with path.open("wb") as file:
            file.writelines(packer.compress(line) for line in records(1024 * MIB, random.Random(3)))
            file.write(packer.flush())
    return path


def large_row_group(folder):
    """1 GiB of text in one row group."""
    path = folder / "large.parquet"
    if not path.exists():
        texts = [line[10:-3].decode() for line in records(1024 * MIB, random.Random(4))]
        table = pa.table({"text": pa.array(texts, pa.large_string())})
        pq.write_table(table, path, row_group_size=len(table), compression="zstd")
    return path


def tiny_files(folder, count):
    """Files of 30 bytes to 2 KB, a thousand in each folder."""
    root = folder / f"tiny-{count}"
    if root.exists():
        return root
    rng = random.Random(5)
    for number in range(count):
        path = root / f"{number // 1000:03d}/{number:06d}.jsonl"
        if number % 1000 == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(b'{"text": "' + b"word " * rng.choice((3, 10, 60, 390)) + b'"}\n')
    return root
