"""The rows of a dataset, with the texts of their tokens and the scores of their documents.

A dataset is opened by its manifest alone; a shard is opened when one of its rows is asked for. So the first page of
10^8 rows costs what the first page of ten does. Scores are read when they are first asked for: the origins of all
documents and the score files, about 200 bytes a document. Small files are read at once, so that each document is shown
with its scores.

Documents are found by where they came from: each has a key, made of its origin.
"""

from __future__ import annotations

import codecs
import re
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK, ORIGIN, TEXT
from gristmill.report.view.column_queries import ColumnQueries, name_kinds
from gristmill.report.view.describe import describe_record, list_pictures
from gristmill.report.view.rows import RowBlock, RowRange, Rows
from gristmill.report.view.search import make_batch_block, make_line_blocks, make_parquet_blocks, make_record_blocks
from gristmill.shards.canonical import read_mapped_batches, read_unchecked_batches
from gristmill.shards.dataset import open_file
from gristmill.shards.formats.jsonl import decode_record, read_whole_lines
from gristmill.shards.formats.shard_format import open_origins, open_shard
from gristmill.shards.score_file import ScoreTable
from gristmill.shards.token_rows import LENGTHS, ORIGINS, check_rows, tokens_in_rows
from gristmill.text.tokenizers.byte_lengths import read_token_bytes, split_by_tokens
from gristmill.text.tokenizers.files import find_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow.dataset as pads
    from numpy.typing import NDArray

    from gristmill.report.view.rows import StepOrder
    from gristmill.shards.dataset import Dataset, Origin
    from gristmill.shards.stored_files import Shard


_MAX_TOKENS = 16_384
"""Tokens of a row that are shown."""
_PLACE = re.compile(r"(?P<source>[^:]*):(?P<file>.*)@(?P<position>[0-9]+)(?:/(?P<part>[0-9]+))?", re.DOTALL)
_MAX_ROWS = 20_000_000
_SMALL_ROWS = 200_000


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
        manifest = self.dataset.manifest
        for split, sources in manifest.splits.items():
            for source, shards in sources.items():
                num_rows = sum(shard.rows for shard in shards)
                shares = manifest.mixed[split] if manifest.is_mixed(split, source) else {}
                mixed = {name: share.rows for name, share in shares.items()}
                ranges.append(RowRange(split=split, source=source, start=start, rows=num_rows, mixed=mixed))
                start += num_rows
        return ranges

    @property
    def score_names(self) -> list[str]:
        return self._scores.names

    @cached_property
    def token_texts(self) -> TokenTexts:
        return TokenTexts(self.dataset)

    @cached_property
    def queries(self) -> ColumnQueries | None:
        manifest = self.dataset.manifest
        if self.has_tokens or manifest.format not in ("arrow", "parquet"):
            return None
        kinds = name_kinds(self.dataset.schema)
        return ColumnQueries(kinds, self._open_columns, self.score_names, self._read_row_scores)

    def _open_columns(self) -> pa.Table | pads.Dataset:
        """Open all rows as columns, in order: mapped from Arrow, read from Parquet when they are asked for."""
        manifest = self.dataset.manifest
        paths = [self.dataset._check_size(shard) for _, _, shard in manifest.shards()]
        if manifest.format == "parquet":
            import pyarrow.dataset as pads  # noqa: PLC0415  (0.1 s)

            return pads.dataset([str(path) for path in paths], format="parquet")
        schema = manifest.shard_schema()
        return pa.Table.from_batches(
            (batch for path in paths for batch in read_mapped_batches(path, schema)), schema or self.dataset.schema
        )

    def _read_row_scores(self, name: str) -> NDArray[np.float64]:
        rows, values = self.read_scores(name)
        scores = np.full(len(self.dataset), np.nan)
        scores[rows] = values
        return scores

    def read_scores(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return self._scores.read_values(name)

    def describe_row(self, number: int) -> dict[str, Any]:
        record = self.dataset[number]
        origins = self.dataset.origins(number)
        names = [name_origin(self.origins.names, origin) for origin in origins]
        scores = [self._scores.find_document(origin) for origin in origins]
        if self.has_tokens:
            documents = self._describe_documents(record, names, scores)
            sources = [origin.source for origin in origins]
            return {
                "number": number,
                "documents": [{**entry, "source": name} for entry, name in zip(documents, sources, strict=True)],
            }
        place = {"number": number, "origin": names[0], "source": origins[0].source}
        return {**place, "scores": scores[0], **describe_record(record)}

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

    def find_source_rows(self, source: str) -> NDArray[np.int64]:
        return self.origins.find_source_rows(source)

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


class TokenTexts:
    """The tokens of a dataset as people read them; without a tokenizer, their ids."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        tokenizer = dataset.manifest.tokenizer
        self._has_tokenizer = tokenizer is not None and bool(tokenizer.files)

    @cached_property
    def _bytes(self) -> list[bytes] | None:
        """The bytes of each token; None where they are not known."""
        if not self._has_tokenizer:
            return None
        return read_token_bytes(find_tokenizer(str(self._dataset.manifest.tokenizer_folder(self._dataset.folder))))

    @cached_property
    def _table(self) -> pa.LargeBinaryArray | None:
        return None if self._bytes is None else pa.array(self._bytes, pa.large_binary())

    def describe(self, ids: list[int], trained: list[bool]) -> list[tuple[int, str, int, str]]:
        """Describe tokens: id, text, 1 if it is trained, bytes as hexadecimal numbers."""
        return [
            (token, text, int(flag), self._show_bytes(token))
            for token, text, flag in zip(ids, self._list_texts(ids), trained, strict=True)
        ]

    def _list_texts(self, ids: list[int]) -> list[str]:
        """List the texts of neighbouring tokens. A character of several tokens is the text of the last of them."""
        if not self._has_tokenizer:
            return [f"{token} " for token in ids]
        table = self._bytes
        if table is None or max(ids, default=0) >= len(table):
            return split_by_tokens(self._dataset.decode_ids, ids)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return [decoder.decode(table[token], final=number == len(ids)) for number, token in enumerate(ids, 1)]

    def _show_bytes(self, token: int) -> str:
        table = self._bytes
        return table[token].hex(" ") if table is not None and token < len(table) else ""

    def decode(self, ids: Any) -> str:
        """Decode ids; without a tokenizer they are shown as numbers."""
        return self._dataset.decode_ids(ids) if self._has_tokenizer else " ".join(map(str, ids.tolist()))

    def decode_rows(self, batch: pa.RecordBatch) -> pa.Array:
        """Decode the rows of a checked batch for a search, without padding."""
        ids, num_tokens = batch.column(INPUT_IDS), tokens_in_rows(batch)
        flat = ids.flatten()
        starts = np.concatenate([[0], np.cumsum(ids.value_lengths().to_numpy(zero_copy_only=False))])
        values = flat.to_numpy(zero_copy_only=False)
        table = self._table
        if table is None or (len(values) and int(values.max()) >= len(table)):
            spans = zip(starts.tolist(), num_tokens.tolist(), strict=False)
            return pa.array([self.decode(values[start : start + count]) for start, count in spans], pa.large_string())
        pieces = table.take(pa.array(values))
        offsets = np.frombuffer(pieces.buffers()[1], np.int64)[pieces.offset : pieces.offset + len(pieces) + 1]
        data = memoryview(pieces.buffers()[2] or b"")
        texts = [
            str(data[offsets[start] : offsets[start + count]], "utf-8", "replace")
            for start, count in zip(starts.tolist(), num_tokens.tolist(), strict=False)
        ]
        return pa.array(texts, pa.large_string())


class DatasetScores:
    """The scores of a dataset's documents."""

    def __init__(self, dataset: Dataset, origins: DocumentOrigins) -> None:
        self._dataset = dataset
        self._origins = origins
        self._files = [file for file in dataset.manifest.scores if file.rows]
        self.names = list(dict.fromkeys(name for file in self._files for name in file.histograms))
        self._num_rows = sum(file.rows for file in self._files)
        self._values: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}

    @cached_property
    def _tables(self) -> list[tuple[ScoreTable, NDArray[np.uint64], NDArray[np.int64]]]:
        """All score files, each with the sorted keys of its documents and their order."""
        if self._num_rows > _MAX_ROWS:
            raise UsageError(
                f"the score files have {self._num_rows:,} rows, more than the viewer reads ({_MAX_ROWS:,})",
                help="use `gristmill tune`, or open a dataset of fewer documents",
            )
        tables = []
        for file in self._files:
            table = ScoreTable(self._dataset.folder, file)
            keys = make_origin_keys(table.table.column(ORIGIN).combine_chunks())
            order = np.argsort(keys, kind="stable")
            tables.append((table, keys[order], order))
        return tables

    def read_values(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the row of each document, and its score, which is NaN where nothing was measured."""
        check_choice("score", name, self.names)
        if name not in self._values:
            rows, keys = self._origins.documents
            self._values[name] = rows, self._look_up(name, keys)
        return self._values[name]

    def find_document(self, origin: Origin) -> dict[str, float]:
        """Find all scores of a document; nothing if the files are large and have not been needed before."""
        if not self._files or (self._num_rows > _SMALL_ROWS and "_tables" not in self.__dict__):
            return {}
        key = np.uint64(self._origins.key_of(origin))
        values: dict[str, float] = {}
        for table, sorted_keys, order in self._tables:
            place = int(np.searchsorted(sorted_keys, key))
            if place < len(sorted_keys) and sorted_keys[place] == key:
                row = table.table.slice(int(order[place]), 1)
                scores = {name: row.column(name)[0].as_py() for name in self.names if name in row.column_names}
                values |= {name: float(value) for name, value in scores.items() if value is not None}
        return values

    def _look_up(self, name: str, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
        values = np.full(len(keys), np.nan)
        for table, sorted_keys, order in self._tables:
            if name not in table.table.column_names or not len(sorted_keys):
                continue
            places = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
            is_known = sorted_keys[places] == keys
            column = table.table.column(name).cast("float64").fill_null(np.nan).to_numpy()
            values[is_known] = column[order[places[is_known]]]
        return values


_STRIDES = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)


def name_origin(names: Mapping[str, str], origin: Origin) -> str:
    """Name an origin as people see it: the file by its path below the root of its source."""
    part = f"/{origin.part}" if origin.part else ""
    return f"{origin.source}:{names.get(origin.path, origin.path)}@{origin.position}{part}"


def make_keys(
    files: NDArray[np.uint64], positions: NDArray[np.uint64], parts: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Make a key of each origin. Files are hashes already, so sums with multiples of odd numbers rarely meet."""
    keys: NDArray[np.uint64] = files + positions * _STRIDES[0] + parts * _STRIDES[1]
    return keys


def make_origin_keys(origins: pa.StructArray) -> NDArray[np.uint64]:
    """Make a key of each origin in a column."""
    columns = [origins.field(name).to_numpy(zero_copy_only=False) for name in ("file", "position", "part")]
    files, positions, parts = (column.astype(np.uint64) for column in columns)
    return make_keys(files, positions, parts)


class DocumentOrigins:
    """The origins of all documents of a dataset."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._source_rows: dict[str, NDArray[np.int64]] = {}

    @cached_property
    def names(self) -> dict[str, str]:
        """The path of each input file below the root of its source."""
        return {file.path: file.relative for file in self._dataset.manifest.files.values()}

    @cached_property
    def _numbers(self) -> dict[tuple[str, str], int]:
        files = self._dataset.manifest.files
        return {(file.source, path): int(key, 16) for key, file in files.items() for path in (file.path, file.relative)}

    def key_of(self, origin: Origin) -> int:
        """Return the key of one origin."""
        number = self._numbers.get((origin.source, origin.path), 0)
        values = [np.array([value], np.uint64) for value in (number, origin.position, origin.part)]
        return int(make_keys(*values)[0])

    @cached_property
    def documents(self) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """The row and the key of every document: 16 bytes each."""
        pairs = list(self._read())
        rows = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in pairs)])
        return rows, np.concatenate([np.empty(0, np.uint64), *(make_origin_keys(origins) for _, origins in pairs)])

    def find_source_rows(self, source: str) -> NDArray[np.int64]:
        """Find the rows with documents of a source, in order. Reads all origins, once for each source."""
        if source not in self._source_rows:
            numbers = [int(key, 16) for key, file in self._dataset.manifest.files.items() if file.source == source]
            files = np.array(numbers, np.uint64)
            parts = [
                rows[np.isin(origins.field("file").to_numpy(zero_copy_only=False), files)]
                for rows, origins in self._read()
            ]
            self._source_rows[source] = np.unique(np.concatenate([np.empty(0, np.int64), *parts]))
        return self._source_rows[source]

    def find(self, source: str, file: str, position: str, part: str | None) -> int | None:
        """Find the row of a document; None if there is none. Reads the origins of the dataset, up to the document."""
        number = self._numbers.get((source, file))
        if number is None or int(position) >= 1 << 64 or int(part or 0) >= 1 << 32:
            return None
        for rows, origins in self._read():
            matching = (origins.field("file").to_numpy(zero_copy_only=False) == np.uint64(number)) & (
                origins.field("position").to_numpy(zero_copy_only=False) == np.uint64(position)
            )
            if part is not None:
                matching &= origins.field("part").to_numpy(zero_copy_only=False) == np.uint32(part)
            if matching.any():
                return int(rows[np.argmax(matching)])
        return None

    def _read(self) -> Iterator[tuple[NDArray[np.int64], pa.StructArray]]:
        """Yield origins with the row of each, block by block."""
        first = 0
        for _, _, shard in self._dataset.manifest.shards():
            for rows, origins in self._read_shard(shard):
                yield rows + first, origins
            first += shard.rows

    def _read_shard(self, shard: Shard) -> Iterator[tuple[NDArray[np.int64], pa.StructArray]]:
        manifest, side = self._dataset.manifest, shard.origins
        first = 0
        with open_file(self._dataset, side or shard) as path:
            if manifest.holds_rows:
                for batch in read_mapped_batches(path, manifest.shard_schema()):
                    column = batch.column(ORIGINS)
                    counts = column.value_lengths().to_numpy(zero_copy_only=False)
                    yield np.repeat(np.arange(first, first + len(counts)), counts), column.flatten()
                    first += len(counts)
                return
            for origins in open_origins(path, manifest.format if side is None else "arrow"):
                yield np.arange(first, first + len(origins)), origins
                first += len(origins)
