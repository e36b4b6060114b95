"""Publishing: finished units become a dataset.

The books are checked, files get their names (`file_placer`), the manifest says what there is, and `journal` puts all of
it in place. A run that is killed anywhere on the way leaves the old dataset or the new one, never a mixture.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.books import find_imbalances, max_quarantined_records
from gristmill.core.errors import BooksError, QuarantineError
from gristmill.core.media import SAMPLES, list_byte_columns
from gristmill.core.recipe import recipe_to_data
from gristmill.core.records import TEXT
from gristmill.core.splits import TRAIN
from gristmill.pipeline.publishing.empty_datasets import refuse_empty
from gristmill.pipeline.publishing.file_placer import FilePlacer
from gristmill.pipeline.publishing.journal import find_manifest, replace_dataset
from gristmill.pipeline.publishing.side_files import (
    publish_dropped,
    publish_quarantine,
    publish_scores,
    publish_shard_list,
    publish_tokenizer,
    write_empty_shard,
)
from gristmill.pipeline.stages.slices.quarantine import ENVIRONMENT_REASONS
from gristmill.pipeline.work_folder import work_path
from gristmill.shards.block_index import BlockIndexWriter, scan_blocks
from gristmill.shards.manifests.manifest import MIXED, Manifest
from gristmill.shards.manifests.stored_files import InputFile, Quarantine, Schema, file_key
from gristmill.shards.token_rows import CHATS, TOKENS, is_masked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from gristmill.core.books import Account
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.publishing.mixed_lane import MixedLane
    from gristmill.pipeline.stages.outputs.score_writer import StageScores
    from gristmill.pipeline.stages.outputs.split_files import SplitFile
    from gristmill.pipeline.stages.slices.slice_task import SliceResult
    from gristmill.pipeline.stages.unit_tasks import StageUnit
    from gristmill.shards.manifests.step_outcomes import Decontaminated, Deduplicated
    from gristmill.shards.manifests.stored_files import (
        LaneIndex,
        MixedShare,
        ScoreFile,
        Shard,
        StoredFile,
        TokenizerIdentity,
    )
    from gristmill.storage.leases.output_lock import HeldOutput

_NOT_FINGERPRINTED = ("slice_bytes", "max_quarantine", "work", "storage_options", "allow_empty", "report")


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


def check_quarantine(plan: Plan, source: str, books: Sequence[Account]) -> None:
    """Raise `QuarantineError` for a source of which too many records were quarantined."""
    reasons = sum((account.quarantined for account in books), Counter[str]())
    num_records = books[0].records_in if books else 0
    if reasons.total() > max_quarantined_records(num_records, plan.recipe.max_quarantine):
        reasons_text = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
        raise QuarantineError(
            f"source {source}: {reasons.total():,} of {num_records:,} records were quarantined ({reasons_text}); "
            f"at most {plan.recipe.max_quarantine:.2%} may be",
            help=f"see {plan.output / work_path('*.quarantine.jsonl')}; fix the input or the steps, or raise "
            "max_quarantine; what is done is kept",
        )


def publish(
    plan: Plan,
    finished: Mapping[str, FinishedSource],
    held: HeldOutput,
    deduplicated: Sequence[Deduplicated] = (),
    lane: MixedLane | None = None,
    decontaminated: Sequence[Decontaminated] = (),
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
        shard_list=publish_shard_list(plan.output, splits, placer),
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
    )
    # Units behind a barrier depend on all records before it, so that an update could not reuse one of them alone.
    reusable = [finished[source.name] for source in plan.sources if len(source.stages) == 1]
    receipts = placer.encode_receipts(pair for source in reusable for pair in source.unit_results())
    if plan.write.energon:
        from gristmill.pipeline.publishing.energon import write_energon_files  # noqa: PLC0415  (few datasets)

        write_energon_files(plan.output, manifest, placer.moves, run_id)
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
        blocks = file.blocks()
        if blocks is None:  # an update reuses a shard of before there was an index
            blocks = scan_blocks(file.data.below(plan.output), file.data, file.rows, plan.write.format)
        index.add(file.split, name, blocks)
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
    return Manifest(
        kind=_find_kind(schema) if tokenizer is None else CHATS if is_masked(schema) else TOKENS,
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
        mixture=dict(plan.recipe.mixture) if plan.recipe.mixture else None,
        deduplicated=deduplicated,
        decontaminated=decontaminated,
        files=files,
    ).seal()


def _find_kind(schema: pa.Schema) -> str:
    """Find the kind of a dataset without tokens: records with bytes and no text are samples."""
    return SAMPLES if TEXT not in schema.names and list_byte_columns(schema) else "documents"


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
