"""Publishing: finished units become a dataset.

The books are checked, files get their names (`file_placer`), the manifest says what there is, and `journal` puts all of
it in place. A run that is killed anywhere on the way leaves the old dataset or the new one, never a mixture. An empty
dataset is never made by accident: `allow_empty: true` in the recipe, or a `--limit`, allows it. Neither is part of any
fingerprint, so a run that was refused is published by the next one from its receipts.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec

from gristmill.core.books import UNKNOWN, estimate_unread_records, find_imbalances, max_quarantined_records
from gristmill.core.errors import BooksError, EmptyDatasetError, QuarantineError
from gristmill.core.media import SAMPLES, list_byte_columns
from gristmill.core.recipe import find_mixture_epochs, recipe_to_data
from gristmill.core.records import TEXT
from gristmill.core.splits import TRAIN
from gristmill.pipeline.publishing.file_placer import FilePlacer
from gristmill.pipeline.publishing.journal import check_shards, find_manifest, replace_dataset
from gristmill.pipeline.publishing.side_files import (
    find_quarantined_files,
    publish_dropped,
    publish_quarantine,
    publish_scores,
    publish_shard_list,
    publish_tokenizer,
    write_empty_shard,
    write_energon_files,
)
from gristmill.pipeline.stages.outputs.quarantine import ENVIRONMENT_REASONS
from gristmill.pipeline.work_folder import work_path
from gristmill.shards.block_index import BlockIndexWriter
from gristmill.shards.manifest import MIXED, Manifest
from gristmill.shards.stored_files import InputFile, Quarantine, Schema, file_key
from gristmill.shards.token_rows import find_kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gristmill.core.books import Account
    from gristmill.core.recipe import Recipe
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.planning.source_plan import SourcePlan
    from gristmill.pipeline.publishing.final_shards import MixedLane
    from gristmill.pipeline.stages.outputs.score_writer import StageScores
    from gristmill.pipeline.stages.outputs.split_files import SplitFile
    from gristmill.pipeline.stages.stage_context import SliceResult
    from gristmill.pipeline.stages.unit_tasks import StageUnit
    from gristmill.shards.manifest import Decontaminated, Deduplicated, KeptBest
    from gristmill.shards.stored_files import LaneIndex, MixedShare, ScoreFile, Shard, StoredFile, TokenizerIdentity
    from gristmill.storage.leases import HeldOutput


_NOT_FINGERPRINTED = ("slice_bytes", "max_quarantine", "work", "storage_options", "allow_empty", "run", "report")


@dataclass(frozen=True, slots=True)
class FinishedSource:
    """A source after its last stage: the books of all stages, and the units of the last one in order."""

    books: list[Account]
    units: Collection[StageUnit]
    results: Iterable[SliceResult]
    """One result for each unit. Every iteration reads them from their receipts again."""
    quarantine: list[StoredFile]
    """The quarantine files of all tasks."""
    dropped: list[StoredFile]
    """The files of dropped records of all tasks."""
    scores: list[StageScores]
    """What its filters have measured, stage by stage."""

    def unit_results(self) -> Iterator[tuple[StageUnit, SliceResult]]:
        """Iterate over the units with their results."""
        return zip(self.units, self.results, strict=True)


def check_quarantine(
    plan: Plan, source: SourcePlan, books: Sequence[Account], quarantine: Sequence[StoredFile]
) -> None:
    """Raise `QuarantineError` for a source of which too many records were quarantined, or too much was not read."""
    reasons = sum((account.quarantined for account in books), Counter[str]())
    num_records = books[0].records_in if books else 0
    num_unread = sum(account.counters["unread_bytes"] for account in books)
    num_lost = estimate_unread_records(num_records, source.num_bytes, num_unread)
    # Malformed bytes are unpacked ones, a source is measured as it is stored: the texts say how much it held at least.
    num_malformed = sum(account.counters["malformed_bytes"] for account in books)
    num_held = max(source.num_bytes, num_malformed + (books[0].text_bytes if books else 0))
    num_joined = estimate_unread_records(num_records, num_held, num_malformed)
    num_bad = max(reasons.total(), num_joined) + num_lost
    if num_bad > max_quarantined_records(num_records + num_lost + num_joined, plan.recipe.max_quarantine):
        reasons_text = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
        unread_text = f" and {num_unread:,} of {source.num_bytes:,} bytes could not be read" if num_unread else ""
        if num_joined > reasons.total():
            unread_text += f" and {num_malformed:,} of {num_held:,} bytes are malformed"
        raise QuarantineError(
            f"source {source.name}: {reasons.total():,} of {num_records:,} records were quarantined ({reasons_text})"
            f"{unread_text}; at most {plan.recipe.max_quarantine:.2%} may be",
            help=f"to see them: gristmill view {shlex.quote(str(plan.output))}. Then fix the input or the steps, or "
            "raise max_quarantine; what is done is kept",
            source=source.name,
            files=find_quarantined_files(plan.output, source, quarantine),
        )


def publish(
    plan: Plan,
    finished: Mapping[str, FinishedSource],
    held: HeldOutput,
    deduplicated: Sequence[Deduplicated] = (),
    lane: MixedLane | None = None,
    decontaminated: Sequence[Decontaminated] = (),
    best: Sequence[KeptBest] = (),
) -> Manifest:
    """Make the dataset, and put it in the place of the one that may be there."""
    for name, source in finished.items():
        problems = find_imbalances(source.books)
        if problems:
            raise BooksError(f"source {name}: the books do not balance: {'; '.join(problems)}", help="report this bug")
    run_id = held.run_id
    placer = FilePlacer(plan, find_manifest(plan.output), run_id)
    with BlockIndexWriter(plan.output, work_path(f"index-{run_id}"), run_id) as index:
        splits = _place_shards(plan, finished, lane, placer, index)
        lanes = index.commit()
    quarantine = {name: source.quarantine for name, source in finished.items()}
    dropped = {name: source.dropped for name, source in finished.items()}
    manifest = _make_manifest(
        plan,
        {name: source.books for name, source in finished.items()},
        splits=splits,
        shard_list=publish_shard_list(plan.output, splits, placer, plan.layout.max_listed_shards),
        index={
            split: {name: placer.place_index(split, name, lane) for name, lane in lanes[split].items()}
            for split in splits
        },
        mixed={TRAIN: lane.shares} if lane is not None and lane.shares else {},
        quarantine_files=publish_quarantine(plan, quarantine, placer, run_id),
        dropped=publish_dropped(plan, dropped, placer, run_id),
        scores=publish_scores(plan.output, [source.scores for source in finished.values()], placer, run_id),
        tokenizer=None if plan.tokenizer is None else publish_tokenizer(plan.tokenizer, plan.output, placer, run_id),
        deduplicated=[msgspec.structs.replace(step, file=placer.place_duplicates(step.file)) for step in deduplicated],
        decontaminated=list(decontaminated),
        best=list(best) or msgspec.UNSET,
    )
    # Units after a barrier depend on all records before it, so that an update could not reuse one of them alone.
    reusable = [finished[source.name] for source in plan.sources if len(source.stages) == 1]
    receipts = placer.encode_receipts(pair for source in reusable for pair in source.unit_results())
    if plan.write.energon:
        write_energon_files(plan.output, manifest, placer.moves, run_id)
    written: list[FinishedSource | MixedLane] = [*finished.values(), *([lane] if lane is not None else [])]
    check_shards(plan.output, (file for each in written for result in each.results for file in result.split_files))
    replace_dataset(plan.output, manifest, placer.moves, receipts, held)
    return manifest


def _place_shards(
    plan: Plan,
    finished: Mapping[str, FinishedSource],
    lane: MixedLane | None,
    placer: FilePlacer,
    index: BlockIndexWriter,
) -> dict[str, dict[str, list[Shard]]]:
    """Place and index the shards of all sources and of the mixed lane: split -> source -> shards, training first."""
    splits: dict[str, dict[str, list[Shard]]] = {}

    def place(file: SplitFile, name: str, fingerprint: str | None) -> None:
        index.add(file.split, name, file.blocks())
        splits.setdefault(file.split, {}).setdefault(name, []).append(placer.place_shard(file, name, fingerprint))

    lanes: dict[str, FinishedSource | MixedLane] = {**finished} if lane is None else {**finished, MIXED: lane}
    for name, written in lanes.items():
        for unit, result in zip(written.units, written.results, strict=True):
            for file in result.split_files:
                place(file, name, unit.fingerprint)
    if not any(splits.values()):
        refuse_empty(plan, {name: source.books for name, source in finished.items()})
        place(write_empty_shard(plan, placer.run_id), plan.sources[0].name, None)
    return {split: splits[split] for split in sorted(splits, key=lambda split: (split != TRAIN, split))}


def _make_manifest(
    plan: Plan,
    books: Mapping[str, Sequence[Account]],
    *,
    splits: dict[str, dict[str, list[Shard]]],
    shard_list: StoredFile | msgspec.UnsetType,
    index: dict[str, dict[str, LaneIndex]],
    mixed: dict[str, dict[str, MixedShare]],
    quarantine_files: list[StoredFile],
    dropped: list[StoredFile],
    scores: list[ScoreFile],
    tokenizer: TokenizerIdentity | None,
    deduplicated: list[Deduplicated],
    decontaminated: list[Decontaminated],
    best: list[KeptBest] | msgspec.UnsetType,
) -> Manifest:
    reasons = {name: _count_quarantined(accounts) for name, accounts in books.items()}
    files = {
        file_key(file.id): InputFile(
            source=source.name, path=file.path, relative=file.relative, bytes=file.num_bytes, version=file.version
        )
        for source in plan.sources
        for file in source.files
    }
    schema = plan.shard_schema
    if tokenizer is not None:
        kind = find_kind(schema)
    else:
        kind = SAMPLES if TEXT not in schema.names and list_byte_columns(schema) else "documents"
    return Manifest(
        kind=kind,
        format=plan.write.format,
        fingerprint=plan.fingerprint or "",
        environment_dependent=any(ENVIRONMENT_REASONS & set(counts) for counts in reasons.values()),
        schema=Schema.of(schema),
        splits=splits,
        shard_list=shard_list,
        index=index,
        mixed=mixed,
        books={name: [account.copy_sorted() for account in accounts] for name, accounts in books.items()},
        quarantine=Quarantine(
            counts={name: counts for name, counts in reasons.items() if counts}, files=quarantine_files
        ),
        dropped=dropped,
        scores=scores,
        recipe=describe_recipe(plan),
        versions=plan.versions,
        plugins=plan.plugins,
        row_length=plan.pack.row_length if plan.pack is not None else None,
        tokenizer=tokenizer,
        mixture=_find_mixture(plan.recipe, splits.get(TRAIN, {})),
        deduplicated=deduplicated,
        decontaminated=decontaminated,
        best=best,
        files=files,
    ).seal()


def describe_failed_dataset(
    plan: Plan, books: Mapping[str, Sequence[Account]], quarantine: list[StoredFile], dropped: list[StoredFile]
) -> Manifest:
    """Describe what a failed run has left as a dataset without shards."""
    return _make_manifest(
        plan,
        books,
        splits={},
        shard_list=msgspec.UNSET,
        index={},
        mixed={},
        quarantine_files=quarantine,
        dropped=dropped,
        scores=[],
        tokenizer=None,
        deduplicated=[],
        decontaminated=[],
        best=msgspec.UNSET,
    )


def _find_mixture(recipe: Recipe, shards: Mapping[str, list[Shard]]) -> dict[str, float] | None:
    """Find the weights for training; those of epochs follow from the numbers of rows."""
    epochs = find_mixture_epochs(recipe.mixture)
    if epochs is None:
        return cast("dict[str, float]", dict(recipe.mixture)) if recipe.mixture else None
    rows = {source: sum(shard.rows for shard in lane) for source, lane in shards.items()}
    return {source: count * rows[source] for source, count in epochs.items() if rows.get(source)}


def describe_recipe(plan: Plan) -> dict[str, Any]:
    """Describe the recipe as JSON data: functions by their names, formats as they were detected."""
    data = {key: value for key, value in recipe_to_data(plan.recipe).items() if key not in _NOT_FINGERPRINTED}
    for source in plan.sources:
        if source.read.format is not None:
            data["sources"][source.name]["format"] = source.read.format
    described: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(data, enc_hook=str))
    return described


def _count_quarantined(books: Sequence[Account]) -> dict[str, int]:
    """Count the quarantined records of a source by reason."""
    total = sum((account.quarantined for account in books), Counter[str]())
    return dict(sorted(total.items()))


def refuse_empty(plan: Plan, books: Mapping[str, Sequence[Account]]) -> None:
    """Raise `EmptyDatasetError` for a run that leaves nothing, unless that was allowed."""
    if plan.recipe.allow_empty or plan.is_limited:
        return
    losses = "; ".join(f"{_describe_last_loss(accounts)} (source {name})" for name, accounts in books.items())
    raise EmptyDatasetError(
        f"no record is left: {losses}",
        help="check that step or the files, or write allow_empty: true to make an empty dataset; what is done is kept",
    )


def list_warnings(plan: Plan, manifest: Manifest) -> tuple[str, ...]:
    """List what a user should know of a finished run: what is empty, and the counters that steps warn of."""
    counted = []
    for source in plan.sources:
        sentences: dict[str, str] = {}
        for stage in source.stages:
            for step in stage.all_steps:
                sentences |= step.traits.warnings_by_counter
        counters = sum((account.counters for account in manifest.books.get(source.name, ())), Counter[str]())
        counted += [
            f"source {source.name}: {counters[name]:,} {sentences[name]}" for name in sentences if counters[name]
        ]
        unknown = {name: count for name, count in sorted(counters.items()) if name.startswith(UNKNOWN)}
        if unknown:
            names = ", ".join(f"{name.removeprefix(UNKNOWN)} {count:,}" for name, count in unknown.items())
            counted.append(
                f"source {source.name}: {sum(unknown.values()):,} parts of sessions are of unknown types and left out: "
                f"{names:.300}"
            )
    return (*list_empty_warnings(plan, manifest), *counted)


def list_empty_warnings(plan: Plan, manifest: Manifest) -> tuple[str, ...]:
    """List a warning for each source and split without a record, in a dataset that has some."""
    rows: dict[str, int] = {}
    for split, _, shard in manifest.shards():
        rows[split] = rows.get(split, 0) + shard.rows
    if not any(rows.values()):
        return ()
    sources = [
        f"source {name} is empty: {_describe_last_loss(accounts)}"
        for name, accounts in manifest.books.items()
        if not accounts or accounts[-1].records_out == 0
    ]
    expected = {TRAIN: None, **{split: None for source in plan.sources for split in _list_expected_splits(source)}}
    return (*sources, *(f"split {split} is empty" for split in expected if not rows.get(split)))


def _list_expected_splits(source: SourcePlan) -> list[str]:
    """List the splits that records of a source should be in."""
    splits = [*(file.split for file in source.files if file.split), *source.empty_splits]
    splits += [split for stage in source.stages for step in stage.all_steps for split in step.splits_added()]
    return splits


def _describe_last_loss(accounts: Sequence[Account]) -> str:
    """Describe which step removed the last records, and by which rules."""
    last = next((account for account in reversed(accounts) if account.records_in and not account.records_out), None)
    if last is None:
        return "there was none to read" if not any(account.records_in for account in accounts) else "none became a row"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in (last.dropped + last.quarantined).most_common(5))
    verb = "dropped" if last.dropped else "quarantined"
    return f"step {last.step} {verb} the last {last.records_in:,} ({reasons})"
