"""Calls the compiled functions for pieces of documents once, so that they are in the cache before the workers start."""

from __future__ import annotations

import pyarrow as pa

from gristmill.core.records import TEXT_TYPE
from gristmill.steps.deduplicate.partitions import call_place
from gristmill.steps.deduplicate.pieces import LINES, SUBSTRING, hash_pieces


def call_kernels() -> None:
    """Hash the lines and the words of a text, and sort some records."""
    call_place()
    texts = pa.array(["one two\nthree four"], TEXT_TYPE)
    for kind in (LINES, SUBSTRING):
        hash_pieces(texts, kind, 1)
