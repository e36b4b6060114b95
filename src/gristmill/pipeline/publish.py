"""From finished units to a dataset: shards get their places, books are checked, the manifest is written last.

Moves are noted before they are made, so that a run that is killed in the middle of them can take them back and go on.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.books import Account, unbalanced
from gristmill.core.errors import GristmillError
from gristmill.core.recipe import recipe_data
from gristmill.pipeline.output import MOVES, UNITS, WORK, remove_files, remove_work
from gristmill.pipeline.quarantine import ENVIRONMENT_REASONS
from gristmill.pipeline.receipts import Receipt, Receipts
from gristmill.pipeline.sink import ONLY_SPLIT, Part
from gristmill.pipeline.work import PartResult
from gristmill.shards.hugging_face import side_files
from gristmill.shards.manifest import (
    MANIFEST,
    InputFile,
    Manifest,
    Quarantine,
    Schema,
    Shard,
    StoredFile,
    dump_manifest,
    file_key,
    load_manifest,
)
from gristmill.steps.write import encode_whole, open_encoder, origins_footer, origins_header
from gristmill.storage.commit import PendingFile, make_folder, sync_folder, write_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from gristmill.pipeline.plan import Plan

_UNSHAPING = ("slice_bytes", "max_quarantine")
MIN_QUARANTINE = 10
"""So few records may always be set aside."""


class BooksError(GristmillError, RuntimeError):
    """Records went in that did not come out anywhere."""


class QuarantineError(GristmillError, RuntimeError):
    """More records were set aside than the recipe allows."""


class Finished(msgspec.Struct, frozen=True):
    """One source, run to its end: the sums of all books and its last units in order."""

    books: list[dict[str, Any]]
    units: list[tuple[str, Any]]
    """Fingerprint and `PartResult`."""
    quarantine: list[StoredFile]


def check_quarantine(plan: Plan, source: str, books: Sequence[dict[str, Any]]) -> None:
    """Refuse a source of which too much was set aside."""
    accounts = [Account.from_dict(state) for state in books]
    num_bad = sum(account.quarantined.total() for account in accounts)
    num_records = accounts[0].taken if accounts else 0
    allowed = max(MIN_QUARANTINE, plan.recipe.max_quarantine * num_records)
    if num_bad > allowed:
        reasons = sum((account.quarantined for account in accounts), Counter[str]())
        listed = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
        raise QuarantineError(
            f"source {source}: {num_bad:,} of {num_records:,} records were set aside ({listed}); allowed are "
            f"{plan.recipe.max_quarantine:.2%}",
            help=f"see {plan.output / WORK / 'work'}/*.quarantine.jsonl; mend the input or the steps, or raise "
            "max_quarantine; what is done is kept",
        )


def publish(plan: Plan, finished: Mapping[str, Finished], run_id: str) -> Manifest:
    """Make the dataset. Everything before the manifest can be taken back; after it the run is over."""
    for name, source in finished.items():
        problems = unbalanced(Account.from_dict(state) for state in source.books)
        if problems:
            raise BooksError(f"source {name}: the books do not balance: {'; '.join(problems)}", help="report this bug")
    old = load_manifest(plan.output) if (plan.output / MANIFEST).exists() else None
    names = _Names(plan.write.suffix, set(_files_of(old)))
    splits: dict[str, dict[str, list[Shard]]] = {}
    for name, source in finished.items():
        for fingerprint, result in source.units:
            for part in result.parts:
                shard = names.shard(part, name, fingerprint)
                splits.setdefault(part.split, {}).setdefault(name, []).append(shard)
    if not any(splits.values()):
        splits = {ONLY_SPLIT: {plan.sources[0].name: [_empty_shard(plan, run_id)]}}
    make_moves(plan.output, names.moves, run_id)
    quarantined = [_join_quarantine(plan.output, name, source, run_id) for name, source in finished.items()]
    manifest = _manifest(plan, finished, _ordered(splits), [file for file in quarantined if file is not None])
    for path, content in side_files(manifest).items():
        write_file(plan.output / path, content, run_id)
    write_file(plan.output / UNITS, names.receipts(plan, finished), run_id)
    write_file(plan.output / MANIFEST, dump_manifest(manifest), run_id)
    (plan.output / MOVES).unlink(missing_ok=True)
    if old is not None:
        kept = set(_files_of(manifest)) | set(side_files(manifest))
        remove_files(plan.output, (set(_files_of(old)) | set(side_files(old))) - kept)
    return manifest


class _Names:
    """Gives finished files their places; what is already in its place stays there."""

    def __init__(self, suffix: str, taken: set[str]) -> None:
        self._suffix = suffix
        self._taken = taken
        self._numbers: Counter[str] = Counter()
        self.moves: list[tuple[str, str]] = []

    def shard(self, part: Part, source: str, fingerprint: str) -> Shard:
        folder = f"{part.split}/{source}"
        path, origins = part.data.path, part.origins
        if path.startswith(WORK):
            path = self._free(folder)
            self.moves.append((part.data.path, path))
            if origins is not None:
                place = f"origins/{path.removesuffix(self._suffix)}.arrow"
                self.moves.append((origins.path, place))
                origins = StoredFile(path=place, bytes=origins.bytes, xxh3=origins.xxh3)
        return Shard(
            path=path, bytes=part.data.bytes, xxh3=part.data.xxh3, rows=part.rows, tasks=[fingerprint], origins=origins
        )

    def receipts(self, plan: Plan, finished: Mapping[str, Finished]) -> bytes:
        """The units of sources without barriers, as they are now: for an update."""
        places = dict(self.moves)
        lines = []
        for source in plan.sources:
            for fingerprint, result in finished[source.name].units if len(source.legs) == 1 else ():
                parts = [_moved_part(part, places) for part in result.parts]
                kept = msgspec.json.encode(msgspec.structs.replace(result, parts=parts))
                lines.append(msgspec.json.encode(Receipt(fingerprint=fingerprint, result=msgspec.Raw(kept))) + b"\n")
        return b"".join(lines)

    def _free(self, folder: str) -> str:
        while True:
            path = f"{folder}/shard-{self._numbers[folder]:05d}{self._suffix}"
            self._numbers[folder] += 1
            if path not in self._taken:
                return path


def _moved_part(part: Part, places: Mapping[str, str]) -> Part:
    moved = {
        name: msgspec.structs.replace(file, path=places.get(file.path, file.path))
        for name in ("data", "origins")
        if (file := getattr(part, name)) is not None
    }
    return msgspec.structs.replace(part, **moved)


def make_moves(root: Path, moves: Sequence[tuple[str, str]], run_id: str) -> None:
    write_file(root / MOVES, msgspec.json.encode(moves), run_id)
    folders = {(root / place).parent for _, place in moves}
    for folder in folders:
        make_folder(folder)
    for path, place in moves:
        (root / path).replace(root / place)
    for folder in folders:
        sync_folder(folder)


def undo_moves(root: Path) -> None:
    """Take back the moves of a run that was killed before its manifest was there."""
    note = root / MOVES
    if not note.exists():
        return
    moves = msgspec.json.decode(note.read_bytes(), type=list[tuple[str, str]])
    old = set(_files_of(load_manifest(root))) if (root / MANIFEST).exists() else set()
    for path, place in moves:
        if place not in old and (root / place).exists() and not (root / path).exists():
            (root / place).replace(root / path)
    note.unlink()


def _ordered(splits: dict[str, dict[str, list[Shard]]]) -> dict[str, dict[str, list[Shard]]]:
    """Training first, then the others by name."""
    return {split: splits[split] for split in sorted(splits, key=lambda split: (split != ONLY_SPLIT, split))}


def _files_of(manifest: Manifest | None) -> Iterator[str]:
    if manifest is None:
        return
    for _, _, shard in manifest.shards():
        yield shard.path
        if shard.origins is not None:
            yield shard.origins.path
    for file in manifest.quarantine.files:
        yield file.path


def _manifest(
    plan: Plan,
    finished: Mapping[str, Finished],
    splits: dict[str, dict[str, list[Shard]]],
    quarantined: list[StoredFile],
) -> Manifest:
    counts = {name: _reasons(source.books) for name, source in finished.items()}
    files = {
        file_key(file.id): InputFile(
            source=source.name, path=file.path, relative=file.relative, bytes=file.num_bytes, version=file.version
        )
        for source in plan.sources
        for file in source.files
    }
    return Manifest(
        kind="documents",
        format=plan.write.format,
        fingerprint=plan.fingerprint or "",
        environment_dependent=any(ENVIRONMENT_REASONS & set(reasons) for reasons in counts.values()),
        schema=Schema.of(open_encoder(plan.write, plan.sources[0].output_schema).schema),
        splits=splits,
        books={name: source.books for name, source in finished.items()},
        quarantine=Quarantine(counts={name: found for name, found in counts.items() if found}, files=quarantined),
        recipe=_plain({key: value for key, value in recipe_data(plan.recipe).items() if key not in _UNSHAPING}),
        versions=plan.versions,
        files=files,
    ).sealed()


def _plain(data: Any) -> Any:
    """Functions by their names."""
    return msgspec.json.decode(msgspec.json.encode(data, enc_hook=str))


def _reasons(books: Sequence[dict[str, Any]]) -> dict[str, int]:
    total = sum((Account.from_dict(state).quarantined for state in books), Counter[str]())
    return dict(sorted(total.items()))


def _join_quarantine(root: Path, name: str, source: Finished, run_id: str) -> StoredFile | None:
    if not source.quarantine:
        return None
    path = f"quarantine/{name}.jsonl"
    with PendingFile(root / path, run_id) as file:
        for piece in source.quarantine:
            file.write((root / piece.path).read_bytes())
        file.commit()
    return StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)


def _empty_shard(plan: Plan, run_id: str) -> Shard:
    """A dataset without records still has a shard, so that every reader finds its columns."""
    source = plan.sources[0]
    encoder = open_encoder(plan.write, source.output_schema)
    path = f"{ONLY_SPLIT}/{source.name}/shard-00000{encoder.suffix}"
    with PendingFile(plan.output / path, run_id) as file:
        encode_whole(plan.write, source.output_schema, [], file)
        file.commit()
    origins = None
    if not encoder.holds_origins:
        place = f"origins/{ONLY_SPLIT}/{source.name}/shard-00000.arrow"
        content = origins_header() + origins_footer()
        origins = StoredFile(path=place, bytes=len(content), xxh3=write_file(plan.output / place, content, run_id))
    return Shard(path=path, bytes=file.num_bytes, xxh3=file.checksum, rows=0, origins=origins)


def remove_leftovers(root: Path) -> None:
    """Empty the work folder, but for what an update of the finished dataset can use."""
    units = Receipts(root / UNITS)
    kept = {UNITS} | {file.path for unit in units.values(PartResult) for file in unit.quarantine}
    remove_work(root, kept)
