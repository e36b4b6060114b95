"""The streams whose documents a `deduplicate` compares."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.splits import TRAIN
from gristmill.pipeline.barriers.base import list_stored_inputs
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.planning.units import Span
from gristmill.pipeline.stages.lines_input import LinesInput
from gristmill.pipeline.stages.stored import SIZES_ONLY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gristmill.pipeline.stages.outputs.split_files import Annotation
    from gristmill.pipeline.stages.slices.slice_task import SliceResult
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.pipeline.stages.unit_tasks import StageUnit

_BYTES_PER_DOCUMENT = 256
"""What tasks hold at most for each document of a range."""
_MAX_RANGES = 256
"""Each task of one kind leaves a piece for each range: with more of them, pieces would be too small to read."""


@dataclass(frozen=True, slots=True)
class BarrierUnit:
    """A stream of a unit at the barrier: what one of its slices has left of one split."""

    unit: StageUnit
    stream: StoredInput
    annotation: Annotation | None
    """What the stage has noted of the documents."""
    is_against: bool = False
    """The documents come from the files of `against`."""
    is_held_out: bool = False
    """The documents belong to another split than training."""
    num_bytes: int = 0
    """The size of the stream; 0: not known."""

    @property
    def is_reference(self) -> bool:
        """Whether its documents always stay."""
        return self.is_against or self.is_held_out

    @property
    def fingerprint(self) -> str:
        """The fingerprint of all streams of the unit that are held out, or that are not."""
        name = self.unit.fingerprint.removesuffix(SIZES_ONLY)
        return fingerprint.of(name, "held out") if self.is_held_out else name

    @property
    def num_rows(self) -> int:
        return self.stream.num_rows


def collect_barrier_units(
    unit_results: Iterable[tuple[StageUnit, SliceResult]], *, is_against: bool = False
) -> Iterator[BarrierUnit]:
    """Collect the streams that have documents, of each unit held-out ones first."""
    for unit, result in unit_results:
        streams = list_stored_inputs(result)
        sizes = [file.data.bytes for file in result.split_files]
        if unit.fingerprint.endswith(SIZES_ONLY):
            streams, sizes = _read_lines_again(unit, streams)
        parts = zip(streams, result.split_files, sizes, strict=True)
        for stream, file, num_bytes in sorted(parts, key=lambda part: part[0].split == TRAIN):
            if stream.num_rows:
                is_held_out = stream.split != TRAIN
                yield BarrierUnit(unit, stream, file.annotation, is_against, is_held_out, num_bytes)


def _read_lines_again(unit: StageUnit, streams: Sequence[StoredInput]) -> tuple[list[StoredInput], list[int]]:
    """Make inputs of streams whose documents are in the unit's files, and guess how much of these each stands for."""
    spans = [span for span in unit.inputs if isinstance(span, Span)]
    files = tuple({span.file.id: span.file for span in spans}.values())
    num_rows, num_bytes = sum(stream.num_rows for stream in streams), sum(span.num_bytes for span in spans)
    inputs: list[StoredInput] = [
        LinesInput(
            stream.path,
            stream.num_rows,
            stream.split,
            read=unit.source.read,
            schema=unit.source.stage_schemas[0],
            files=files,
        )
        for stream in streams
    ]
    return inputs, [num_bytes * stream.num_rows // max(1, num_rows) for stream in streams]


def cut_ranges(units: Sequence[BarrierUnit], partition_bytes: int) -> NDArray[np.int64]:
    """Cut the documents into ranges of whole units; return the first document of each, and the number of all."""
    num_documents = sum(unit.num_rows for unit in units)
    size = max(partition_bytes // _BYTES_PER_DOCUMENT, -(-num_documents // _MAX_RANGES))
    starts, next_start = [0], 0
    for _, streams in groupby(units, key=lambda unit: unit.fingerprint):
        next_start += sum(stream.num_rows for stream in streams)
        if next_start - starts[-1] >= size:
            starts.append(next_start)
    if starts[-1] != next_start:
        starts.append(next_start)
    return np.array(starts, np.int64)
