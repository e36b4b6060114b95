"""Advice on a file that its reader refuses: what it probably is, by its first bytes, and what to do."""

from __future__ import annotations

from gristmill.storage.files import open_input

_FIRST_BYTES = 256
_KINDS = (
    (b"version https://git-lfs", "it is a pointer of Git LFS, not the file itself: run git lfs pull in its folder"),
    (b"/annex/objects/", "it is a pointer of git-annex, not the file itself: run git annex get in its folder"),
    (b"<!doctype html", "it is a web page, not data: the download was refused; check the address and the login"),
    (b"<html", "it is a web page, not data: the download was refused; check the address and the login"),
    (b"<?xml", "it is XML, perhaps an error message of a store, not the file; check the address and the login"),
    (b"PAR1", "it begins as Parquet and ends too early: its writer or its download was stopped; get the whole file"),
    (b"ARROW1", "it is an Arrow file: name it .arrow, or set format: arrow"),
    (b"\xff\xff\xff\xff", "it begins as an Arrow stream: name it .arrow, or set format: arrow"),
    (b"\x1f\x8b", "it is compressed with gzip: unpack it, or name it .jsonl.gz if it holds JSON lines"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with zstd: unpack it, or name it .jsonl.zst if it holds JSON lines"),
    (b"PK\x03\x04", "it is a zip archive: unpack it"),
    (b"{", "it looks like JSON: name it .jsonl, or set format: jsonl"),
    (b"[", "it looks like JSON: name it .jsonl, or set format: jsonl"),
)


def advise_on_file(path: str, expected_format: str) -> str:
    """Return what to do about a file that is not in the format that its name says (arrow, parquet)."""
    try:
        with open_input(path) as stream:
            first = stream.read(_FIRST_BYTES)
    except OSError:
        first = b""
    if not first.strip(b"\0"):
        problem = "it is empty" if not first else "it begins with zeros only: its disk or its writer failed"
        return f"{problem}: remove it, or rewrite it"
    for mark, advice in _KINDS:
        if first.lower().startswith(mark.lower()) and f"format: {expected_format}" not in advice:
            return advice
    return f"it begins with {first[:16]!r}: leave it out of read, set format to what it is, or rewrite it"
