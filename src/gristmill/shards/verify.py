"""Is everything there, and is it what was written? Every byte is read again: checksums, row counts, origins, books.

Cost: one pass over the dataset at the speed of the disk and the decompressor, in constant memory. `check_shard` works
on one shard and needs nothing else, so shards can be checked in parallel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.books import unbalanced
from gristmill.core.errors import CorruptStreamError
from gristmill.shards.arrow_stream import mapped_batches
from gristmill.shards.hugging_face import side_files
from gristmill.shards.manifest import MANIFEST, Manifest, Shard, StoredFile, dataset_hash, file_key, load_manifest
from gristmill.shards.readers import READ_ERRORS, open_origins, open_shard
from gristmill.shards.token_rows import CHATS, misfit, num_tokens, num_trained_tokens, rows_problem
from gristmill.storage.checksums import file_checksum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.core.books import Account


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written."""

    path: str
    """The damaged file, relative to the dataset's folder."""
    kind: str
    """`missing`, `size`, `checksum`, `rows`, `tokens`, `origins`, `unreadable`, `unexpected`, `edited`, `kind` or
    `books`."""
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
    for _, _, shard in manifest.shards():
        result.problems += check_shard(folder, shard, manifest, known)
        result.num_shards += 1
        result.num_rows += shard.rows
        result.num_bytes += shard.bytes
    return result


def check_manifest(folder: Path, manifest: Manifest) -> list[Problem]:
    """What is wrong apart from the shards themselves."""
    problems = []
    if not manifest.is_sealed:
        problems.append(Problem(MANIFEST, "edited", "was changed after the run"))
    if manifest.dataset_hash != dataset_hash(manifest):
        problems.append(Problem(MANIFEST, "edited", "its dataset_hash is not that of the shards it names"))
    if wrong := misfit(manifest.kind, manifest.schema.columns):
        problems.append(Problem(MANIFEST, "kind", wrong))
    problems += [Problem(MANIFEST, "books", message) for message in _book_problems(manifest)]
    problems += _quarantine_problems(folder, manifest)
    tokenizer = manifest.tokenizer.files if manifest.tokenizer is not None else []
    others = [*tokenizer, *(step.file for step in manifest.deduplicated)]
    problems += [problem for file in others if (problem := _file_problem(folder, file))]
    for path, content in side_files(manifest).items():
        file = folder / path
        if not file.exists():
            problems.append(Problem(path, "missing", "is missing"))
        elif file.read_bytes() != content:
            problems.append(Problem(path, "edited", "is not as it was written"))
    problems += _unexpected_files(folder, manifest)
    return problems


def known_files(manifest: Manifest) -> NDArray[np.uint64]:
    """The ids of the input files in order, for `check_shard`."""
    return np.sort(np.array([int(key, 16) for key in manifest.files], dtype=np.uint64))


def check_shard(folder: Path, shard: Shard, manifest: Manifest, known: NDArray[np.uint64]) -> list[Problem]:
    """What is wrong with one shard and its origins."""
    problem = _file_problem(folder, shard) or _row_problem(folder, shard, shard.rows, manifest.format)
    if misfit(manifest.kind, manifest.schema.columns):  # said once, of the manifest; nobody knows how to read on
        return [problem] if problem else []
    if manifest.holds_rows:
        problem = problem or _token_problem(folder, shard, manifest)
    if shard.origins is None:
        problem = problem or _origin_problem(folder, shard, manifest.format, known, manifest.kind)
        return [problem] if problem else []
    side = shard.origins
    side_problem = _file_problem(folder, side) or _row_problem(folder, side, shard.rows, "arrow")
    side_problem = side_problem or _origin_problem(folder, side, "arrow", known)
    return [found for found in (problem, side_problem) if found]


def _file_problem(folder: Path, file: StoredFile) -> Problem | None:
    """Is it there, whole, and unchanged?"""
    path = folder / file.path
    try:
        num_bytes = path.stat().st_size
        if num_bytes != file.bytes:
            return Problem(file.path, "size", f"has {num_bytes} bytes, but {file.bytes} were written")
        if file_checksum(path) != file.xxh3:
            return Problem(file.path, "checksum", "its content has changed: the checksum differs")
    except FileNotFoundError:
        return Problem(file.path, "missing", "is missing")
    except OSError as error:
        return Problem(file.path, "unreadable", f"cannot be read: {error.strerror or error}")
    return None


def _row_problem(folder: Path, file: StoredFile, rows: int, format: str) -> Problem | None:
    """Are all records there, and can they be decoded?"""
    try:
        num_rows = open_shard(folder / file.path, format).count_rows()
    except (*READ_ERRORS, CorruptStreamError) as error:
        return Problem(file.path, "unreadable", f"cannot be read: {error}")
    if num_rows != rows:
        return Problem(file.path, "rows", f"holds {num_rows} records, but the manifest says {rows}")
    return None


def _token_problem(folder: Path, shard: Shard, manifest: Manifest) -> Problem | None:
    """Do rows hold as many tokens as they say, trained and in all, and only tokens of the vocabulary?"""
    total = trained = 0
    schema = manifest.schema.to_arrow()
    for rows in mapped_batches(folder / shard.path):
        if not rows.schema.equals(schema):
            return Problem(shard.path, "tokens", "its columns are not those of the manifest")
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
    for origins in open_origins(folder / file.path, format, kind):
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
    num_rows: Counter[str] = Counter()
    for _, source, shard in manifest.shards():
        num_rows[source] += shard.rows
    for source in sorted({*manifest.books, *num_rows, *manifest.quarantine.counts}):
        try:
            accounts = manifest.accounts(source)
        except (KeyError, TypeError, ValueError) as error:
            yield f"source {source}: its books cannot be read: {error!r}"
            continue
        for message in unbalanced(accounts):
            yield f"source {source}: {message}"
        given = _num_rows(accounts[-1]) if accounts else 0
        if given != num_rows[source]:
            yield f"source {source}: the books end with {given} records, but its shards hold {num_rows[source]}"
        quarantined: Counter[str] = Counter()
        for account in accounts:
            quarantined.update(account.quarantined)
        if quarantined != Counter(manifest.quarantine.counts.get(source, {})):
            yield f"source {source}: the books and the quarantine do not agree on what was set aside"


def _num_rows(account: Account) -> int:
    """What the last step has left: records, or the rows that it laid them into."""
    return account.measures.get("rows", account.given)


def _quarantine_problems(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    quarantine = manifest.quarantine
    found = [_file_problem(folder, file) for file in quarantine.files]
    problems = [problem for problem in found if problem is not None]
    yield from problems
    if problems:
        return
    entries = (entry for file in quarantine.files for entry in open_shard(folder / file.path, "jsonl").rows())
    num_kept = sum(entry.get("records", 1) for entry in entries)
    num_counted = sum(sum(counts.values()) for counts in quarantine.counts.values())
    if num_kept != num_counted:
        path = quarantine.files[0].path if quarantine.files else MANIFEST
        message = f"the quarantine holds {num_kept} records, but {num_counted} were counted"
        yield Problem(path, "rows", message)


def _unexpected_files(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    """Files that a tool would take for shards (`train/*/*.arrow`). `datasets` keeps its `cache-*` there: leave them."""
    shards = [shard for _, _, shard in manifest.shards()]
    known = {shard.path for shard in shards} | {shard.origins.path for shard in shards if shard.origins}
    suffixes = {Path(shard.path).suffix for shard in shards}
    for split in manifest.splits:
        for file in sorted((folder / split).rglob("*")):
            path = file.relative_to(folder).as_posix()
            looks_like_shard = file.suffix in suffixes and not file.name.startswith((".", "cache-", "tmp"))
            if looks_like_shard and path not in known:
                yield Problem(
                    path, "unexpected", "is not in the manifest, but tools would read it as part of the dataset"
                )
