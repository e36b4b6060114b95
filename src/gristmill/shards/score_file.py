"""Score files: what the filters of a run have measured in every document that reached them, kept or dropped.

There is one file for each source and stage in which a step measures, `scores/<source>/stage-1.arrow`: an Arrow stream
compressed with LZ4, one row for each document, one block for each cell, so that files are joined without decoding.
Within a block rows are sorted by origin: their order depends neither on tasks nor on workers. Columns:

* `origin`: file, position and part of the document;
* `language`: as the step `language` or the input names it; null if nothing does;
* `<step>.<score>`: the value that was compared; null if the document did not reach the step;
* `<step>.reason`: 0 if the step kept the document, else 1 + the index of the reason in the layout; null as above;
* `<step>.table`: where a step has thresholds by language, 0 or 1 + the index of the language; null as above.

A second step of the same name is `<step>-2`. The schema's metadata `gristmill.scores` holds the `ScoreLayout` as JSON.
Cost: about 70 bytes a document with 26 scores.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import DamagedDatasetError
from gristmill.core.records import ORIGIN, ORIGIN_TYPE
from gristmill.core.scores import StepScores
from gristmill.shards.canonical import STREAM_END, canonicalize_batch, stream_header
from gristmill.storage.files import compute_file_checksum
from gristmill.storage.locations import decode_stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.shards.stored_files import ScoreFile
    from gristmill.storage.locations import Location

LAYOUT_VERSION = 2
LANGUAGE = "language"
METADATA_KEY = b"gristmill.scores"
# zstd takes three times as long: Arrow makes a new context for each buffer, and a block has about 60 small ones.
_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)

BIN_EDGES = np.array([*(number / 100 for number in range(101)), *(2 ** (number / 4) for number in range(1, 161))])
"""The lower edges of the bins of histograms: hundredths up to 1, then four for each doubling. Bin 0 is below 0."""
_BIN_OF_0 = 1

# The first bits of a number (sign, exponent, eight of the mantissa) leave at most two bins. The first entry is for all
# numbers below 2^-7, the last one for all from 2^40 on.
_SHIFT = 44
_FIRST, _LAST = (int(np.float64(number).view(np.int64)) >> _SHIFT for number in (2**-7, 2**40))
_LEAST = np.array([-np.inf, *(np.arange(_FIRST + 1, _LAST + 1) << _SHIFT).view(np.float64)])
_BIN_OF_LEAST = np.searchsorted(BIN_EDGES, _LEAST, side="right")
_NEXT_EDGE = np.append(BIN_EDGES, np.nan)[_BIN_OF_LEAST]


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
        """Encode the canonical rows of one cell, in the order of their origins."""
        origin = rows.column(ORIGIN)
        keys = [origin.field(name).to_numpy(zero_copy_only=False) for name in ("part", "position", "file")]
        order = np.lexsort(keys)
        if np.any(np.diff(order) != 1):
            rows = canonicalize_batch(rows.take(pa.array(order)), self.schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema, options=_WRITE_OPTIONS) as stream:
            stream.write_batch(rows)
        return sink.getvalue()[len(self.header()) : -len(STREAM_END)]

    def footer(self) -> bytes:
        return STREAM_END


class ScoreHistograms:
    """Counts the values of each score by the bins of `BIN_EDGES`."""

    def __init__(self, layout: ScoreLayout) -> None:
        scores = [(step.column(score.name), score.is_whole) for step in layout.steps for score in step.scores]
        self._dtypes = {name: np.dtype(np.int64 if is_whole else np.float64) for name, is_whole in scores}
        self._counts = np.zeros((len(scores), len(BIN_EDGES) + 1), np.int64)

    def add(self, rows: pa.RecordBatch) -> None:
        """Count the values of canonical rows, in which nulls are stored as 0."""
        for (name, dtype), counts in zip(self._dtypes.items(), self._counts, strict=True):
            column = rows.column(name)
            values = np.frombuffer(column.buffers()[1], dtype).astype(np.float64, copy=False)
            counts[:] += np.bincount(find_bins(values), minlength=len(counts))
            counts[_BIN_OF_0] -= column.null_count

    def list_bins(self) -> dict[str, list[tuple[int, int]]]:
        """For each column the bins that are not empty, with their counts."""
        filled = [np.flatnonzero(counts) for counts in self._counts]
        return {
            name: list(zip(bins.tolist(), counts[bins].tolist(), strict=True))
            for name, counts, bins in zip(self._dtypes, self._counts, filled, strict=True)
        }


def find_bins(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Find the bin of each value: what a search in `BIN_EDGES` would find, in a third of its time.

    >>> find_bins(np.array([-1.0, 0.0, 0.29, 1.0, 2.0**40, np.nan])).tolist()
    [0, 1, 30, 101, 261, 261]
    """
    if np.isnan(values.sum()):
        values = np.where(np.isnan(values), np.inf, values)
    entries = values.view(np.int64) >> _SHIFT
    entries -= _FIRST
    np.maximum(entries, 0, out=entries)
    np.minimum(entries, _LAST - _FIRST, out=entries)
    bins: NDArray[np.int64] = _BIN_OF_LEAST[entries]
    bins += values >= _NEXT_EDGE[entries]
    return bins


def add_histograms(counts: Iterable[Mapping[str, Sequence[tuple[int, int]]]]) -> dict[str, list[tuple[int, int]]]:
    """Add up histograms: for each column the bins that are not empty, with their counts."""
    total: dict[str, Counter[int]] = {}
    for bins_by_name in counts:
        for name, bins in bins_by_name.items():
            total.setdefault(name, Counter()).update(dict(bins))
    return {name: sorted(bins.items()) for name, bins in total.items()}


class ScoreColumns:
    """The columns of one score file, of which a few are read at a time, block by block."""

    def __init__(self, folder: Location, file: ScoreFile) -> None:
        """Check the file.

        Raises:
            DamagedDatasetError: It is not the file that the manifest describes.
        """
        self._path = path = file.copy_below(folder)
        with self._name_damage():
            if compute_file_checksum(path) != file.xxh3:
                raise DamagedDatasetError(f"{path} has changed since the run", help="run the recipe again")
            with pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as stream:
                content = (stream.schema.metadata or {}).get(METADATA_KEY, b"")
                self.layout = decode_stored(content, ScoreLayout, path)
                if stream.schema != self.layout.schema():
                    raise DamagedDatasetError(f"{path} has other columns than its layout")

    def blocks(self, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """Read these columns of all rows."""
        names_in_file = [field.name for field in self.layout.schema()]
        fields = [names_in_file.index(name) for name in names]
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)  # blocks are small
        with (
            self._name_damage(),
            pa.memory_map(str(self._path)) as mapped,
            pa.ipc.open_stream(mapped, options=options) as stream,
        ):
            for block in stream:
                block.validate(full=True)
                yield block

    def read(self, names: Sequence[str]) -> pa.Table:
        """Read these columns of all rows, in the order of the file."""
        schema = pa.schema([field for field in self.layout.schema() if field.name in names])
        return pa.Table.from_batches(self.blocks(names), schema)

    @contextmanager
    def _name_damage(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise DamagedDatasetError(f"{self._path} cannot be read: {error}", help="run the recipe again") from error


class ScoreTable:
    """The content of one score file, all in memory: about 200 bytes a document for the filters of FineWeb."""

    def __init__(self, folder: Location, file: ScoreFile) -> None:
        """Read the file.

        Raises:
            DamagedDatasetError: It is not the file that the manifest describes.
        """
        self.source, self.stage = file.source, file.stage
        columns = ScoreColumns(folder, file)
        self.layout = columns.layout
        self.table = columns.read(self.layout.schema().names)
        if self.table.num_rows != file.rows:
            path = file.below(folder)
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
