"""Counts that the last filter has made of these very texts, so that the next one need not count again.

One filter after another looks at what the one before has let through. The arrays are held while they are known, so an
address means the same texts for as long as it is compared. Costs one batch of texts a thread.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from gristmill.text.quality.counting import Counts

OF_LISTS = "stop_words"
"""Depends on more than the text, so it is never known."""


class _Last(threading.local):
    def __init__(self) -> None:
        self.texts: pa.Array | None = None
        self.counts: Counts = {}


_last = _Last()


def remember(texts: pa.LargeStringArray, counts: Counts) -> None:
    """Keep the counts of these texts, and forget those of others."""
    _last.texts = texts
    _last.counts = counts


def recall(texts: pa.LargeStringArray, counters: Iterable[str]) -> Counts | None:
    """The counts of these texts, if all that are asked for are known."""
    if _last.texts is None or _place(_last.texts) != _place(texts):
        return None
    return _last.counts if all(name in _last.counts and name != OF_LISTS for name in counters) else None


def _place(texts: pa.LargeStringArray) -> tuple[object, ...]:
    return (len(texts), texts.offset, *(None if buffer is None else buffer.address for buffer in texts.buffers()))
