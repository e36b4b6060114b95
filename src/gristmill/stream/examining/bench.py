"""How fast a stream is here, in each way to use it, and which way is best.

Fields are compared in one thread of this process, loaders with the usual fields. A dataset on a store is also read
through an empty cache: in full shuffle, where each row may cost a block, and with shuffled blocks.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from gristmill.stream.batches.collate import Collate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gristmill.stream.batches.collate import Batch
    from gristmill.stream.stored_rows.block_reader import BlockReader
    from gristmill.stream.stream import Stream

USUAL_FIELDS = ("input_ids", "labels")
FIELDS = (("input_ids",), USUAL_FIELDS, (*USUAL_FIELDS, "position_ids", "cu_seqlens"))
_PROCESS = "this process"
_WINDOW = {"blocks": 64}


@dataclass(frozen=True, slots=True)
class MeasuredLoader:
    """The speed of one way to use a stream."""

    loader: str
    fields: list[str]
    first_batch_seconds: float
    rows_per_second: float
    tokens_per_second: float
    bytes_per_row: float | None = None
    """What was fetched for each row, on average; None: the dataset is on this disk."""


@dataclass(frozen=True, slots=True)
class StreamBench:
    """All measurements of a stream, and what to use."""

    measurements: list[MeasuredLoader]
    advice: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, with rounded numbers."""
        rounded = [
            {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(entry).items()}
            for entry in self.measurements
        ]
        return {"measurements": rounded, "advice": self.advice}


def measure_stream(
    open_stream: Callable[..., Stream],
    batch_size: int,
    seconds: float,
    workers: Sequence[int],
    torch_loaders: Callable[[Stream, int, int], tuple[str, Iterable[Batch]]] | None,
) -> StreamBench:
    """Measure a stream that `open_stream(collate=…)` opens, for some seconds in each way.

    Args:
        open_stream: Opens the stream; it takes arguments of `Stream` that differ from the user's.
        batch_size: Rows in a batch.
        seconds: The time for each measurement.
        workers: Numbers of loader workers; 0 is a `TorchLoader`.
        torch_loaders: Makes a loader of a stream, a batch size and a number of workers; None: torch is not installed.
    """
    streams = [open_stream(collate=Collate(fields=fields)) for fields in FIELDS]
    measurements = [
        _measure(_PROCESS, fields, stream, stream.batches(batch_size), seconds)
        for fields, stream in zip(FIELDS, streams, strict=True)
    ]
    loaders = measurements[1:2]
    for num_workers in workers if torch_loaders is not None else ():
        assert torch_loaders is not None
        stream = open_stream(collate=Collate(fields=USUAL_FIELDS))
        name, batches = torch_loaders(stream, batch_size, num_workers)
        loaders.append(_measure(name, USUAL_FIELDS, stream, batches, seconds))
    cold: list[MeasuredLoader] = []
    if streams[0].reader.is_remote:
        for name, shuffle in (("empty cache, full shuffle", True), ("empty cache, shuffled blocks", _WINDOW)):
            with tempfile.TemporaryDirectory() as cache:
                stream = open_stream(collate=Collate(fields=USUAL_FIELDS), cache=cache, shuffle=shuffle)
                cold.append(_measure(name, USUAL_FIELDS, stream, stream.batches(batch_size), seconds))
    return StreamBench([*measurements, *loaders[1:], *cold], _advise(loaders, cold))


def _measure(
    name: str, fields: Sequence[str], stream: Stream, batches: Iterable[Batch], seconds: float
) -> MeasuredLoader:
    start = time.perf_counter()
    iterator = iter(batches)
    first = next(iterator)
    begin = time.perf_counter()
    num_rows = num_tokens = 0
    # A stream may end in its first batch: then that one is the measurement.
    for batch in chain(iterator, [first]):
        num_rows += int(batch.row_mask.sum())
        num_tokens += int(batch.tokens.sum())
        if time.perf_counter() - begin >= seconds:
            break
    elapsed = max(time.perf_counter() - begin, 1e-9)
    blocks: BlockReader | None = getattr(stream.reader.table, "blocks", None)
    fetched = None if blocks is None else blocks.cache.fetched_bytes / max(num_rows + len(first.row_mask), 1)
    return MeasuredLoader(name, list(fields), begin - start, num_rows / elapsed, num_tokens / elapsed, fetched)


def _advise(loaders: Sequence[MeasuredLoader], cold: Sequence[MeasuredLoader]) -> list[str]:
    best = max(loaders, key=lambda entry: entry.rows_per_second)
    advice = [f"fastest here: {best.loader}, {best.rows_per_second:,.0f} rows/s"]
    if best.loader != _PROCESS and loaders[0].rows_per_second > 0.9 * best.rows_per_second:
        advice.append("one thread of the training process is as fast: TorchLoader(stream, batch_size, num_threads=1)")
    if len(cold) == 2:
        full, blocks = cold
        factor = blocks.rows_per_second / max(full.rows_per_second, 1e-9)
        if factor > 1.5:
            advice.append(
                f'until the cache is full, shuffle={{"blocks": {_WINDOW["blocks"]}}} is {factor:.1f} times as fast as '
                "a full shuffle; gristmill stream plan computes what each fetches"
            )
        else:
            advice.append("a full shuffle is as fast as shuffled blocks from this store: keep it")
    return advice
