"""Writing `report.json` and `report.html` of a finished dataset.

They are written after the manifest: a run that is killed in between has a whole dataset, whose `report.json` holds only
what follows from the manifest. The next run, or `gristmill report`, completes it.

A report reads samples of records, and the lengths and languages of documents. Samples are chosen by hashes of the
dataset's own hash, so that the same dataset gives the same report, and are a few dozen rows. At most 64 shards and
about 2 million documents are measured: of rows of tokens only the lengths and origins of their documents are read, of
texts only the offsets. The languages of tokenized documents are looked up in the score files, by origin. So the cost
does not grow with the dataset.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.core.media import SAMPLES, find_image_extension
from gristmill.core.recipe import DEFAULT_SAMPLES, MAX_SAMPLES
from gristmill.core.records import INPUT_IDS, ORIGIN, TEXT
from gristmill.report.charts import make_bins
from gristmill.report.documents import is_cut_anywhere, join_pieces
from gristmill.report.markup import replace_surrogates, restore_pictures, show_record
from gristmill.report.model import (
    Bin,
    LanguageCount,
    Lengths,
    Report,
    RunFailure,
    RunTimes,
    ShownCluster,
    ShownRecord,
    ShownSamples,
)
from gristmill.report.page import make_page
from gristmill.report.thresholds import count_languages, find_curves
from gristmill.report.view.describe import list_pictures
from gristmill.shards.canonical import read_unchecked_batches
from gristmill.shards.dataset import Dataset, open_file
from gristmill.shards.derived_files import REPORT, REPORT_PAGE, encode_report, make_report
from gristmill.shards.formats.shard_format import open_shard
from gristmill.shards.score_file import LANGUAGE, ScoreColumns
from gristmill.shards.stored_files import StoredFile, file_key
from gristmill.shards.token_rows import CHATS, LENGTHS, ORIGINS
from gristmill.storage.commit import write_file
from gristmill.storage.locations import is_remote, parse_location, path_below, read_stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.report.thresholds import TextReader
    from gristmill.shards.manifest import Manifest
    from gristmill.shards.stored_files import Shard
    from gristmill.storage.locations import Location


def write_report(
    folder: Location,
    manifest: Manifest,
    run_id: str,
    *,
    samples: int = DEFAULT_SAMPLES,
    run: RunTimes | None = None,
    reads_store: bool = False,
    failure: RunFailure | None = None,
    read_text: TextReader | None = None,
) -> Report:
    """Write the report of a dataset into its folder. From a store shards are only read if `reads_store`.

    `read_text` reads texts of the input, which are shown next to thresholds.
    """
    report = complete_report(folder, manifest, samples=samples, run=run, reads_store=reads_store, read_text=read_text)
    report = msgspec.structs.replace(report, failure=failure)
    page = make_page(report, folder.name or str(folder)).encode(errors="backslashreplace")
    stored = StoredFile(path=REPORT_PAGE, bytes=len(page), xxh3=xxhash.xxh3_64_hexdigest(page))
    report = msgspec.structs.replace(report, page=stored)
    write_file(path_below(folder, REPORT_PAGE), page, run_id)
    write_file(path_below(folder, REPORT), encode_report(report), run_id)
    return report


def complete_report(
    folder: Location,
    manifest: Manifest,
    *,
    samples: int,
    run: RunTimes | None = None,
    reads_store: bool = True,
    read_text: TextReader | None = None,
) -> Report:
    """Make the whole report of a dataset, without its page."""
    if not 0 <= samples <= MAX_SAMPLES:
        raise UsageError(f"samples must be from 0 to {MAX_SAMPLES}, not {samples}")
    dataset = Dataset(folder, manifest)
    reads_shards = reads_store or not is_remote(folder)
    lengths, languages = measure_documents(dataset) if reads_shards else (None, [])
    if reads_shards and manifest.scores:
        languages = _add_filtered_languages(languages, count_languages(dataset))
    derived = make_report(manifest)
    return Report(
        **{name: getattr(derived, name) for name in derived.__struct_fields__},
        samples=collect_samples(dataset, samples, reads_shards=reads_shards),
        lengths=lengths,
        languages=languages,
        curves=(
            find_curves(dataset, read_text=read_text if samples else None) if reads_shards and manifest.scores else []
        ),
        run=run,
    )


def _add_filtered_languages(measured: list[LanguageCount], filtered: dict[str, tuple[int, int]]) -> list[LanguageCount]:
    """Add how many documents in each language the filters have kept; also languages of which nothing is left."""
    known = {entry.language: entry for entry in measured}
    missing = [LanguageCount(language=name, documents=0) for name in sorted(filtered) if name not in known]
    return [
        msgspec.structs.replace(entry, reached=filtered[entry.language][0], kept=filtered[entry.language][1])
        if entry.language in filtered
        else entry
        for entry in (*measured, *missing)
    ]


def load_report(folder: Location) -> Report | None:
    """Load the report of a dataset; None if there is none that this version can read."""
    try:
        return msgspec.json.decode(read_stored(folder / REPORT), type=Report)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, DamagedDatasetError):
        return None


_MAX_CHARACTERS = 1200
_ALL_CHARACTERS = 400_000
"""The texts of all samples together have at most about this many characters, so that a page stays below 1 MB."""
_MAX_PICTURES = 4
"""The images of a record that are shown, each of at most this many pixels a side: about 3 kB."""
_PICTURE_PIXELS = 96
_MAX_PICTURE_BYTES = 20_000_000
_MAX_ERRORS = 2000
"""This many quarantined records of a source are read to count equal errors."""
_FIRST_ROWS = 200
"""In formats without random access, samples and lengths are taken from this many first rows of a shard."""
_CHANGED = "changed"
_MAX_SHARDS = 64
_MAX_DOCUMENTS = 2_000_000
_MAX_SCORES = 20_000_000
"""Score files of more rows than this are not read."""


def collect_samples(dataset: Dataset, wanted: int, *, reads_shards: bool = True) -> ShownSamples:
    """Collect up to `wanted` records of each kind; `reads_shards`: whether kept ones, too."""
    max_characters = min(_MAX_CHARACTERS, _ALL_CHARACTERS // max(1, 4 * wanted))
    kept_records = _read_kept(dataset, wanted, max_characters) if reads_shards else []
    lines = [_read_lines(dataset, file, wanted) for file in dataset.manifest.dropped] if wanted else []
    # One of each step and reason after another, so that all of them are seen.
    in_turn = [line for turn in zip_longest(*lines) for line in turn if line is not None]
    changed = [_make_sample(line, max_characters) for line in in_turn if line.get("reason") == _CHANGED][:wanted]
    dropped = [_make_sample(line, max_characters) for line in in_turn if line.get("reason") != _CHANGED][:wanted]
    quarantined = _read_errors(dataset, wanted, max_characters) if wanted else []
    clusters = _describe_clusters(dataset, wanted) if wanted else []
    num_texts = sum(len(cluster.samples) for cluster in clusters)
    return ShownSamples(
        wanted=wanted,
        num_records=len(kept_records) + len(dropped) + len(changed) + len(quarantined) + num_texts,
        kept=kept_records,
        dropped=dropped,
        changed=changed,
        quarantined=quarantined,
        clusters=clusters,
    )


def _read_errors(dataset: Dataset, wanted: int, max_characters: int) -> list[ShownRecord]:
    """Read quarantined records: one of each error, with their number."""
    files = [_read_lines(dataset, file, _MAX_ERRORS) for file in dataset.manifest.quarantine.files]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for turn in zip_longest(*files):
        for line in turn:
            if line is not None:
                names = ("source", "step", "reason", "error")
                groups.setdefault(tuple(str(line.get(name)) for name in names), []).append(line)
    return [
        msgspec.structs.replace(_make_sample(lines[0], max_characters), num_alike=len(lines))
        for lines in list(groups.values())[:wanted]
    ]


def _describe_clusters(dataset: Dataset, wanted: int) -> list[ShownCluster]:
    """Describe the largest clusters, with the similarities and the images of the documents that are shown."""
    clusters: list[ShownCluster] = []
    if not dataset.manifest.deduplicated:
        return clusters
    import pyarrow.parquet as pq  # noqa: PLC0415  (few reports need it)

    for step in dataset.manifest.deduplicated:
        largest = step.largest[: wanted - len(clusters)]
        if not largest:
            continue
        ids = {(file.source, file.path): int(key, 16) for key, file in dataset.manifest.files.items()}
        with open_file(dataset, step.file) as path:
            removals = pq.read_table(path, columns=["removed", "survivor", "similarity"])
        survivors = removals.column("survivor").combine_chunks()
        files, positions = (survivors.field(name).to_numpy() for name in ("file", "position"))
        for cluster in largest:
            file = ids.get((cluster.source, cluster.path), -1)
            rows = np.flatnonzero((files == np.uint64(max(file, 0))) & (positions == cluster.position))
            shown = removals.take(pa.array(rows[: len(cluster.samples) - 1])).to_pylist() if file >= 0 else []
            places = [file, *(entry["removed"]["file"] for entry in shown)]
            clusters.append(
                ShownCluster(
                    **msgspec.structs.asdict(cluster),
                    similarities=[entry["similarity"] for entry in shown],
                    pictures=[picture for place in places for picture in _make_input_picture(dataset, place)],
                )
            )
    return clusters


def _make_input_picture(dataset: Dataset, file: int) -> list[str]:
    """Make a small JPEG of an input file that is an image on this machine."""
    entry = dataset.manifest.files.get(file_key(file)) if file >= 0 else None
    if entry is None or is_remote(location := parse_location(entry.path)) or entry.bytes > _MAX_PICTURE_BYTES:
        return []
    try:
        content = location.read_bytes() if find_image_extension(_read_head(location)) != "img" else b""
    except OSError:
        return []
    return _make_small_pictures(content) if content else []


def _read_head(location: Location) -> bytes:
    with location.open("rb") as file:
        return bytes(file.read(16))


def _read_kept(dataset: Dataset, wanted: int, max_characters: int) -> list[ShownRecord]:
    """Read some rows, in the order of their numbers."""
    samples = []
    names = {file.path: file.relative for file in dataset.manifest.files.values()}
    for number, split in _choose_rows(dataset, wanted):
        record = None if dataset.manifest.holds_rows else dataset[number]
        text = show_row(dataset, number) if record is None else show_record(record)
        origins = dataset.origins(number)
        # Paths below their source's root: those of the machine are private.
        places = [f"{origin.source}:{names.get(origin.path, '')}@{origin.position}" for origin in origins[:1]]
        place = "".join(places) + (f" and {len(origins) - 1} more" if len(origins) > 1 else "")
        shown = ShownRecord(
            place=place, split=split, pictures=_make_small_pictures(record), **_cut_text(text, max_characters)
        )
        if dataset.manifest.kind == CHATS and dataset.manifest.tokenizer is not None:
            shown = msgspec.structs.replace(shown, spans=_cut_spans(dataset, number, max_characters))
        samples.append(shown)
    return samples


def _cut_spans(dataset: Dataset, number: int, max_characters: int) -> list[tuple[str, bool]]:
    """Cut the text of a row of chats, in pieces that are trained or not."""
    spans, left = [], max_characters
    for text, is_trained in dataset.spans(number):
        spans.append((replace_surrogates(text[:left]), is_trained))
        left -= len(text)
        if left <= 0:
            break
    return spans


def _choose_rows(dataset: Dataset, wanted: int) -> list[tuple[int, str]]:
    """Choose the numbers of rows by hashes, each with its split."""
    starts: list[tuple[int, str, Shard]] = []
    start = 0
    for split, _, shard in dataset.manifest.shards():
        starts.append((start, split, shard))
        start += shard.rows
    if dataset.manifest.format == "arrow":
        ends = np.array([first + shard.rows for first, _, shard in starts])
        numbers = {_hash(dataset, "row", number) % start for number in range(wanted)} if start else set()
        return [(number, starts[int(np.searchsorted(ends, number, "right"))][1]) for number in sorted(numbers)]
    with_rows = [entry for entry in starts if entry[2].rows]
    chosen = sorted(with_rows, key=lambda entry: _hash(dataset, "shard", entry[0]))[:3]
    rows = []
    for first, split, shard in sorted(chosen, key=lambda entry: entry[0]):
        num_first = min(shard.rows, _FIRST_ROWS)
        numbers = {
            _hash(dataset, shard.path, number) % num_first for number in range(max(1, wanted // max(1, len(chosen))))
        }
        rows += [(first + number, split) for number in sorted(numbers)] if wanted else []
    return rows


def _hash(dataset: Dataset, purpose: str, number: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{dataset.manifest.dataset_hash}/{purpose}/{number}".encode())


def _read_lines(dataset: Dataset, file: StoredFile, wanted: int) -> list[dict[str, Any]]:
    with open_file(dataset, file) as path:
        return list(islice(open_shard(path, "jsonl").rows(), wanted))


def _make_sample(line: dict[str, Any], max_characters: int) -> ShownRecord:
    """Make a sample of a line of `dropped/` or `quarantine/`. The lines may have been written by anyone."""
    file = line.get("file") or line.get("path") or ""
    place = line.get("place") or f"{line.get('source', '')}:{file}@{line.get('position', '')}"
    record = line.get("record")
    text = record if record is not None else line.get("error") or ""
    if isinstance(text, str) and text.startswith(("{", "[")):
        try:
            text = restore_pictures(msgspec.json.decode(text))
        except (msgspec.DecodeError, RecursionError):
            pass
    facts: dict[str, Any] = {
        name: value for name in ("failed", "thresholds") if isinstance(value := line.get(name), dict)
    }
    reason = str(line.get("reason", ""))
    if line.get("error") and record is not None:
        reason = f"{reason}: {str(line['error'])[:200]}"
    if "passage" in line:
        facts |= {"passage": str(line["passage"]), "item": str(line.get("item_text", ""))}
        reason = f"{reason} {line.get('item', '')}"
    return ShownRecord(
        place=str(place),
        step=str(line.get("step", "")),
        reason=reason,
        before=str(line.get("before", "")),
        after=str(line.get("after", "")),
        pictures=_make_small_pictures(text),
        **(facts | _cut_text("" if "before" in line else show_record(text), max_characters)),
    )


def _make_small_pictures(record: object) -> list[str]:
    """Make small JPEGs of the first images of a record. What cannot be decoded stays a number of bytes in its text."""
    pictures = list_pictures(record)[:_MAX_PICTURES]
    if not pictures:
        return []
    from gristmill.images.codec import ImageError, decode_image, encode_image  # noqa: PLC0415  (few datasets have any)

    addresses = []
    for _, content in pictures:
        with suppress(ImageError, UsageError):  # damaged, or Pillow is not installed
            image = decode_image(content)
            image.thumbnail((_PICTURE_PIXELS, _PICTURE_PIXELS))
            addresses.append(f"data:image/jpeg;base64,{base64.b64encode(encode_image(image, 'jpeg', 70)).decode()}")
    return addresses


def show_row(dataset: Dataset, number: int) -> str:
    """Show a row as text: tokens decoded, or their ids where the dataset has no tokenizer."""
    record = dataset[number]
    if not dataset.manifest.holds_rows:
        return show_record(record)
    if dataset.manifest.tokenizer is not None and dataset.manifest.tokenizer.files:
        return dataset.decode(number)
    return " ".join(map(str, record[INPUT_IDS][: int(record[LENGTHS].sum())].tolist()))


def _cut_text(text: str, max_characters: int) -> dict[str, Any]:
    text = replace_surrogates(text)
    if len(text) <= max_characters:
        return {"text": text}
    return {"text": text[:max_characters], "num_characters": len(text)}


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
        file
        for file in columns
        if any(block.column(LANGUAGE).null_count < block.num_rows for block in file.blocks([LANGUAGE]))
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
