"""`gristmill demo`: from raw text to packed rows, on files that every machine has, with one worker killed on purpose.

Python's own library becomes two sources, its code and its docstrings. A tokenizer is trained on them, and a recipe
filters, splits, tokenizes and packs them. The folder is kept: its recipe can be changed and run again.
"""

from __future__ import annotations

import ast
import io
import os
import signal
import sysconfig
import time
import tokenize
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

import msgspec

from gristmill.core.errors import GristmillError, UsageError
from gristmill.engine.parallel_map import parallel_map
from gristmill.engine.progress import Activity
from gristmill.pipeline.jobs.training_jobs import train_tokenizer
from gristmill.readers.read import Read
from gristmill.storage.commit import make_folder, write_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

INSTALLED = frozenset({"site-packages", "dist-packages"})
VOCAB_SIZE = 16384
_TRAINING_BYTES = 16 << 20

RECIPE = """\
# Made by `gristmill demo`. Change it and run it again: gristmill run recipe.yaml --update
output: out
seed: 7

sources:
  code: {read: data/code.jsonl}          # the source files of Python's own library
  docs: {read: data/docs.jsonl}          # their docstrings

steps:
  - length: {min_chars: 60}              # drops shorter documents, counted as too_short
  - deduplicate: {prefer: [code]}        # one of each set of similar texts; see out/dropped
  - split: {validation: 0.01}            # by the hash of the text, so copies stay on one side
  - tokenize: {tokenizer: tokenizer}     # ends each document with <|endoftext|>
  - pack: {row_length: 1024}             # best fit: no document is cut unless it is longer than a row

mixture: {code: 0.8, docs: 0.2}          # used when streaming; all rows are written
"""


@dataclass(frozen=True, slots=True)
class DemoFolder:
    """The folder of the demo before its recipe is run."""

    recipe: Path
    num_files: int
    num_docstrings: int
    num_unreadable: int
    """Files that cannot be decoded by the encoding that they name; they are left out."""
    killed_pid: int
    """The worker that was killed on purpose."""
    killed_at: Path
    """The file it was reading, relative to the library."""
    extract_seconds: float
    train_seconds: float


class ExtractedFile(msgspec.Struct, frozen=True, array_like=True):
    """The text of one source file, and its docstrings with the names of what they describe."""

    num_bytes: int
    text: str | None
    docstrings: list[tuple[str, str]]


def prepare_demo(
    folder: Path,
    library: Path | None = None,
    *,
    workers: int | Literal["auto"] = "auto",
    progress: bool | None = None,
    vocab_size: int = VOCAB_SIZE,
) -> DemoFolder:
    """Create the sources, the tokenizer and the recipe. Files that exist already with the same content stay."""
    _check_demo_folder(folder)
    library = library or Path(sysconfig.get_path("stdlib"))
    paths = find_source_files(library)
    if not paths:
        raise GristmillError(
            f"no Python source files in {library}", help="use a Python that was installed with its library's sources"
        )
    start = time.perf_counter()
    extracted, victim, killed_pid = _extract_all(library, paths, workers=workers, progress=progress)
    _check_counts(library, extracted)
    documents = [(path, file) for path, file in zip(paths, extracted, strict=True) if file.text is not None]
    make_folder(folder / "data")
    _write_if_new(folder / "data/code.jsonl", _encode_code(library, documents))
    _write_if_new(folder / "data/docs.jsonl", _encode_docstrings(library, documents))
    extract_seconds = time.perf_counter() - start
    start = time.perf_counter()
    if not (folder / "tokenizer/tokenizer.json").exists():
        read = Read(read=[str(folder / "data/*.jsonl")])
        special = ["<|endoftext|>"]
        with Activity(shows=progress is not False) as activity:
            activity.show("training a tokenizer")
            train_tokenizer(
                read,
                folder / "tokenizer",
                vocab_size=vocab_size,
                special_tokens=special,
                max_bytes=_TRAINING_BYTES,
            )
    if not (folder / "recipe.yaml").exists():  # the user may have changed it
        write_file(folder / "recipe.yaml", RECIPE.encode(), "demo")
    return DemoFolder(
        recipe=folder / "recipe.yaml",
        num_files=len(paths),
        num_docstrings=sum(len(file.docstrings) for _, file in documents),
        num_unreadable=len(paths) - len(documents),
        killed_pid=killed_pid,
        killed_at=victim.relative_to(library),
        extract_seconds=extract_seconds,
        train_seconds=time.perf_counter() - start,
    )


def _check_demo_folder(folder: Path) -> None:
    """Refuse a folder that holds files of the user."""
    recipe = folder / "recipe.yaml"
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not recipe.exists() or not recipe.read_text(errors="replace").startswith(RECIPE.splitlines()[0]):
        raise UsageError(f"{folder} holds other things than a demo", help="name a new folder: gristmill demo my-demo")


def _extract_all(
    library: Path, paths: Sequence[Path], *, workers: int | Literal["auto"], progress: bool | None
) -> tuple[list[ExtractedFile], Path, int]:
    victim = paths[len(paths) // 2]
    with TemporaryDirectory(prefix="gristmill-demo-") as scratch:
        marker = Path(scratch, "killed")
        extract = ExtractAndDieOnce(victim=victim, marker=marker, parent_pid=os.getpid())
        extracted = parallel_map(extract, paths, workers=workers, desc=f"reading {library.name}", progress=progress)
        if not marker.exists():
            raise GristmillError(f"no worker was killed: {victim} was not read by a worker process")
        return extracted, victim, int(marker.read_text())


@dataclass(frozen=True, slots=True)
class ExtractAndDieOnce:
    """Reads a file; the first worker to get `victim` kills itself first, as the kernel would when memory runs out."""

    victim: Path
    marker: Path
    """Written by the worker that dies, so that the next one does not."""
    parent_pid: int

    def __call__(self, path: Path) -> ExtractedFile:
        if path == self.victim and os.getpid() != self.parent_pid and not self.marker.exists():
            self.marker.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return extract_docstrings(path.read_bytes())


def extract_docstrings(data: bytes) -> ExtractedFile:
    r"""Extract the text and the docstrings of Python source code.

    >>> extract_docstrings(b'def f():\n    "Nothing."\n').docstrings
    [('f', 'Nothing.')]
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return ExtractedFile(len(data), None, [])
    try:
        return ExtractedFile(len(data), text, list(_find_docstrings(ast.parse(data))))
    except (SyntaxError, ValueError, RecursionError):  # the library's tests hold code that is wrong on purpose
        return ExtractedFile(len(data), text, [])


def _find_docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    while stack:
        name, node = stack.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring and not _has_lone_surrogates(docstring):
                yield name or "module", docstring
        for child in reversed(list(ast.iter_child_nodes(node))):
            own = getattr(child, "name", None) if hasattr(child, "body") else None
            stack.append((f"{name}.{own}" if name and own else own or name, child))


def _has_lone_surrogates(text: str) -> bool:
    """Tell whether a text holds halves of surrogate pairs, written as escapes: UTF-8 cannot encode them."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _encode_code(library: Path, documents: Iterable[tuple[Path, ExtractedFile]]) -> Iterator[bytes]:
    for path, extracted in documents:
        record = {"text": extracted.text, "file": path.relative_to(library).as_posix()}
        yield msgspec.json.encode(record) + b"\n"


def _encode_docstrings(library: Path, documents: Iterable[tuple[Path, ExtractedFile]]) -> Iterator[bytes]:
    for path, extracted in documents:
        file = path.relative_to(library).as_posix()
        for name, text in extracted.docstrings:
            yield msgspec.json.encode({"text": text, "name": name, "file": file}) + b"\n"


def _write_if_new(path: Path, lines: Iterable[bytes]) -> None:
    """Write a file unless it has this content already: then what was made from it stays up to date."""
    content = b"".join(lines)
    if not path.exists() or path.read_bytes() != content:
        write_file(path, content, "demo")


def _check_counts(library: Path, extracted: Sequence[ExtractedFile]) -> None:
    """Compare what was read with the file system: nothing may be missing, although a worker was killed."""
    num_files, num_bytes = count_source_files(library)
    read_bytes = sum(file.num_bytes for file in extracted)
    if (len(extracted), read_bytes) != (num_files, num_bytes):
        raise GristmillError(
            f"the books do not balance: read {len(extracted)} files of {read_bytes} bytes, "
            f"the file system has {num_files} files of {num_bytes} bytes"
        )


def find_source_files(folder: Path) -> list[Path]:
    """Find all `.py` files under `folder`, sorted, without packages that were installed into it."""
    return sorted(
        path for path in folder.rglob("*.py") if INSTALLED.isdisjoint(path.relative_to(folder).parts) and path.is_file()
    )


def count_source_files(folder: Path) -> tuple[int, int]:
    """Count the same files and their bytes in another way: a plain walk that opens none of them."""
    num_files = num_bytes = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in INSTALLED]
        for name in names:
            if name.endswith(".py"):
                num_files += 1
                num_bytes += Path(parent, name).stat().st_size
    return num_files, num_bytes
