"""What a file that its reader refuses probably is, and what to do about it: by its first bytes."""

from __future__ import annotations

from gristmill.storage.files import open_input

_FIRST_BYTES = 256
_KINDS = (
    (b"version https://git-lfs", "it is a pointer of Git LFS, not the file itself: run git lfs pull where it lies"),
    (b"/annex/objects/", "it is a pointer of git-annex, not the file itself: run git annex get where it lies"),
    (b"<!doctype html", "it is a web page, not data: the download was refused; look at the address and the login"),
    (b"<html", "it is a web page, not data: the download was refused; look at the address and the login"),
    (b"<?xml", "it is XML, perhaps an error of a store instead of the file; look at the address and the login"),
    (b"PAR1", "it begins as Parquet and ends too early: its writer or its download was stopped; get it whole"),
    (b"ARROW1", "it is an Arrow file: name it .arrow, or set format: arrow"),
    (b"\xff\xff\xff\xff", "it begins as an Arrow stream: name it .arrow, or set format: arrow"),
    (b"\x1f\x8b", "it is compressed with gzip: unpack it, or name it .jsonl.gz if it holds JSON lines"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with zstd: unpack it, or name it .jsonl.zst if it holds JSON lines"),
    (b"PK\x03\x04", "it is a zip archive: unpack it"),
    (b"{", "it looks like JSON: name it .jsonl, or set format: jsonl"),
    (b"[", "it looks like JSON: name it .jsonl, or set format: jsonl"),
)


def advise_on_file(path: str, wanted: str) -> str:
    """What to do about a file that is not `wanted` (arrow, parquet) although its name says so."""
    try:
        with open_input(path) as stream:
            first = stream.read(_FIRST_BYTES)
    except OSError:
        first = b""
    if not first.strip(b"\0"):
        what = "it is empty" if not first else "it begins with zeros only: its disk or its writer failed"
        return f"{what}: remove it, or write it anew"
    for mark, advice in _KINDS:
        if first.lower().startswith(mark.lower()) and f"format: {wanted}" not in advice:
            return advice
    return f"it begins with {first[:16]!r}: leave it out of read, set format to what it is, or write it anew"
