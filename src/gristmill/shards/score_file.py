"""Score files: what the filters of a run have measured in every document that reached them, kept or dropped.

There is one file for each source and stage in which a step measures, `scores/<source>/stage-1.arrow`: an Arrow stream
compressed with zstd, one row for each document, one block for each cell, so that files are joined without decoding.
Within a block rows are sorted by origin: their order depends neither on tasks nor on workers. Columns:

* `origin`: file, position and part of the document;
* `language`: as the step `language` or the input names it; null if nothing does;
* `<step>.<score>`: the value that was compared; null if the document did not reach the step;
* `<step>.reason`: 0 if the step kept the document, else 1 + the index of the reason in the layout; null as above;
* `<step>.table`: where a step has thresholds by language, 0 or 1 + the index of the language; null as above.

A second step of the same name is `<step>-2`. The schema's metadata `gristmill.scores` holds the `ScoreLayout` as JSON.
Cost: about 50 bytes a document with 22 scores.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import DamagedDatasetError
from gristmill.core.records import ORIGIN, ORIGIN_TYPE
from gristmill.core.scores import StepScores
from gristmill.shards.arrow_stream import STREAM_END, stream_header
from gristmill.shards.canonical import canonicalize_batch
from gristmill.storage.checksums import compute_file_checksum
from gristmill.storage.stored_paths import decode_stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.shards.manifest import ScoreFile
    from gristmill.storage.locations import Location

LAYOUT_VERSION = 1
LANGUAGE = "language"
METADATA_KEY = b"gristmill.scores"
_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1), use_threads=False)

BIN_EDGES = np.array([*(number / 100 for number in range(101)), *(2 ** (number / 4) for number in range(1, 161))])
"""The lower edges of the bins of histograms: hundredths up to 1, then four for each doubling. Bin 0 is below 0."""


class ScoredStep(StepScores, frozen=True, kw_only=True):
    """A step of a source that measures, and where its columns are."""

    number: int = 1
    """Its number among the source's steps of the same name."""

    @property
    def prefix(self) -> str:
        """The beginning of its columns' names, before the dot."""
        return self.step if self.number == 1 else f"{self.step}-{self.number}"

    def column(self, name: str) -> str:
        """Return the column of a score, of `reason` or of `table`."""
        return f"{self.prefix}.{name}"


class ScoreLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of a score file's columns."""

    layout_version: int = LAYOUT_VERSION
    source: str
    stage: int
    """The number of the stage, from 1."""
    steps: list[ScoredStep]
    """In the order in which documents reach them."""

    def schema(self) -> pa.Schema:
        fields = [pa.field(ORIGIN, ORIGIN_TYPE), pa.field(LANGUAGE, pa.string())]
        for step in self.steps:
            fields += [
                pa.field(step.column(score.name), pa.int64() if score.is_whole else pa.float64())
                for score in step.scores
            ]
            fields.append(pa.field(step.column("reason"), pa.uint8()))
            if step.languages:
                fields.append(pa.field(step.column("table"), pa.uint16()))
        return pa.schema(fields, metadata={METADATA_KEY: msgspec.json.encode(self)})


class ScoreEncoder:
    """Encodes the blocks of a score file."""

    def __init__(self, layout: ScoreLayout) -> None:
        self.schema = layout.schema()

    def header(self) -> bytes:
        return stream_header(self.schema)

    def block(self, rows: pa.RecordBatch) -> pa.Buffer:
        """Encode the rows of one cell, in the order of their origins."""
        origin = rows.column(ORIGIN)
        keys = [origin.field(name).to_numpy(zero_copy_only=False) for name in ("part", "position", "file")]
        order = np.lexsort(keys)
        if np.any(np.diff(order) != 1):
            rows = rows.take(pa.array(order))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema, options=_WRITE_OPTIONS) as stream:
            stream.write_batch(canonicalize_batch(rows, self.schema))
        return sink.getvalue()[len(self.header()) : -len(STREAM_END)]

    def footer(self) -> bytes:
        return STREAM_END


def count_bins(rows: pa.RecordBatch, layout: ScoreLayout) -> dict[str, Counter[int]]:
    """Count the values of each score by the bins of `BIN_EDGES`."""
    counts = {}
    for step in layout.steps:
        for score in step.scores:
            name = step.column(score.name)
            values = rows.column(name).drop_null().to_numpy(zero_copy_only=False)
            numbers = np.bincount(np.searchsorted(BIN_EDGES, values, side="right"))
            bins = np.flatnonzero(numbers)
            counts[name] = Counter(dict(zip(bins.tolist(), numbers[bins].tolist(), strict=True)))
    return counts


def add_histograms(counts: Iterable[Mapping[str, Sequence[tuple[int, int]]]]) -> dict[str, list[tuple[int, int]]]:
    """Add up histograms: for each column the bins that are not empty, with their counts."""
    total: dict[str, Counter[int]] = {}
    for bins_by_name in counts:
        for name, bins in bins_by_name.items():
            total.setdefault(name, Counter()).update(dict(bins))
    return {name: sorted(bins.items()) for name, bins in total.items()}


class ScoreTable:
    """The content of one score file, all in memory: about 200 bytes a document for the filters of FineWeb."""

    def __init__(self, folder: Location, file: ScoreFile) -> None:
        """Read the file.

        Raises:
            DamagedDatasetError: It is not the file that the manifest describes.
        """
        self.source, self.stage = file.source, file.stage
        path = file.copy_below(folder)
        try:
            if compute_file_checksum(path) != file.xxh3:
                raise DamagedDatasetError(f"{path} has changed since the run", help="run the recipe again")
            with pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as stream:
                content = (stream.schema.metadata or {}).get(METADATA_KEY, b"")
                self.layout = decode_stored(content, ScoreLayout, path)
                if stream.schema != self.layout.schema():
                    raise DamagedDatasetError(f"{path} has other columns than its layout")
                self.table = stream.read_all()
                self.table.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise DamagedDatasetError(f"{path} cannot be read: {error}", help="run the recipe again") from error
        if self.table.num_rows != file.rows:
            raise DamagedDatasetError(f"{path} holds {self.table.num_rows} rows, but the manifest says {file.rows}")

    @property
    def num_rows(self) -> int:
        return int(self.table.num_rows)

    def values(self, step: ScoredStep, score: str) -> NDArray[Any]:
        """Return a score of every row; rows that did not reach the step have 0 (see `has_reached`)."""
        column = self.table.column(step.column(score))
        if column.null_count:
            column = column.fill_null(0)
        array: NDArray[Any] = column.to_numpy()
        return array

    def has_reached(self, step: ScoredStep) -> NDArray[np.bool_]:
        """For each row whether it has reached a step."""
        mask: NDArray[np.bool_] = self.table.column(step.column("reason")).is_valid().to_numpy()
        return mask

    @cached_property
    def languages(self) -> pa.DictionaryArray:
        """The language of each row, as a dictionary of names."""
        encoded = self.table.column(LANGUAGE).combine_chunks().dictionary_encode()
        return encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded


def describe_histograms(file: ScoreFile) -> dict[str, dict[str, list[float]]]:
    """Describe the histograms of a file: for each column the edges of neighbouring bins and the counts between them."""
    described = {}
    for name, bins in file.histograms.items():
        if not bins:
            continue
        first, last = bins[0][0], bins[-1][0]
        edges = [float("-inf"), *BIN_EDGES.tolist(), float("inf")][first : last + 2]
        counts = dict(bins)
        described[name] = {
            "edges": [round(edge, 6) for edge in edges],
            "counts": [counts.get(number, 0) for number in range(first, last + 1)],
        }
    return described
