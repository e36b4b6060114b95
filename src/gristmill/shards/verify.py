"""Verification of a dataset: every byte is read again, for checksums, row counts, origins and books.

Cost: one pass over the dataset at the speed of the disk and the decompressor, in constant memory. `check_shard` works
on one shard and needs nothing else, so shards can be checked in parallel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gristmill.core.books import find_imbalances
from gristmill.core.errors import CorruptStreamError, DamagedDatasetError
from gristmill.shards.block_index import read_blocks, read_costs
from gristmill.shards.canonical import ORIGINS_SCHEMA, read_mapped_batches
from gristmill.shards.derived_files import (
    CARD,
    REPORT,
    find_report_page,
    is_card_of,
    is_report_of,
    make_derived_files,
    make_side_files,
)
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.formats.shard_format import open_origins, open_shard
from gristmill.shards.kept_signatures import INDEX, load_kept_signatures
from gristmill.shards.manifest import MIXED, Manifest, dataset_hash
from gristmill.shards.manifest_file import dump_manifest, load_manifest
from gristmill.shards.stored_files import MANIFEST, Shard, StoredFile, file_key
from gristmill.shards.token_rows import CHATS, ORIGINS, find_row_problem, num_tokens, num_trained_tokens
from gristmill.storage.files import compute_file_checksum
from gristmill.storage.folders import open_folder
from gristmill.storage.locations import Count, measure_file, parse_location, path_below, read_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.storage.locations import Location


_SIDE_FOLDERS = {"dropped", "quarantine", "scores"}


@dataclass(frozen=True, slots=True)
class Problem:
    """A difference between the dataset and what was written."""

    path: str
    """The damaged file, relative to the dataset's folder."""
    kind: str
    """`missing`, `size`, `checksum`, `rows`, `tokens`, `origins`, `unreadable`, `outside`, `unexpected`, `edited`,
    `kind`, `index` or `books`."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(slots=True)
class Verification:
    """The result of a verification: what was checked, and the problems. It is true if there are none."""

    num_shards: int = 0
    num_rows: int = 0
    num_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    def __bool__(self) -> bool:
        return not self.problems


def verify(folder: str | Location) -> Verification:
    """Check a whole dataset."""
    folder = parse_location(folder)
    manifest = load_manifest(folder)
    result = Verification(problems=check_manifest(folder, manifest))
    known_files = list_known_files(manifest)
    damage = []
    for _, _, shard in manifest.shards():
        damage += check_shard(folder, shard, manifest, known_files)
        result.num_shards += 1
        result.num_rows += shard.rows
        result.num_bytes += shard.bytes
    # The sources of rows are not counted in damaged shards.
    result.problems += damage or _find_lane_problems(folder, manifest)
    return result


def check_manifest(folder: Location, manifest: Manifest) -> list[Problem]:
    """Find what is wrong, except in the shards."""
    problems = []
    # Its bytes are compared as well: a key that is not known, or one that is there twice, is in no field.
    if not manifest.is_sealed or b"".join(dump_manifest(manifest)) != read_stored(folder / MANIFEST):
        problems.append(Problem(MANIFEST, "edited", "was changed after the run"))
    if manifest.dataset_hash != dataset_hash(manifest):
        problems.append(Problem(MANIFEST, "edited", "its dataset_hash is not that of its shards"))
    if wrong := _find_schema_problem(manifest):
        problems.append(Problem(MANIFEST, "kind", wrong))
    problems += [Problem(MANIFEST, "books", message) for message in _find_book_problems(manifest)]
    shards = {shard.path for _, _, shard in manifest.shards()}
    shards |= {shard.origins.path for _, _, shard in manifest.shards() if shard.origins is not None}
    other_files = [file for file in manifest.stored_files() if file.path not in shards]
    damage = {file.path: problem for file in other_files if (problem := _find_file_problem(folder, file))}
    problems += damage.values()
    problems += _find_index_problems(folder, manifest, damage)
    if not damage.keys() & {file.path for file in manifest.quarantine.files}:
        problems += _find_quarantine_problems(folder, manifest)
    try:
        derived = make_derived_files(manifest)
    except DamagedDatasetError:  # the books cannot be read, which is reported above
        derived = make_side_files(manifest)
    problems += [
        problem for path, content in derived.items() if (problem := _find_content_problem(folder, path, content))
    ]
    problems += _find_signature_problems(folder)
    problems += _find_unexpected_files(folder, manifest)
    return problems


def _find_signature_problems(folder: Location) -> Iterator[Problem]:
    """Check the signatures that are kept for later runs, if there are any."""
    try:
        index = load_kept_signatures(folder)
    except DamagedDatasetError as error:
        yield Problem(INDEX, "unreadable", error.message)
        return
    for file in index.files() if index is not None else ():
        if problem := _find_file_problem(folder, file):
            yield problem


def _find_index_problems(folder: Location, manifest: Manifest, damaged: Container[str]) -> Iterator[Problem]:
    """Check that the index of blocks, if there is one, agrees with the manifest. Its files are checked before."""
    index = manifest.index
    if index and {split: {*sources} for split, sources in index.items()} != {
        split: {*sources} for split, sources in manifest.splits.items()
    }:
        yield Problem(MANIFEST, "index", "its index does not name every split and source")
        return
    for split, sources in index.items():
        for source, lane in sources.items():
            if any(file.path in damaged for file in lane.files()):
                continue
            try:
                read_blocks(folder, manifest, split, source)
                read_costs(folder, manifest, split, source)
            except DamagedDatasetError as error:
                yield Problem(lane.blocks.path, "index", error.message)


def list_known_files(manifest: Manifest) -> NDArray[np.uint64]:
    """Return the sorted ids of the input files, for `check_shard`."""
    return np.sort(np.array([int(key, 16) for key in manifest.files], dtype=np.uint64))


def check_shard(folder: Location, shard: Shard, manifest: Manifest, known_files: NDArray[np.uint64]) -> list[Problem]:
    """Find what is wrong with one shard and its origins."""
    problem = _find_file_problem(folder, shard)
    if _find_schema_problem(manifest):  # reported once, for the manifest; without a schema rows cannot be read
        return [problem] if problem else []
    problem = problem or _check_content(shard.path, lambda: _find_shard_problem(folder, shard, manifest, known_files))
    side = shard.origins
    if side is None:
        return [problem] if problem else []
    side_problem = _find_file_problem(folder, side)
    side_problem = side_problem or _check_content(
        side.path,
        lambda: (
            _find_row_problem(folder, side, shard.rows, "arrow", ORIGINS_SCHEMA)
            or _find_origin_problem(folder, side, "arrow", known_files)
        ),
    )
    return [entry for entry in (problem, side_problem) if entry]


def _find_shard_problem(
    folder: Location, shard: Shard, manifest: Manifest, known_files: NDArray[np.uint64]
) -> Problem | None:
    problem = _find_row_problem(folder, shard, shard.rows, manifest.format, manifest.shard_schema())
    if manifest.holds_rows:
        problem = problem or _find_token_problem(folder, shard, manifest)
    if shard.origins is None:
        problem = problem or _find_origin_problem(folder, shard, manifest.format, known_files, manifest.kind)
    return problem


def _find_schema_problem(manifest: Manifest) -> str | None:
    """Check that the manifest describes columns that a dataset of its kind can have."""
    try:
        manifest.shard_schema()
    except DamagedDatasetError as error:
        return error.message
    return None


def _check_content(path: str, find_problem: Callable[[], Problem | None]) -> Problem | None:
    """Call a check that reads a file. A file that cannot be read is a problem, too."""
    try:
        return find_problem()
    except (*READ_ERRORS, CorruptStreamError) as error:
        return Problem(path, "unreadable", f"cannot be read: {error}")


def _find_file_problem(folder: Location, file: StoredFile) -> Problem | None:
    """Check that a file exists, is complete and has not changed."""
    try:
        path = file.below(folder)
        num_bytes = measure_file(path)
        if num_bytes is None:
            return Problem(file.path, "missing", "is missing")
        if num_bytes != file.bytes:
            return Problem(file.path, "size", f"has {num_bytes} bytes, but {file.bytes} were written")
        if compute_file_checksum(path) != file.xxh3:
            return Problem(file.path, "checksum", "its content has changed: the checksum differs")
    except (OSError, DamagedDatasetError) as error:
        return _make_unreadable_problem(file.path, error)
    return None


def _find_content_problem(folder: Location, path: str, content: bytes) -> Problem | None:
    """Check that a small file that is derived from the manifest exists and is as it was written."""
    try:
        stored = read_stored(path_below(folder, path))
        is_same = stored == content or (path == CARD and is_card_of(stored, content))
        if not (is_report_of(stored, content) if path == REPORT else is_same):
            return Problem(path, "edited", "is not as it was written")
        page = find_report_page(stored) if path == REPORT else None
        if page is not None and (problem := _find_file_problem(folder, page)):
            return problem
    except (OSError, DamagedDatasetError) as error:
        return _make_unreadable_problem(path, error)
    return None


def _make_unreadable_problem(path: str, error: OSError | DamagedDatasetError) -> Problem:
    if isinstance(error, DamagedDatasetError):
        return Problem(path, "outside", error.message)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Problem(path, "missing", "is missing")
    return Problem(path, "unreadable", f"cannot be read: {error.strerror or error}")


def _find_row_problem(
    folder: Location, file: StoredFile, rows: int, format: str, schema: pa.Schema | None
) -> Problem | None:
    """Check that all records are there and can be decoded."""
    num_rows = open_shard(file.copy_below(folder), format, schema=schema).count_rows()
    if num_rows != rows:
        return Problem(file.path, "rows", f"holds {num_rows} records, but the manifest says {rows}")
    return None


def _find_token_problem(folder: Location, shard: Shard, manifest: Manifest) -> Problem | None:
    """Check the numbers of tokens and trained tokens, and that all ids are in the vocabulary."""
    total = trained = 0
    for rows in read_mapped_batches(shard.copy_below(folder)):
        message = find_row_problem(rows, manifest.tokenizer.vocab_size if manifest.tokenizer is not None else None)
        if message:
            return Problem(shard.path, "tokens", message)
        total += num_tokens(rows)
        trained += num_trained_tokens(rows) if manifest.kind == CHATS else 0
    if total != (shard.tokens or 0):
        return Problem(shard.path, "tokens", f"holds {total} tokens, but the manifest says {shard.tokens or 0}")
    if manifest.kind == CHATS and trained != shard.trained_tokens:
        message = f"holds {trained} trained tokens, but the manifest says {shard.trained_tokens}"
        return Problem(shard.path, "tokens", message)
    return None


def _find_origin_problem(
    folder: Location, file: StoredFile, format: str, known_files: NDArray[np.uint64], kind: str = "documents"
) -> Problem | None:
    """Check that every record comes from an input file in the manifest."""
    for origins in open_origins(file.copy_below(folder), format, kind):
        if origins.null_count or origins.field("file").null_count:
            return Problem(file.path, "origins", "has records without an origin")
        unknown = _find_first_unknown(np.unique(origins.field("file").to_numpy(zero_copy_only=False)), known_files)
        if unknown is not None:
            message = f"has records of the input file {file_key(unknown)}, which is not in the manifest"
            return Problem(file.path, "origins", message)
    return None


def _find_first_unknown(files: NDArray[np.uint64], known_files: NDArray[np.uint64]) -> int | None:
    """Find a file that is not known, by bisection: there may be a hundred thousand known files."""
    indices = np.searchsorted(known_files, files)
    is_known = indices < len(known_files)
    is_known[is_known] = known_files[indices[is_known]] == files[is_known]
    return None if is_known.all() else int(files[~is_known][0])


def _find_book_problems(manifest: Manifest) -> Iterator[str]:
    """Check that every account balances, and that the books agree with the shards and the quarantine."""
    num_rows = Counter({source: amount.rows for source, amount in manifest.amounts().items()})
    for source in sorted({*manifest.books, *num_rows, *manifest.quarantine.counts}):
        accounts = manifest.books.get(source, [])
        for message in find_imbalances(accounts):
            yield f"source {source}: {message}"
        # What the last step returned: records, or the rows that it packed them into.
        num_booked = accounts[-1].counters.get("rows", accounts[-1].records_out) if accounts else 0
        if num_booked != num_rows[source]:
            yield f"source {source}: the books end with {num_booked} records, but its shards hold {num_rows[source]}"
        quarantined: Counter[str] = Counter()
        for account in accounts:
            quarantined.update(account.quarantined)
        if quarantined != Counter(manifest.quarantine.counts.get(source, {})):
            yield f"source {source}: the books and the quarantine disagree on the quarantined records"


def _find_lane_problems(folder: Location, manifest: Manifest) -> Iterator[Problem]:
    """Check by the origins that a mixed lane holds as many rows of each source as the manifest says."""
    for split, shares in manifest.mixed.items():
        num_rows: Counter[str] = Counter()
        for shard in manifest.splits.get(split, {}).get(MIXED, []):
            for files in _list_first_files(folder, shard, manifest):
                for file, count in zip(*np.unique(files, return_counts=True), strict=True):
                    num_rows[manifest.files[file_key(int(file))].source] += int(count)
        for source in sorted({*shares, *num_rows}):
            share = shares[source].rows if source in shares else 0
            if num_rows[source] != share:
                message = f"{split}/{MIXED} holds {num_rows[source]} rows of {source}, but the manifest says {share}"
                yield Problem(MANIFEST, "books", message)


def _list_first_files(folder: Location, shard: Shard, manifest: Manifest) -> Iterator[NDArray[np.uint64]]:
    """Yield the input file of each record; for a row of tokens, that of its first document."""
    if manifest.holds_rows:
        for rows in read_mapped_batches(shard.copy_below(folder)):
            origins = rows.column(ORIGINS)
            yield origins.values.field("file").to_numpy(zero_copy_only=False)[origins.offsets.to_numpy()[:-1]]
        return
    side = shard.origins
    file, kind = (shard, manifest.format) if side is None else (side, "arrow")
    for origin in open_origins(file.copy_below(folder), kind):
        yield origin.field("file").to_numpy(zero_copy_only=False)


def _find_quarantine_problems(folder: Location, manifest: Manifest) -> Iterator[Problem]:
    """Check that the quarantine holds as many records as were counted. Its files are checked before."""
    quarantine = manifest.quarantine
    num_stored = 0
    for file in quarantine.files:
        try:
            entries = open_shard(file.copy_below(folder), "jsonl").rows()
            num_stored += sum(msgspec.convert(entry.get("records", 1), Count) for entry in entries)
        except (*READ_ERRORS, CorruptStreamError) as error:
            yield Problem(file.path, "unreadable", f"cannot be read: {error}")
            return
    num_counted = sum(sum(counts.values()) for counts in quarantine.counts.values())
    if num_stored != num_counted:
        path = quarantine.files[0].path if quarantine.files else MANIFEST
        message = f"the quarantine holds {num_stored} records, but {num_counted} were counted"
        yield Problem(path, "rows", message)


def _find_unexpected_files(folder: Location, manifest: Manifest) -> Iterator[Problem]:
    """Find files that a tool would read as shards (`train/*/*.arrow`), dropped records or files of the tokenizer.

    `datasets` keeps its `cache-*` files next to shards; they are ignored.
    """
    listed_paths = {file.path for file in manifest.stored_files()}
    suffixes = {Path(shard.path).suffix for _, _, shard in manifest.shards()}
    # Folders in which every file counts.
    whole = {Path(file.path).parent.as_posix() for file in manifest.tokenizer.files} if manifest.tokenizer else set()
    whole |= _SIDE_FOLDERS
    for name in [*manifest.splits, *sorted(whole)]:
        try:
            files = list(open_folder(path_below(folder, name)).list_below())
        except DamagedDatasetError:  # a link out of the folder, which is reported for each of its files
            continue
        for file, _ in files:
            path = f"{name}/{file}"
            is_of_interest = name in whole or PurePosixPath(file).suffix in suffixes
            is_ignored = PurePosixPath(file).name.startswith((".", "cache-", "tmp"))
            if is_of_interest and not is_ignored and path not in listed_paths:
                yield Problem(
                    path, "unexpected", "is not in the manifest, but tools would read it as part of the dataset"
                )
