"""From finished units to a dataset: books are checked, shards get their names, the manifest says what there is."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.books import find_imbalances, max_quarantined_records
from gristmill.core.errors import BooksError, QuarantineError, SourceChangedError
from gristmill.core.recipe import recipe_to_data
from gristmill.core.splits import TRAIN
from gristmill.pipeline.publishing.empty_datasets import refuse_empty
from gristmill.pipeline.publishing.journal import find_manifest, manifest_paths, replace_dataset
from gristmill.pipeline.stages.dropped import join_dropped
from gristmill.pipeline.stages.outputs.split_files import SplitFile
from gristmill.pipeline.stages.quarantine import ENVIRONMENT_REASONS, fill_in_path
from gristmill.pipeline.stages.receipts import Receipt
from gristmill.pipeline.work_folder import WORK_FOLDER
from gristmill.shards.arrow_stream import origins_footer, origins_header
from gristmill.shards.formats.shard_format import open_encoder, write_shard
from gristmill.shards.manifest import (
    MIXED,
    Deduplicated,
    InputFile,
    Manifest,
    Quarantine,
    Schema,
    Shard,
    StoredFile,
    TokenizerIdentity,
    file_key,
)
from gristmill.shards.token_rows import CHATS, TOKENS, is_masked
from gristmill.storage.commit import PendingFile, write_file
from gristmill.storage.files import open_input

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gristmill.core.books import Account
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.planning.source_plan import SourcePlan
    from gristmill.pipeline.publishing.mixed_lane import MixedLane
    from gristmill.pipeline.stages.runner import StageUnit
    from gristmill.pipeline.stages.slice_task import SliceResult
    from gristmill.shards.tokenizer_snapshot import TokenizerSnapshot

_NOT_FINGERPRINTED = ("slice_bytes", "max_quarantine", "allow_empty")


@dataclass(frozen=True, slots=True)
class FinishedSource:
    """One source, run to its end: the sums of all books, its last units in order and what each came to."""

    books: list[Account]
    units: Sequence[StageUnit]
    results: Iterable[SliceResult]
    quarantine: list[StoredFile]
    dropped: list[StoredFile]


def check_quarantine(plan: Plan, source: str, books: Sequence[Account]) -> None:
    """Refuse a source of which too much was set aside."""
    num_bad = sum(account.quarantined.total() for account in books)
    num_records = books[0].records_in if books else 0
    if num_bad > max_quarantined_records(num_records, plan.recipe.max_quarantine):
        reasons = sum((account.quarantined for account in books), Counter[str]())
        listed = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
        raise QuarantineError(
            f"source {source}: {num_bad:,} of {num_records:,} records were set aside ({listed}); allowed are "
            f"{plan.recipe.max_quarantine:.2%}",
            help=f"see {plan.output / WORK_FOLDER / 'work'}/*.quarantine.jsonl; mend the input or the steps, or raise "
            "max_quarantine; what is done is kept",
        )


def publish(
    plan: Plan,
    finished: Mapping[str, FinishedSource],
    run_id: str,
    deduplicated: Sequence[Deduplicated] = (),
    lane: MixedLane | None = None,
) -> Manifest:
    """Make the dataset, in place of the one that may be there."""
    for name, source in finished.items():
        problems = find_imbalances(source.books)
        if problems:
            raise BooksError(f"source {name}: the books do not balance: {'; '.join(problems)}", help="report this bug")
    old = find_manifest(plan.output)
    names = _ShardPlacer(plan, old)
    splits: dict[str, dict[str, list[Shard]]] = {}
    lanes: dict[str, FinishedSource | MixedLane] = {**finished} if lane is None else {**finished, MIXED: lane}
    for name, written in lanes.items():
        for unit, result in zip(written.units, written.results, strict=True):
            for part in result.split_files:
                shard = names.place_shard(part, name, unit.fingerprint)
                splits.setdefault(part.split, {}).setdefault(name, []).append(shard)
    if not any(splits.values()):
        refuse_empty(plan, {name: source.books for name, source in finished.items()})
        name = plan.sources[0].name
        splits = {TRAIN: {name: [names.place_shard(_write_empty_shard(plan, run_id), name, None)]}}
    quarantined = [
        names.place_lines(
            "quarantine", source.name, _join_quarantine(plan.output, source, finished[source.name].quarantine, run_id)
        )
        for source in plan.sources
        if finished[source.name].quarantine
    ]
    dropped = _publish_dropped(plan, finished, names, run_id)
    tokenizer = _copy_tokenizer(plan.tokenizer, plan.output, names, run_id) if plan.tokenizer is not None else None
    removed = [msgspec.structs.replace(step, file=names.place_duplicates(step.file)) for step in deduplicated]
    manifest = _make_manifest(plan, finished, _order_splits(splits), quarantined, dropped, tokenizer, removed)
    if lane is not None and lane.shares:
        manifest = msgspec.structs.replace(manifest, mixed={TRAIN: lane.shares}).seal()
    replace_dataset(plan.output, manifest, names.moves, names.encode_receipts(plan, finished), run_id)
    return manifest


class _ShardPlacer:
    """Gives finished files their places; what is already in its place stays there, and no place is given twice."""

    def __init__(self, plan: Plan, old: Manifest | None) -> None:
        self._root = plan.output
        self._write = plan.write
        self._suffix = plan.write.suffix
        self._is_masked = is_masked(plan.shard_schema)
        self._taken = set(manifest_paths(old))
        self._old = [*old.stored_files()] if old is not None else []
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
        """For each folder, those not yet tried."""
        self.moves: list[tuple[str, str]] = []

    def place_shard(self, part: SplitFile, source: str, fingerprint: str | None) -> Shard:
        data, origins = part.data, part.origins
        if data.path.startswith(WORK_FOLDER):
            folder = f"{part.split}/{source}"
            names = (self._write.name_shard(part.split, source, number) for number in self._numbers[folder])
            stem = self._find_free_stem((f"{folder}/{name}" for name in names), self._suffix)
            data = self._move_file(data, stem + self._suffix)
            origins = self._move_file(origins, f"origins/{stem}.arrow") if origins is not None else None
        tasks = [fingerprint] if fingerprint is not None else []
        return Shard(
            path=data.path,
            bytes=data.bytes,
            xxh3=data.xxh3,
            rows=part.rows,
            tokens=part.tokens or None,
            trained_tokens=part.trained_tokens if self._is_masked else msgspec.UNSET,
            tasks=tasks,
            origins=origins,
        )

    def place_lines(self, folder: str, name: str, file: StoredFile) -> StoredFile:
        """A file of JSON lines."""
        return self._place_side_file(f"{folder}/{name}", ".jsonl", file)

    def place_duplicates(self, file: StoredFile) -> StoredFile:
        return self._place_side_file("dropped/duplicates", ".parquet", file)

    def _place_side_file(self, stem: str, suffix: str, file: StoredFile) -> StoredFile:
        """The place of a file that the dataset has besides its shards; one that is there already stays."""
        for old in self._old:
            if old.path.startswith(stem) and (old.bytes, old.xxh3) == (file.bytes, file.xxh3):
                return old if old.below(self._root).exists() else self._move_file(file, old.path)
        others = (f"{stem}-{number}" for number in count(1))
        return self._move_file(file, self._find_free_stem(chain([stem], others), suffix) + suffix)

    def place_tokenizer(self, files: Mapping[str, StoredFile]) -> list[StoredFile]:
        """Files by their names, all in one folder: the one they are in already, or a new one."""
        for folder in chain(["tokenizer"], (f"tokenizer-{number}" for number in count(2))):
            there = {old.path: old for old in self._old}
            places = {f"{folder}/{name}": file for name, file in files.items()}
            if all(place in there and there[place].xxh3 == file.xxh3 for place, file in places.items()):
                return [there[place] for place in places]
            if not any(self._is_taken(place) for place in places):
                return [self._move_file(file, place) for place, file in places.items()]
        raise AssertionError("numbers do not end")

    def encode_receipts(self, plan: Plan, finished: Mapping[str, FinishedSource]) -> Iterator[bytes]:
        """The units of sources without barriers, as they are now: for an update."""
        places = dict(self.moves)
        for source in plan.sources:
            if len(source.stages) > 1:
                continue
            for unit, result in zip(finished[source.name].units, finished[source.name].results, strict=True):
                parts = [_replace_paths(part, places) for part in result.split_files]
                kept = msgspec.Raw(msgspec.json.encode(msgspec.structs.replace(result, split_files=parts)))
                yield msgspec.json.encode(Receipt(fingerprint=unit.fingerprint, result=kept)) + b"\n"

    def _move_file(self, file: StoredFile, place: str) -> StoredFile:
        self.moves.append((file.path, place))
        self._taken.add(place)
        return StoredFile(path=place, bytes=file.bytes, xxh3=file.xxh3)

    def _find_free_stem(self, stems: Iterable[str], suffix: str) -> str:
        places = ((stem, (stem + suffix, f"origins/{stem}.arrow")) for stem in stems)
        return next(stem for stem, both in places if not any(map(self._is_taken, both)))

    def _is_taken(self, place: str) -> bool:
        """By the dataset that is there, or by a file that is not ours."""
        return place in self._taken or (self._root / place).exists()


def _replace_paths(part: SplitFile, places: Mapping[str, str]) -> SplitFile:
    moved = {
        name: msgspec.structs.replace(file, path=places.get(file.path, file.path))
        for name in ("data", "origins")
        if (file := getattr(part, name)) is not None
    }
    return msgspec.structs.replace(part, **moved)


def _order_splits(splits: dict[str, dict[str, list[Shard]]]) -> dict[str, dict[str, list[Shard]]]:
    """Training first, then the others by name."""
    return {split: splits[split] for split in sorted(splits, key=lambda split: (split != TRAIN, split))}


def _make_manifest(
    plan: Plan,
    finished: Mapping[str, FinishedSource],
    splits: dict[str, dict[str, list[Shard]]],
    quarantined: list[StoredFile],
    dropped: list[StoredFile],
    tokenizer: TokenizerIdentity | None,
    deduplicated: list[Deduplicated],
) -> Manifest:
    counts = {name: _count_reasons(source.books) for name, source in finished.items()}
    files = {
        file_key(file.id): InputFile(
            source=source.name, path=file.path, relative=file.relative, bytes=file.num_bytes, version=file.version
        )
        for source in plan.sources
        for file in source.files
    }
    schema = plan.shard_schema
    return Manifest(
        kind="documents" if tokenizer is None else CHATS if is_masked(schema) else TOKENS,
        format=plan.write.format,
        fingerprint=plan.fingerprint or "",
        environment_dependent=any(ENVIRONMENT_REASONS & set(reasons) for reasons in counts.values()),
        schema=Schema.of(schema),
        splits=splits,
        books={name: [account.copy_sorted() for account in source.books] for name, source in finished.items()},
        quarantine=Quarantine(counts={name: found for name, found in counts.items() if found}, files=quarantined),
        dropped=dropped,
        recipe=_to_json_data(_describe_recipe(plan)),
        versions=plan.versions,
        plugins=plan.plugins,
        row_length=plan.pack.row_length if plan.pack is not None else None,
        tokenizer=tokenizer,
        mixture=dict(plan.recipe.mixture) if plan.recipe.mixture else None,
        deduplicated=deduplicated,
        files=files,
    ).seal()


def _copy_tokenizer(carried: TokenizerSnapshot, root: Path, names: _ShardPlacer, run_id: str) -> TokenizerIdentity:
    """What made the ids, with a copy of its files."""
    files = {}
    for name, file in carried.files.items():
        path = f"{WORK_FOLDER}/work/{name}"
        with open_input(file.path) as stream:
            content = stream.read()
        checksum = write_file(root / path, content, run_id)
        if checksum != file.xxh3:
            raise SourceChangedError(
                f"{file.path} has changed since the run was planned",
                help="run the same command again: it plans anew, and what has not changed is kept",
            )
        files[name] = StoredFile(path=path, bytes=len(content), xxh3=checksum)
    return msgspec.structs.replace(carried.identity, files=names.place_tokenizer(files))


def _describe_recipe(plan: Plan) -> dict[str, Any]:
    """The recipe, with the formats of the sources that were recognized by their content."""
    data = {key: value for key, value in recipe_to_data(plan.recipe).items() if key not in _NOT_FINGERPRINTED}
    for source in plan.sources:
        if source.read.format is not None:
            data["sources"][source.name]["format"] = source.read.format
    return data


def _to_json_data(data: Any) -> Any:
    """Functions by their names."""
    return msgspec.json.decode(msgspec.json.encode(data, enc_hook=str))


def _count_reasons(books: Sequence[Account]) -> dict[str, int]:
    total = sum((account.quarantined for account in books), Counter[str]())
    return dict(sorted(total.items()))


def _join_quarantine(root: Path, source: SourcePlan, pieces: Sequence[StoredFile], run_id: str) -> StoredFile:
    path = f"{WORK_FOLDER}/work/quarantine-{source.name}.jsonl"
    paths = {file.id: file.relative for file in source.files}
    with PendingFile(root / path, run_id) as file:
        for piece in pieces:
            with piece.below(root).open("rb") as lines:
                for line in lines:
                    file.write(fill_in_path(line, paths))
        file.commit()
    return StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)


def _publish_dropped(
    plan: Plan, finished: Mapping[str, FinishedSource], names: _ShardPlacer, run_id: str
) -> list[StoredFile]:
    """What steps have dropped, in one file a step and reason."""
    if plan.recipe.keep_dropped is None:
        return []
    pieces = []
    for source in plan.sources:
        paths = {file.id: file.relative for file in source.files}
        pieces += [(piece, paths) for piece in finished[source.name].dropped]
    found = join_dropped(plan.output, pieces, plan.recipe.keep_dropped, run_id)
    return [names.place_lines("dropped", name, file) for name, file in sorted(found.items())]


def _write_empty_shard(plan: Plan, run_id: str) -> SplitFile:
    """A dataset without records still has a shard, so that every reader finds its columns."""
    encoder = open_encoder(plan.write.shard_format, plan.shard_schema)
    path = f"{WORK_FOLDER}/work/empty{encoder.suffix}"
    with PendingFile(plan.output / path, run_id) as file:
        write_shard(plan.write.shard_format, plan.shard_schema, [], file)
        file.commit()
    origins = None
    if not encoder.holds_origins:
        place = f"{WORK_FOLDER}/work/empty.origins.arrow"
        content = origins_header() + origins_footer()
        origins = StoredFile(path=place, bytes=len(content), xxh3=write_file(plan.output / place, content, run_id))
    data = StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)
    return SplitFile(split=TRAIN, rows=0, data=data, data_blocks=[], row_blocks=[], origins=origins)
