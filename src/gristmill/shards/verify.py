"""Is everything there, and is it what was written? Every byte is read again: checksums, row counts, origins, books.

Cost: one pass over the dataset at the speed of the disk and the decompressor, in constant memory. `check_shard` works
on one shard and needs nothing else, so shards can be checked in parallel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gristmill.core.books import find_imbalances
from gristmill.core.errors import CorruptStreamError, DamagedDatasetError
from gristmill.shards.arrow_stream import ORIGINS_SCHEMA, mapped_batches
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.formats.shard_format import open_origins, open_shard
from gristmill.shards.hugging_face import side_files
from gristmill.shards.manifest import (
    MANIFEST,
    MIXED,
    Manifest,
    Shard,
    StoredFile,
    dataset_hash,
    file_key,
    load_manifest,
)
from gristmill.shards.report import make_derived_files
from gristmill.shards.token_rows import CHATS, ORIGINS, num_tokens, num_trained_tokens, rows_problem
from gristmill.storage.checksums import file_checksum
from gristmill.storage.stored_paths import Count, path_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.core.books import Account


_SIDE_FOLDERS = {"dropped", "quarantine"}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written."""

    path: str
    """The damaged file, relative to the dataset's folder."""
    kind: str
    """`missing`, `size`, `checksum`, `rows`, `tokens`, `origins`, `unreadable`, `outside`, `unexpected`, `edited`,
    `kind` or `books`."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(slots=True)
class Verification:
    """What was checked and what was found; true if nothing is wrong."""

    num_shards: int = 0
    num_rows: int = 0
    num_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    def __bool__(self) -> bool:
        return not self.problems


def verify(folder: str | Path) -> Verification:
    """Check a whole dataset."""
    folder = Path(folder)
    manifest = load_manifest(folder)
    result = Verification(problems=check_manifest(folder, manifest))
    known = known_files(manifest)
    damage = []
    for _, _, shard in manifest.shards():
        damage += check_shard(folder, shard, manifest, known)
        result.num_shards += 1
        result.num_rows += shard.rows
        result.num_bytes += shard.bytes
    # Shards that are damaged are not looked at more closely.
    result.problems += damage or _lane_problems(folder, manifest)
    return result


def check_manifest(folder: Path, manifest: Manifest) -> list[Problem]:
    """What is wrong apart from the shards themselves."""
    problems = []
    if not manifest.is_sealed:
        problems.append(Problem(MANIFEST, "edited", "was changed after the run"))
    if manifest.dataset_hash != dataset_hash(manifest):
        problems.append(Problem(MANIFEST, "edited", "its dataset_hash is not that of the shards it names"))
    if wrong := _schema_problem(manifest):
        problems.append(Problem(MANIFEST, "kind", wrong))
    problems += [Problem(MANIFEST, "books", message) for message in _book_problems(manifest)]
    shards = {shard.path for _, _, shard in manifest.shards()}
    shards |= {shard.origins.path for _, _, shard in manifest.shards() if shard.origins is not None}
    others = [file for file in manifest.stored_files() if file.path not in shards]
    damage = {file.path: problem for file in others if (problem := _file_problem(folder, file))}
    problems += damage.values()
    if not damage.keys() & {file.path for file in manifest.quarantine.files}:
        problems += _quarantine_problems(folder, manifest)
    try:
        derived = make_derived_files(manifest)
    except DamagedDatasetError:  # the books cannot be read, which was said above
        derived = side_files(manifest)
    problems += [problem for path, content in derived.items() if (problem := _content_problem(folder, path, content))]
    problems += _unexpected_files(folder, manifest)
    return problems


def known_files(manifest: Manifest) -> NDArray[np.uint64]:
    """The ids of the input files in order, for `check_shard`."""
    return np.sort(np.array([int(key, 16) for key in manifest.files], dtype=np.uint64))


def check_shard(folder: Path, shard: Shard, manifest: Manifest, known: NDArray[np.uint64]) -> list[Problem]:
    """What is wrong with one shard and its origins."""
    problem = _file_problem(folder, shard)
    if _schema_problem(manifest):  # said once, of the manifest; nobody knows how to read on
        return [problem] if problem else []
    problem = problem or _content(shard.path, lambda: _shard_problem(folder, shard, manifest, known))
    side = shard.origins
    if side is None:
        return [problem] if problem else []
    side_problem = _file_problem(folder, side)
    side_problem = side_problem or _content(side.path, lambda: _side_problem(folder, side, shard.rows, known))
    return [found for found in (problem, side_problem) if found]


def _shard_problem(folder: Path, shard: Shard, manifest: Manifest, known: NDArray[np.uint64]) -> Problem | None:
    problem = _row_problem(folder, shard, shard.rows, manifest.format, manifest.shard_schema())
    if manifest.holds_rows:
        problem = problem or _token_problem(folder, shard, manifest)
    if shard.origins is None:
        problem = problem or _origin_problem(folder, shard, manifest.format, known, manifest.kind)
    return problem


def _side_problem(folder: Path, side: StoredFile, rows: int, known: NDArray[np.uint64]) -> Problem | None:
    problem = _row_problem(folder, side, rows, "arrow", ORIGINS_SCHEMA)
    return problem or _origin_problem(folder, side, "arrow", known)


def _schema_problem(manifest: Manifest) -> str | None:
    """Does the manifest describe columns that a dataset of its kind can have?"""
    try:
        manifest.shard_schema()
    except DamagedDatasetError as error:
        return error.message
    return None


def _content(path: str, find_problem: Callable[[], Problem | None]) -> Problem | None:
    """The problem that a look at the content of a file finds; that it cannot be read is one, too."""
    try:
        return find_problem()
    except (*READ_ERRORS, CorruptStreamError) as error:
        return Problem(path, "unreadable", f"cannot be read: {error}")


def _file_problem(folder: Path, file: StoredFile) -> Problem | None:
    """Is it there, whole, and unchanged?"""
    try:
        path = file.below(folder)
        num_bytes = path.stat().st_size
        if num_bytes != file.bytes:
            return Problem(file.path, "size", f"has {num_bytes} bytes, but {file.bytes} were written")
        if file_checksum(path) != file.xxh3:
            return Problem(file.path, "checksum", "its content has changed: the checksum differs")
    except (OSError, DamagedDatasetError) as error:
        return _unreadable(file.path, error)
    return None


def _content_problem(folder: Path, path: str, content: bytes) -> Problem | None:
    """Is a small file that follows from the manifest there, and as it was written?"""
    try:
        if path_below(folder, path).read_bytes() != content:
            return Problem(path, "edited", "is not as it was written")
    except (OSError, DamagedDatasetError) as error:
        return _unreadable(path, error)
    return None


def _unreadable(path: str, error: OSError | DamagedDatasetError) -> Problem:
    if isinstance(error, DamagedDatasetError):
        return Problem(path, "outside", error.message)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Problem(path, "missing", "is missing")
    return Problem(path, "unreadable", f"cannot be read: {error.strerror or error}")


def _row_problem(folder: Path, file: StoredFile, rows: int, format: str, schema: pa.Schema | None) -> Problem | None:
    """Are all records there, and can they be decoded?"""
    num_rows = open_shard(file.below(folder), format, schema=schema).count_rows()
    if num_rows != rows:
        return Problem(file.path, "rows", f"holds {num_rows} records, but the manifest says {rows}")
    return None


def _token_problem(folder: Path, shard: Shard, manifest: Manifest) -> Problem | None:
    """Do rows hold as many tokens as they say, trained and in all, and only tokens of the vocabulary?"""
    total = trained = 0
    for rows in mapped_batches(shard.below(folder)):
        message = rows_problem(rows, manifest.tokenizer.vocab_size if manifest.tokenizer is not None else None)
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


def _origin_problem(
    folder: Path, file: StoredFile, format: str, known: NDArray[np.uint64], kind: str = "documents"
) -> Problem | None:
    """Does every record come from an input file that the manifest names?"""
    for origins in open_origins(file.below(folder), format, kind):
        if origins.null_count or origins.field("file").null_count:
            return Problem(file.path, "origins", "has records without an origin")
        unknown = _first_unknown(np.unique(origins.field("file").to_numpy(zero_copy_only=False)), known)
        if unknown is not None:
            message = f"has records of the input file {file_key(unknown)}, which the manifest does not name"
            return Problem(file.path, "origins", message)
    return None


def _first_unknown(found: NDArray[np.uint64], known: NDArray[np.uint64]) -> int | None:
    """Looked up in the sorted ids: nothing is done for each of those, of which a hundred thousand may be known."""
    places = np.searchsorted(known, found)
    is_known = places < len(known)
    is_known[is_known] = known[places[is_known]] == found[is_known]
    return None if is_known.all() else int(found[~is_known][0])


def _book_problems(manifest: Manifest) -> Iterator[str]:
    """Does every account balance, and do the books end with the records and the quarantine that there are?"""
    num_rows = Counter({source: amount.rows for source, amount in manifest.amounts().items()})
    for source in sorted({*manifest.books, *num_rows, *manifest.quarantine.counts}):
        accounts = manifest.books.get(source, [])
        for message in find_imbalances(accounts):
            yield f"source {source}: {message}"
        given = _num_rows(accounts[-1]) if accounts else 0
        if given != num_rows[source]:
            yield f"source {source}: the books end with {given} records, but its shards hold {num_rows[source]}"
        quarantined: Counter[str] = Counter()
        for account in accounts:
            quarantined.update(account.quarantined)
        if quarantined != Counter(manifest.quarantine.counts.get(source, {})):
            yield f"source {source}: the books and the quarantine do not agree on what was set aside"


def _lane_problems(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    """Does a lane of several sources hold as many rows of each as the manifest says? The origins tell."""
    for split, shares in manifest.mixed.items():
        num_rows: Counter[str] = Counter()
        for shard in manifest.splits.get(split, {}).get(MIXED, []):
            for files in _first_files(folder, shard, manifest):
                for file, count in zip(*np.unique(files, return_counts=True), strict=True):
                    num_rows[manifest.files[file_key(int(file))].source] += int(count)
        for source in sorted({*shares, *num_rows}):
            share = shares[source].rows if source in shares else 0
            if num_rows[source] != share:
                message = f"{split}/{MIXED} holds {num_rows[source]} rows of {source}, but the manifest says {share}"
                yield Problem(MANIFEST, "books", message)


def _first_files(folder: Path, shard: Shard, manifest: Manifest) -> Iterator[NDArray[np.uint64]]:
    """For each record the input file that it is from; for a row of tokens, that of its first document."""
    if manifest.holds_rows:
        for rows in mapped_batches(shard.below(folder)):
            origins = rows.column(ORIGINS)
            yield origins.values.field("file").to_numpy(zero_copy_only=False)[origins.offsets.to_numpy()[:-1]]
        return
    side = shard.origins
    file, kind = (shard, manifest.format) if side is None else (side, "arrow")
    for origin in open_origins(file.below(folder), kind):
        yield origin.field("file").to_numpy(zero_copy_only=False)


def _num_rows(account: Account) -> int:
    """What the last step has left: records, or the rows that it laid them into."""
    return account.counters.get("rows", account.records_out)


def _quarantine_problems(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    """Does the quarantine, whose files are as they were written, hold what was counted?"""
    quarantine = manifest.quarantine
    num_kept = 0
    for file in quarantine.files:
        try:
            entries = open_shard(file.below(folder), "jsonl").rows()
            num_kept += sum(msgspec.convert(entry.get("records", 1), Count) for entry in entries)
        except (*READ_ERRORS, CorruptStreamError) as error:
            yield Problem(file.path, "unreadable", f"cannot be read: {error}")
            return
    num_counted = sum(sum(counts.values()) for counts in quarantine.counts.values())
    if num_kept != num_counted:
        path = quarantine.files[0].path if quarantine.files else MANIFEST
        message = f"the quarantine holds {num_kept} records, but {num_counted} were counted"
        yield Problem(path, "rows", message)


def _unexpected_files(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    """Files that a tool would take for shards (`train/*/*.arrow`), for dropped records or a part of the tokenizer.

    `datasets` keeps its `cache-*` beside shards: they are left alone.
    """
    known = {file.path for file in manifest.stored_files()}
    suffixes = {Path(shard.path).suffix for _, _, shard in manifest.shards()}
    # Folders of which every file counts, whatever its name.
    whole = {Path(file.path).parent.as_posix() for file in manifest.tokenizer.files} if manifest.tokenizer else set()
    whole |= _SIDE_FOLDERS
    for name in [*manifest.splits, *sorted(whole)]:
        try:
            files = sorted(path_below(folder, name).rglob("*"))
        except DamagedDatasetError:  # a link that leaves the folder: said of each file behind it
            continue
        for file in files:
            path = file.relative_to(folder).as_posix()
            is_of_interest = file.is_file() if name in whole else file.suffix in suffixes
            if is_of_interest and not file.name.startswith((".", "cache-", "tmp")) and path not in known:
                yield Problem(
                    path, "unexpected", "is not in the manifest, but tools would read it as part of the dataset"
                )
