"""What a report measures in the dataset: lengths of documents, and their languages.

At most 64 shards and about 2 million documents are measured. Of rows of tokens only the lengths and origins of their
documents are read, of texts only the offsets. The languages of tokenized documents are looked up in the score files, by
origin.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.media import SAMPLES
from gristmill.core.records import ORIGIN, TEXT
from gristmill.report.charts import make_bins
from gristmill.report.model import Bin, LanguageCount, Lengths
from gristmill.report.plain_json import replace_surrogates
from gristmill.report.split_documents import is_cut_anywhere, join_pieces
from gristmill.shards.arrow_stream import read_unchecked_batches
from gristmill.shards.dataset import open_file
from gristmill.shards.formats.shard_format import open_shard
from gristmill.shards.score_file import LANGUAGE, ScoreColumns
from gristmill.shards.token_rows import LENGTHS, ORIGINS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.shards.dataset import Dataset
    from gristmill.shards.manifests.stored_files import Shard

_MAX_SHARDS = 64
_MAX_DOCUMENTS = 2_000_000
_MAX_SCORES = 20_000_000
"""Score files of more rows than this are not read."""
_FIRST_ROWS = 200
"""In formats without random access, lengths are those of this many first rows of a shard."""


class _Measured(NamedTuple):
    """Lengths of documents, and a number for the language of each: 0 if it is not known."""

    sizes: NDArray[np.int64]
    languages: NDArray[np.int64]


class _LanguageNumbers:
    """Numbers for the names of languages, as they are met. 0 is for documents without a language."""

    def __init__(self) -> None:
        self.names = {"": 0}

    def encode(self, column: pa.Array) -> NDArray[np.int64]:
        """Return the number of each document's language."""
        encoded = column.dictionary_encode()
        numbers = [self.names.setdefault(name, len(self.names)) for name in encoded.dictionary.to_pylist()]
        encoded_numbers: NDArray[np.int64] = encoded.indices.fill_null(len(numbers)).to_numpy()
        return np.array([*numbers, 0])[encoded_numbers]


def measure_documents(dataset: Dataset) -> tuple[Lengths | None, list[LanguageCount]]:
    """Measure the lengths of documents, and what they have in each language."""
    holds_rows = dataset.manifest.holds_rows
    numbers = _LanguageNumbers()
    sizes, languages = _measure_tokens(dataset, numbers) if holds_rows else _measure_texts(dataset, numbers)
    counts = np.bincount(languages, minlength=len(numbers.names)).tolist()
    amounts = np.bincount(languages, sizes, minlength=len(numbers.names)).tolist()
    named = [
        LanguageCount(language=name, documents=counts[number], amount=int(amounts[number]))
        for name, number in sorted(numbers.names.items(), key=lambda item: (-counts[item[1]], item[0]))
        if name and counts[number]
    ]
    if not len(sizes):
        return None, named
    bins = make_bins([int(sizes.min()), int(sizes.max())])
    borders = np.array([0.0, *(low for low, _ in bins[1:]), np.inf])
    heights, _ = np.histogram(sizes, borders)
    expected = sum(books[-1].records_out for books in dataset.manifest.books.values() if books)
    return (
        Lengths(
            unit="tokens" if holds_rows else "bytes",
            documents=len(sizes),
            is_sample=len(sizes) < expected,
            shortest=int(sizes.min()),
            median=float(np.median(sizes)),
            mean=float(sizes.mean()),
            longest=int(sizes.max()),
            bins=[Bin(low, high, int(count)) for (low, high), count in zip(bins, heights, strict=True)],
        ),
        named,
    )


def _list_measured_shards(dataset: Dataset, max_shards: int) -> list[Shard]:
    shards = [shard for _, _, shard in dataset.manifest.shards() if shard.rows]
    return shards[:: max(1, -(-len(shards) // max_shards))]


def _measure_tokens(dataset: Dataset, numbers: _LanguageNumbers) -> _Measured:
    """Measure the documents in rows, each with all of its pieces."""
    manifest = dataset.manifest
    keys, sizes, is_last = [], [], []
    num_pieces = 0
    for shard in _list_measured_shards(dataset, _MAX_SHARDS):
        with open_file(dataset, shard) as path:
            for batch in read_unchecked_batches(path, manifest.shard_schema()):
                lengths, origins = batch.column(LENGTHS), batch.column(ORIGINS)
                for column in (lengths, origins):
                    column.validate(full=True)
                keys.append(_hash_origins(origins.flatten()))
                sizes.append(lengths.flatten().to_numpy(zero_copy_only=False).astype(np.int64))
                is_last.append(_find_row_ends(lengths, sizes[-1], manifest.row_length))
                num_pieces += len(sizes[-1])
        if num_pieces >= _MAX_DOCUMENTS:
            break
    if not num_pieces:
        return _Measured(np.empty(0, np.int64), np.empty(0, np.int64))
    all_keys, all_sizes = np.concatenate(keys), np.concatenate(sizes)
    is_full = all_sizes == (manifest.row_length or -1)
    order, starts = join_pieces(all_keys, is_full, np.concatenate(is_last), is_concat=is_cut_anywhere(manifest))
    document_keys = all_keys[order[starts]]
    return _Measured(np.add.reduceat(all_sizes[order], starts), _look_up_languages(dataset, document_keys, numbers))


def _find_row_ends(lengths: pa.ListArray, sizes: NDArray[np.int64], row_length: int | None) -> NDArray[np.bool_]:
    """Find the pieces that end where a full row does."""
    is_last = np.zeros(len(sizes), np.bool_)
    ends = np.cumsum(lengths.value_lengths().to_numpy())
    filled = np.diff(np.append(0, np.cumsum(sizes))[np.append(0, ends)])
    is_last[ends[filled == (row_length or -1)] - 1] = True
    return is_last


def _hash_origins(origins: pa.StructArray) -> NDArray[np.uint64]:
    """Hash origins: of the same origin in rows and in score files the same."""
    hashed = np.zeros(len(origins), np.uint64)
    for name in ("file", "position", "part"):
        hashed ^= origins.field(name).to_numpy(zero_copy_only=False).astype(np.uint64)
        hashed *= np.uint64(0x9E3779B97F4A7C15)
        hashed ^= hashed >> np.uint64(32)
    return hashed


def _look_up_languages(dataset: Dataset, keys: NDArray[np.uint64], numbers: _LanguageNumbers) -> NDArray[np.int64]:
    """Look up the languages of documents in the score files, which have those of all that reached a filter."""
    files = [file for file in dataset.manifest.scores if file.rows]
    is_short = sum(file.rows for file in files) <= _MAX_SCORES
    columns = [ScoreColumns(dataset.folder, file) for file in files] if is_short else []
    with_languages = [
        file for file in columns if any(_has_values(block, LANGUAGE) for block in file.blocks([LANGUAGE]))
    ]
    if not with_languages:
        return np.zeros(len(keys), np.int64)
    distinct, copies = np.unique(keys, return_inverse=True)  # copies of a document have one language
    languages = np.zeros(len(distinct), np.int64)
    for file in with_languages:
        for block in file.blocks([ORIGIN, LANGUAGE]):
            hashed = _hash_origins(block.column(ORIGIN))
            places = np.minimum(np.searchsorted(distinct, hashed), len(distinct) - 1)
            is_known = (distinct[places] == hashed) & block.column(LANGUAGE).is_valid().to_numpy(zero_copy_only=False)
            languages[places[is_known]] = numbers.encode(block.column(LANGUAGE))[is_known]
    return languages[copies]


def _has_values(block: pa.RecordBatch, name: str) -> bool:
    return bool(block.column(name).null_count < block.num_rows)


def _measure_texts(dataset: Dataset, numbers: _LanguageNumbers) -> _Measured:
    """Measure documents in bytes of text."""
    blocks = [_Measured(np.empty(0, np.int64), np.empty(0, np.int64))]
    num_documents = 0
    for block in _read_texts(dataset, numbers):
        blocks.append(block)
        num_documents += len(block.sizes)
        if num_documents >= _MAX_DOCUMENTS:
            break
    return _Measured(*map(np.concatenate, zip(*blocks, strict=True)))


def _read_texts(dataset: Dataset, numbers: _LanguageNumbers) -> Iterator[_Measured]:
    manifest = dataset.manifest
    if manifest.kind == SAMPLES:
        return  # they have no text, and their first rows may be large
    if manifest.format != "arrow":
        yield from _read_first_texts(dataset, numbers)
        return
    columns = manifest.schema.columns
    if columns.get(TEXT) not in ("string", "large_string"):
        return
    has_language = columns.get(LANGUAGE) in ("string", "large_string")
    for shard in _list_measured_shards(dataset, _MAX_SHARDS):
        with open_file(dataset, shard) as path:
            for batch in read_unchecked_batches(path, manifest.shard_schema()):
                sizes = pc.fill_null(pc.binary_length(batch.column(TEXT)), 0).to_numpy(zero_copy_only=False)
                languages = np.zeros(len(sizes), np.int64)
                if has_language:
                    batch.column(LANGUAGE).validate(full=True)
                    languages = numbers.encode(batch.column(LANGUAGE))
                yield _Measured(sizes.astype(np.int64), languages)


def _read_first_texts(dataset: Dataset, numbers: _LanguageNumbers) -> Iterator[_Measured]:
    manifest = dataset.manifest
    schema = dataset.schema if manifest.format == "webdataset" else manifest.shard_schema()
    for shard in _list_measured_shards(dataset, 4):
        with open_file(dataset, shard) as path:
            reader = open_shard(path, manifest.format, manifest.kind, schema)
            records = [record for record in islice(reader.rows(), _FIRST_ROWS) if isinstance(record.get(TEXT), str)]
        sizes = [len(record[TEXT].encode(errors="replace")) for record in records]
        names = [
            replace_surrogates(name) if isinstance(name := record.get(LANGUAGE), str) else None for record in records
        ]
        yield _Measured(np.array(sizes, np.int64), numbers.encode(pa.array(names, pa.string())))
