"""Text corpora as JSON lines. A smaller one is the beginning of a larger one of the same kind."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from typing import TYPE_CHECKING

from benchmarks.inputs.sentences import edit_words, list_sentences, make_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.harness.contest import Setting

MB = 1_000_000
_SHARES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05)
_COPY_RATE = 0.1
_NUM_WORDS = 300


def plain(setting: Setting, megabytes: float) -> Path:
    """Documents of 1 to some hundred sentences, no copies."""
    return _written(setting, "plain", megabytes, lambda: _documents(setting.corpus, copies=False))


def with_copies(setting: Setting, megabytes: float) -> Path:
    """The same, one document in ten an edited copy of an earlier one, whose number is in `copy_of`."""
    return _written(setting, "copies", megabytes, lambda: _documents(setting.corpus, copies=True))


def short_documents(setting: Setting, count: int) -> Path:
    """Documents of 300 words, one in ten a copy with up to three words changed: about 2 kB each."""
    path = _path(setting, f"short-{count}")
    if not path.exists():
        _write(path, itertools.islice(_short_documents(), count))
    return path


def parts(setting: Setting, source: Path, count: int, *, compress: bool = False) -> Path:
    """Deal the lines of a file into so many files of a folder, plain or as one zstd frame each."""
    folder = source.with_name(f"{source.stem}-{count}{'-zst' if compress else ''}")
    if (folder / "complete").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    lines = source.read_bytes().splitlines(keepends=True)
    for number in range(count):
        content = b"".join(lines[number::count])
        name = f"part-{number:06d}.jsonl"
        if compress:
            import zstandard

            content = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(content)
            name += ".zst"
        (folder / name).write_bytes(content)
    (folder / "complete").touch()
    return folder


def repeated(setting: Setting, megabytes: float, times: int) -> Path:
    """Return a folder that holds the same plain documents several times, for work that remembers none of them."""
    source = plain(setting, megabytes)
    folder = source.with_name(f"{source.stem}-{times}-times")
    folder.mkdir(exist_ok=True)
    for number in range(times):
        path = folder / f"part-{number:02d}.jsonl"
        if not path.exists():
            path.hardlink_to(source)
    return folder


def read_once(path: Path) -> None:
    """Bring a file into the page cache, so that no side pays for the disk."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


def _path(setting: Setting, name: str) -> Path:
    source = f"-{setting.corpus.stem}" if setting.corpus else ""
    return setting.folder / "inputs" / f"{name}{source}.jsonl"


def _written(setting: Setting, kind: str, megabytes: float, documents: Callable[[], Iterator[bytes]]) -> Path:
    path = _path(setting, f"{kind}-{megabytes:g}")
    if not path.exists():
        _write(path, _until(documents(), megabytes * MB))
    return path


def _write(path: Path, lines: Iterator[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.writelines(lines)
    temporary.replace(path)


def _until(lines: Iterator[bytes], num_bytes: float) -> Iterator[bytes]:
    written = 0
    for line in lines:
        yield line
        written += len(line)
        if written >= num_bytes:
            return


def _documents(corpus: Path | None, *, copies: bool) -> Iterator[bytes]:
    pool, rng = list_sentences(corpus), random.Random(1)
    earlier: list[tuple[int, str]] = []
    for number in itertools.count():
        record = {"id": str(number)}
        if copies and earlier and rng.random() < _COPY_RATE:
            original, text = rng.choice(earlier)
            record |= {"text": " ".join(edit_words(text.split(" "), rng.choice(_SHARES), rng)), "copy_of": original}
        else:
            record["text"] = make_text(pool, max(1, int(rng.lognormvariate(2.6, 0.9))), rng)
            if copies and (len(earlier) < 20_000 or rng.random() < 0.05):
                earlier.append((number, record["text"]))
        yield json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _short_documents() -> Iterator[bytes]:
    import numpy as np

    rng = np.random.default_rng(1)
    letters = rng.integers(97, 123, size=(50_000, 10), dtype=np.uint8)
    lengths = rng.integers(2, 10, size=50_000)
    words = np.array([bytes(row[:length]).decode() for row, length in zip(letters, lengths, strict=True)], dtype=object)
    weights = np.cumsum(1 / np.arange(1, 50_001) ** 0.9)
    earlier = []
    while True:
        chosen = np.searchsorted(weights, rng.random((10_000, _NUM_WORDS)) * weights[-1])
        for new in np.minimum(chosen, 49_999):
            row = new
            if earlier and rng.random() < _COPY_RATE:
                row = earlier[rng.integers(len(earlier))].copy()
                changed = rng.integers(0, 4)
                row[rng.integers(0, _NUM_WORDS, size=changed)] = rng.integers(0, 50_000, size=changed)
            elif len(earlier) < 50_000:
                earlier.append(new)
            yield json.dumps({"text": " ".join(words[row])}).encode() + b"\n"
