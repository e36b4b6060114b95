"""The result of an export."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The files that an export has written, and how to use them."""

    files: list[Path]
    rows: dict[str, int]
    """The number of rows in each split."""
    usage: list[str]
    """How to use the files, in one line for each split."""
    notes: list[str]
    """Warnings where sources follow one another, or documents are not padded as `align` of `pack` intends."""
    nan_as_null: int = 0
    """How many numbers that JSON cannot hold (NaN, infinity) were written as null."""
    uploaded: dict[str, int] = field(default_factory=dict)
    """In place of `files`, where they went to a store: the URL of each, and its bytes. On the Hub: its path there."""
    commit: str | None = None
    """The address of the commit on the Hub."""
