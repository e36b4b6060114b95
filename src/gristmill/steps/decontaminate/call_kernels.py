"""Calls the compiled functions of `decontaminate` once, so that they are in the cache before the workers start."""

from __future__ import annotations

import pyarrow as pa

from gristmill.core.records import TEXT_TYPE
from gristmill.steps.decontaminate.item_index import build_index
from gristmill.steps.decontaminate.items import QUESTION, BenchmarkItem


def call_kernels() -> None:
    """Search a text for a question."""
    items = [BenchmarkItem("a/1", {QUESTION: "one two three"}), BenchmarkItem("a/2", {QUESTION: "one two"})]
    build_index(items, ngram=3, min_words=2).find_hits(pa.array(["zero one two three"], TEXT_TYPE))
