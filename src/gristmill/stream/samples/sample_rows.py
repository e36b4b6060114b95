"""Batches of samples by their rows: read, decoded and transformed where the batch is made, in a loader's worker.

Row p is the same sample whatever was read before it. A sample that fails raises, or is replaced by another one of its
lane, chosen by a hash of the seed, the row and the attempt: so the order stays a function of the row alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.core.errors import DamagedDatasetError, GristmillError, SampleError, UsageError
from gristmill.core.media import (
    ANY_IMAGE,
    IMAGE_EXTENSIONS,
    PATH_SUFFIX,
    find_member,
    is_media,
    list_image_columns,
)
from gristmill.core.records import KEY
from gristmill.core.seeds import derive_key
from gristmill.stream.batches.collate import INPUT_IDS, Batch, Collate, choose_pad_id, collate, find_width
from gristmill.stream.batches.kernels import A_FILLED
from gristmill.stream.samples.sample_batch import join_samples, make_blank
from gristmill.stream.samples.sample_shards import SampleShards
from gristmill.stream.samples.tokenized import SampleIds, make_addresses
from gristmill.stream.stored_rows.row_sources import RowSources
from gristmill.stream.stream_reader import StreamReader

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.storage.user_cache.block_cache import BlockCache
    from gristmill.stream.lanes.arguments import StreamArguments
    from gristmill.stream.lanes.row_order import RowOrder
    from gristmill.stream.lanes.sources import Lane

_MAX_ATTEMPTS = 16
"""After this many replacements failed too, the sample fails: then it is not the samples."""


class SampleRows(StreamReader):
    """Makes batches of the samples of a stream."""

    table: SampleShards

    def __init__(
        self,
        lanes: list[Lane],
        order: RowOrder,
        sources: list[str],
        arguments: StreamArguments,
        num_rows: int | None,
        cache: BlockCache | None,
    ) -> None:
        super().__init__(lanes, order, num_rows, cache)
        self._sources = sources
        self._arguments = arguments
        self._collate = arguments.collate or Collate()
        has_ids = arguments.tokenize is not None or arguments.ids is not None
        self._ids = SampleIds(arguments.ids, arguments.tokenize) if has_ids else None
        """What makes rows of tokens of samples, if the stream does."""
        schemas = {id(shard.schema): shard.schema for shard in self._shards}  # all shards of a dataset share one
        columns = {key: _find_media(schema) for key, schema in schemas.items()}
        self._media = [columns[id(shard.schema)] for shard in self._shards]
        self.num_replaced = 0
        """The number of samples that were replaced in this process."""
        self.close_files()

    def _open_table(self) -> None:
        self.table = SampleShards(self._shards, self._cache)
        self._row_sources = RowSources(self._shards, self._sources)

    def take(
        self,
        rows: NDArray[np.int64],
        *,
        first_row: int,
        next_row: int,
        end: int | None = None,
        new: Callable[..., Any] = np.empty,
    ) -> Batch:
        """Make a batch of any rows in any order, for the step that ends before `next_row`.

        Rows from `end` on are blank samples, with the shapes of the first sample of the step.
        """
        end = self._num_rows if end is None else end
        is_real = np.ones(len(rows), bool) if end is None else rows < end
        samples = self.take_samples(rows[is_real])
        if self._ids is not None:
            return self._join_tokens(self._ids, samples, rows, is_real, (first_row, next_row, end), new)
        if len(samples) < len(rows):
            model = samples[0] if samples else self.take_samples(np.array([first_row]))[0]
            samples += [make_blank(model) for _ in range(len(rows) - len(samples))]
        batch = Batch(join_samples(samples, new))
        batch.first_row = first_row
        batch.next_row = next_row if end is None else min(next_row, end)
        batch.sources, _ = self._find_sources(rows, is_real)
        batch.tokens = np.zeros(len(rows), np.int64)
        batch.num_positions = 0
        return batch

    def _join_tokens(
        self,
        finder: SampleIds,
        samples: list[dict[str, Any]],
        rows: NDArray[np.int64],
        is_real: NDArray[np.bool_],
        span: tuple[int, int, int | None],
        new: Callable[..., Any],
    ) -> Batch:
        """Make a batch of tokens of samples, as `RowReader` makes it of stored rows."""
        first_row, next_row, end = span
        next_row = next_row if end is None else min(next_row, end)
        sources, shards = self._find_sources(rows, is_real)
        ids = finder.find(samples)
        addresses, buffers = make_addresses(ids, shards)
        whole = addresses
        if not samples and next_row > first_row:  # as wide as the global batch: no tensor may have a dimension of 0
            global_ids = finder.find(self.take_samples(np.arange(first_row, next_row)))
            whole, buffers = make_addresses(global_ids, np.zeros(len(global_ids), np.int64))
        width = find_width(whole, self._collate)
        batch = Batch(collate(addresses, self._collate, width, choose_pad_id(self._collate, finder.pad_id), new))
        del buffers
        batch.first_row = first_row
        batch.next_row = next_row
        batch.sources = sources
        batch.tokens = addresses[:, A_FILLED].copy()
        batch.num_positions = batch[INPUT_IDS].size
        return batch

    def _find_sources(
        self, rows: NDArray[np.int64], is_real: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find the source and the shard of each row; -1 for rows that only fill up a batch."""
        indices = np.where(is_real, self._order(rows).indices, -1)
        shards = np.where(is_real, self.table.shards_of(indices), -1)
        return self._row_sources(shards, indices), shards

    def take_samples(self, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return the samples of some rows, decoded and transformed."""
        self.close_files_of_parent()
        ordered = self._order(rows)
        numbers = zip(rows.tolist(), ordered.lanes.tolist(), ordered.indices.tolist(), strict=True)
        return [self._take_sample(row, lane, index) for row, lane, index in numbers]

    def _take_sample(self, row: int, lane: int, index: int) -> dict[str, Any]:
        can_replace = self._arguments.on_error == "replace"
        for attempt in range(_MAX_ATTEMPTS + 1):
            try:
                return self._prepare(self.table.read(index), self._media[self._find_shard(index)])
            except DamagedDatasetError:
                raise
            except Exception as error:
                if isinstance(error, UsageError) or not can_replace or attempt == _MAX_ATTEMPTS:
                    raise self._make_error(row, index, error) from error
            self.num_replaced += 1
            index = self._choose_replacement(row, lane, attempt)
        raise AssertionError("the last attempt returns or raises")

    def _choose_replacement(self, row: int, lane: int, attempt: int) -> int:
        """Choose the sample in the place of one that failed: a function of the seed, the row and the attempt alone."""
        number = derive_key(self._arguments.seed, f"replace/{row}/{attempt}") % int(self._order.sizes[lane])
        return int(self._order.sizes[:lane].sum()) + number

    def _find_shard(self, index: int) -> int:
        return int(self.table.shards_of(np.array([index]))[0])

    def _prepare(self, record: dict[str, Any], media: _MediaColumns) -> dict[str, Any]:
        decode, transform = self._arguments.decode, self._arguments.transform
        for name in media.structs:
            _unwrap(record, name)
        if decode != "bytes":
            for name in media.images if media.images is not None else _list_image_members(record):
                if record.get(name) is not None:
                    record[name] = _decode(record[name], decode)
        if transform is None:
            return record
        sample = transform(record)
        if not isinstance(sample, dict):
            raise UsageError(
                f"transform returned {type(sample).__name__}, not a dict",
                help="return the sample as a dict; on_error='replace' takes another one for a sample that raises",
            )
        return sample

    def _make_error(self, row: int, index: int, error: Exception) -> Exception:
        shard = self.table.shards[self._find_shard(index)]
        if isinstance(error, GristmillError):
            error.add_note(f"in row {row:,} of the stream, from {shard.path}")
            return error
        advice = "Stream(…, on_error='replace') takes another sample in its place"
        if self._arguments.on_error == "replace":
            advice = f"the {_MAX_ATTEMPTS} samples that were tried in its place cannot be used, either"
        return SampleError(
            f"row {row:,} of the stream cannot be used: {type(error).__name__}: {error}",
            help=f"it is in {shard.path}; {advice}",
        )


class _MediaColumns(NamedTuple):
    """The columns of a dataset that hold images and sounds."""

    structs: list[str]
    """Those of tables of `datasets`: bytes, and the path that they had."""
    images: list[str] | None
    """Those that are decoded; None: only a sample can tell."""


def _find_media(schema: pa.Schema) -> _MediaColumns:
    structs = [field.name for field in schema if is_media(field.type)]
    images = [name for name in structs if find_member(schema.field(name)) == ANY_IMAGE]
    return _MediaColumns(structs, [*list_image_columns(schema), *images] if len(schema) else None)


def _unwrap(record: dict[str, Any], name: str) -> None:
    """Put the bytes of an image or sound in the place of its struct, and its path beside them, as a recipe does."""
    if record[name] is None:
        return
    content, path = record[name]["bytes"], record[name]["path"]
    if content is None and path is not None:
        raise ValueError(f"{name} is only the path {path!r}: its bytes are not in the table")
    record[name] = content
    if KEY not in record:
        record.setdefault(name + PATH_SUFFIX, path)


def _list_image_members(record: dict[str, Any]) -> list[str]:
    return [name for name in record if name.rpartition(".")[2] in IMAGE_EXTENSIONS]


def _decode(content: bytes, decode: Any) -> Any:
    if callable(decode):
        return decode(content)
    from gristmill.images.codec import decode_image  # noqa: PLC0415  (raw bytes need no Pillow)

    image = decode_image(content)
    return np.asarray(image) if decode == "numpy" else image
