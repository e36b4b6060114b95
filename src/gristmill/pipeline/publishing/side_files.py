"""Files of a dataset besides its shards: quarantined and dropped records, scores, the tokenizer, an empty shard.

Each is written to the work folder first, and gets its place with everything else (`file_placer`, `journal`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import SourceChangedError
from gristmill.core.splits import TRAIN
from gristmill.pipeline.stages.outputs.split_files import SplitFile
from gristmill.pipeline.stages.slices.dropped import SAMPLES, join_dropped
from gristmill.pipeline.stages.slices.quarantine import fill_in_path
from gristmill.pipeline.work_folder import work_path
from gristmill.shards.arrow_stream import origins_footer, origins_header
from gristmill.shards.formats.base import has_sample_sizes
from gristmill.shards.formats.shard_format import open_encoder, write_shard
from gristmill.shards.manifests.manifest_file import MAX_LISTED_SHARDS
from gristmill.shards.manifests.stored_files import ScoreFile, StoredFile, TokenizerIdentity
from gristmill.storage.commit import PendingFile, write_file
from gristmill.storage.files import open_input

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.planning.sources.source_plan import SourcePlan
    from gristmill.pipeline.publishing.file_placer import FilePlacer
    from gristmill.pipeline.stages.outputs.score_writer import StageScores
    from gristmill.shards.manifests.stored_files import Shard
    from gristmill.shards.tokenizer_snapshot import TokenizerSnapshot
    from gristmill.storage.locations import Location


def publish_quarantine(
    plan: Plan, task_files: Mapping[str, Sequence[StoredFile]], placer: FilePlacer, run_id: str
) -> list[StoredFile]:
    """Join the quarantine files of all tasks into one for each source that has some."""
    return [
        placer.place_lines(
            "quarantine", source.name, _join_quarantine(plan.output, source, task_files[source.name], run_id)
        )
        for source in plan.sources
        if task_files[source.name]
    ]


def _join_quarantine(root: Location, source: SourcePlan, task_files: Sequence[StoredFile], run_id: str) -> StoredFile:
    path = work_path(f"quarantine-{source.name}-{run_id}.jsonl")
    input_paths = {file.id: file.relative for file in source.files}
    with PendingFile(root / path, run_id) as joined:
        for file in task_files:
            with file.below(root).open("rb") as lines:
                for line in lines:
                    joined.write(fill_in_path(line, input_paths))
        joined.commit()
    return StoredFile(path=path, bytes=joined.num_bytes, xxh3=joined.checksum)


def publish_dropped(
    plan: Plan, task_files: Mapping[str, Sequence[StoredFile]], placer: FilePlacer, run_id: str
) -> list[StoredFile]:
    """Join the dropped records of all tasks, and the evidence of barriers, into one file for each step and reason."""
    pieces = []
    for source in plan.sources:
        input_paths = {file.id: file.relative for file in source.files}
        pieces += [(file, input_paths) for file in task_files[source.name]]
    joined = join_dropped(plan.output, pieces, plan.recipe.keep_dropped or SAMPLES, run_id)
    return [placer.place_lines("dropped", name, file) for name, file in sorted(joined.items())]


def publish_scores(
    root: Location, scores: Iterable[Sequence[StageScores]], placer: FilePlacer, run_id: str
) -> list[ScoreFile]:
    """Join the scores of all tasks into one file for each source and stage that has some."""
    return [_publish_stage_scores(root, stage, placer, run_id) for stages in scores for stage in stages if stage.blocks]


def _publish_stage_scores(root: Location, scores: StageScores, placer: FilePlacer, run_id: str) -> ScoreFile:
    layout = scores.layout
    from gristmill.shards.score_file import ScoreEncoder  # noqa: PLC0415  (few recipes have filters by scores)

    encoder = ScoreEncoder(layout)
    path = work_path(f"scores-{layout.source}-{layout.stage}-{run_id}.arrow")
    starts = []
    with PendingFile(root / path, run_id) as joined:
        joined.write(encoder.header())
        for blocks in scores.blocks:
            starts.append(joined.num_bytes)
            joined.write(blocks.read(root))
        joined.write(encoder.footer())
        joined.commit()
    file = StoredFile(path=path, bytes=joined.num_bytes, xxh3=joined.checksum)
    placed = placer.place_scores(layout.source, layout.stage, file, zip(scores.blocks, starts, strict=True))
    return ScoreFile(
        path=placed.path,
        bytes=placed.bytes,
        xxh3=placed.xxh3,
        source=layout.source,
        stage=layout.stage,
        rows=sum(blocks.rows for blocks in scores.blocks),
        histograms=scores.histograms,
    )


def publish_tokenizer(
    tokenizer: TokenizerSnapshot, root: Location, placer: FilePlacer, run_id: str
) -> TokenizerIdentity:
    """Copy the files of the tokenizer that made the ids, and describe it."""
    files = {}
    for name, file in tokenizer.files.items():
        path = work_path(f"tokenizer-{run_id}/{name}")
        with open_input(file.path) as stream:
            content = stream.read()
        checksum = write_file(root / path, content, run_id)
        if checksum != file.xxh3:
            raise SourceChangedError(
                f"{file.path} has changed since the run was planned",
                help="run the same command again: it makes a new plan, and keeps what has not changed",
            )
        files[name] = StoredFile(path=path, bytes=len(content), xxh3=checksum)
    return msgspec.structs.replace(tokenizer.identity, files=placer.place_tokenizer(files))


def publish_shard_list(
    root: Location, splits: Mapping[str, Mapping[str, Sequence[Shard]]], placer: FilePlacer
) -> StoredFile | msgspec.UnsetType:
    """Write the list of shards to a file of its own, if the manifest would become too large."""
    if sum(len(shards) for sources in splits.values() for shards in sources.values()) <= MAX_LISTED_SHARDS:
        return msgspec.UNSET
    lines = [
        {"split": split, "source": source, **msgspec.to_builtins(shard)}
        for split, sources in splits.items()
        for source, shards in sources.items()
        for shard in shards
    ]
    from gristmill.shards.shard_list import encode_shard_list  # noqa: PLC0415  (only for very many shards)

    path = work_path(f"shards-{placer.run_id}.arrow")
    with PendingFile(root / path, placer.run_id) as file:
        for piece in encode_shard_list(lines):
            file.write(piece)
        file.commit()
    return placer.place_shard_list(StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum))


def write_empty_shard(plan: Plan, run_id: str) -> SplitFile:
    """Write a shard without records: a dataset always has one, so that every reader finds its columns."""
    encoder = open_encoder(plan.write.shard_format, plan.shard_schema)
    path = work_path(f"empty-{run_id}{encoder.suffix}")
    with PendingFile(plan.output / path, run_id) as file:
        write_shard(plan.write.shard_format, plan.shard_schema, [], file)
        file.commit()
    origins = None
    if not encoder.holds_origins:
        origins_path = work_path(f"empty-{run_id}.origins.arrow")
        content = origins_header(has_sizes=has_sample_sizes(encoder)) + origins_footer()
        checksum = write_file(plan.output / origins_path, content, run_id)
        origins = StoredFile(path=origins_path, bytes=len(content), xxh3=checksum)
    data = StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)
    return SplitFile(split=TRAIN, rows=0, data=data, data_blocks=[], row_blocks=[], origins=origins)
