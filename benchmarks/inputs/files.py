"""Inputs that are hard on memory or on the file system."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.harness.contest import Setting

_MIB = 1 << 20


def large_jsonl(setting: Setting, megabytes: float) -> Path:
    """One file with lines of very different lengths, up to 1 MiB."""
    path = setting.folder / "inputs" / f"large-{megabytes:g}.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(_lines(megabytes * 1e6, random.Random(2)))
    return path


def tiny_files(setting: Setting, count: int) -> Path:
    """Files of 30 bytes to 2 kB, a thousand in each folder."""
    root = setting.folder / "inputs" / f"tiny-{count}"
    if (root / "complete").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    rng = random.Random(5)
    for number in range(count):
        path = root / f"{number // 1000:03d}/{number:06d}.jsonl"
        if number % 1000 == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(b'{"text": "' + b"word " * rng.choice((3, 10, 60, 390)) + b'"}\n')
    (root / "complete").touch()
    return root


def _lines(num_bytes: float, rng: random.Random) -> Iterator[bytes]:
    words = [f"{rng.getrandbits(30):x}" for _ in range(50_000)]
    text = " ".join(rng.choices(words, k=_MIB // 2))
    written = 0
    while written < num_bytes:
        size = min(_MIB - 64, int(rng.lognormvariate(8, 2)) + 1)
        start = rng.randrange(len(text) - size)
        line = b'{"text": "' + text[start : start + size].encode() + b'"}\n'
        yield line
        written += len(line)
