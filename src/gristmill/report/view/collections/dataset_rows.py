"""The rows of a dataset. It is opened by its manifest alone; a shard is opened when one of its rows is asked for.

So the first page of 10^8 rows costs what the first page of ten does.
"""

from __future__ import annotations

import re
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK, TEXT
from gristmill.report.view.collections.document_origins import DocumentOrigins, name_origin
from gristmill.report.view.collections.scores import DatasetScores
from gristmill.report.view.collections.token_texts import TokenTexts
from gristmill.report.view.describe import describe_record, list_pictures
from gristmill.report.view.row_blocks import make_batch_block, make_line_blocks, make_parquet_blocks, make_record_blocks
from gristmill.report.view.rows import RowBlock, RowRange, Rows
from gristmill.shards.arrow_stream import read_unchecked_batches
from gristmill.shards.formats.jsonl import decode_record, read_whole_lines
from gristmill.shards.formats.shard_format import open_shard
from gristmill.shards.token_rows import LENGTHS, check_rows, tokens_in_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.report.view.rows import StepOrder
    from gristmill.shards.dataset import Dataset
    from gristmill.shards.manifests.stored_files import Shard

_MAX_TOKENS = 16_384
"""Tokens of a row that are shown."""
_PLACE = re.compile(r"(?P<source>[^:]*):(?P<file>.*)@(?P<position>[0-9]+)(?:/(?P<part>[0-9]+))?", re.DOTALL)


class DatasetRows(Rows):
    """The rows of a dataset, in the order of its manifest."""

    def __init__(self, dataset: Dataset, steps: StepOrder | None = None) -> None:
        self.dataset = dataset
        self.title = dataset.folder.name
        self.kind = dataset.manifest.kind
        self.has_tokens = dataset.manifest.holds_rows
        self.steps = steps
        self.origins = DocumentOrigins(dataset)
        self._scores = DatasetScores(dataset, self.origins)

    @cached_property
    def ranges(self) -> list[RowRange]:
        ranges: list[RowRange] = []
        start = 0
        for split, sources in self.dataset.manifest.splits.items():
            for source, shards in sources.items():
                num_rows = sum(shard.rows for shard in shards)
                ranges.append(RowRange(split=split, source=source, start=start, rows=num_rows))
                start += num_rows
        return ranges

    @property
    def score_names(self) -> list[str]:
        return self._scores.names

    @cached_property
    def token_texts(self) -> TokenTexts:
        return TokenTexts(self.dataset)

    def read_scores(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return self._scores.read_values(name)

    def describe_row(self, number: int) -> dict[str, Any]:
        record = self.dataset[number]
        origins = self.dataset.origins(number)
        names = [name_origin(self.origins.names, origin) for origin in origins]
        scores = [self._scores.find_document(origin) for origin in origins]
        if self.has_tokens:
            return {"number": number, "documents": list(self._describe_documents(record, names, scores))}
        return {"number": number, "origin": "".join(names[:1]), "scores": scores[0], **describe_record(record)}

    def _describe_documents(
        self, record: Mapping[str, Any], origins: list[str], scores: list[dict[str, float]]
    ) -> Iterator[dict[str, Any]]:
        """Describe the documents of a row: for each token its id, text and bytes, and whether it is trained."""
        ends = np.cumsum([0, *record[LENGTHS].tolist()]).tolist()
        for origin, values, (start, end) in zip(origins, scores, pairwise(ends), strict=True):
            shown = max(start, min(end, _MAX_TOKENS))
            ids = record[INPUT_IDS][start:shown].tolist()
            trained = record[LOSS_MASK][start:shown].tolist() if LOSS_MASK in record else [True] * len(ids)
            described = {"origin": origin, "scores": values, "num_tokens": end - start}
            if LOSS_MASK in record:
                described["num_trained"] = int(np.count_nonzero(record[LOSS_MASK][start:end]))
            yield {**described, "tokens": self.token_texts.describe(ids, trained)}

    def read_pictures(self, number: int) -> list[bytes]:
        return [content for _, content in list_pictures(self.dataset[number])]

    def find_document(self, place: str) -> int:
        match = _PLACE.fullmatch(place)
        row = None if match is None else self.origins.find(**match.groupdict())
        if row is None:
            raise UsageError(
                f"there is no document {place!r} in {self.title}", help="write it as it is shown: source:file@position"
            )
        return row

    def read_blocks(self, start: int, end: int) -> Iterator[RowBlock]:
        first = 0
        for _, _, shard in self.dataset.manifest.shards():
            if first < end and first + shard.rows > start:
                yield from self._read_shard(shard, first)
            first += shard.rows

    def _read_shard(self, shard: Shard, first: int) -> Iterator[RowBlock]:
        manifest = self.dataset.manifest
        path = self.dataset._check_size(shard)
        has_text = manifest.schema.columns.get(TEXT) in ("string", "large_string")
        if manifest.format == "arrow":
            for batch in read_unchecked_batches(path, manifest.shard_schema()):
                if self.has_tokens:
                    load, find = partial(self._decode_rows, batch), partial(_find_token, batch)
                    yield RowBlock(first, batch.num_rows, load, find)
                else:
                    yield make_batch_block(batch, first, has_text=has_text)
                first += batch.num_rows
        elif manifest.format == "parquet" and has_text:
            yield from make_parquet_blocks(path, first)
        elif manifest.format == "jsonl":
            yield from make_line_blocks(read_whole_lines(path), decode_record, first)
        else:
            schema = self.dataset.schema if manifest.format == "webdataset" else manifest.shard_schema()
            yield from make_record_blocks(open_shard(path, manifest.format, manifest.kind, schema).rows(), first)

    def _decode_rows(self, batch: pa.RecordBatch, _: bytes | None) -> pa.Array:
        check_rows(_check(batch))
        return self.token_texts.decode_rows(batch)


def _check(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch.validate(full=True)
    return batch


def _find_token(batch: pa.RecordBatch, token: int) -> NDArray[np.bool_]:
    """Tell for each row whether it has a token, padding not counted."""
    ids = _check(batch).column(INPUT_IDS)
    flat = ids.flatten().to_numpy(zero_copy_only=False)
    starts = np.concatenate([[0], np.cumsum(ids.value_lengths().to_numpy(zero_copy_only=False))])
    num_tokens = tokens_in_rows(batch)
    positions = np.flatnonzero(flat == token)
    rows = np.searchsorted(starts, positions, side="right") - 1
    mask = np.zeros(batch.num_rows, np.bool_)
    mask[rows[positions - starts[rows] < num_tokens[rows]]] = True
    return mask
