"""Files of a dataset besides its shards: quarantined and dropped records, scores, the tokenizer, a report.

Each is written to the work folder first, and gets its place with everything else (`file_placer`, `journal`). The index
that Megatron Energon needs of each tar (64-bit offsets of its samples, from the side file of the shard) is written
before the shards get their names, so a dataset is never without it. Only the report is written after the manifest, and
again where a run finds that it is not there.
"""

from __future__ import annotations

import io
import logging
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gristmill.core.errors import GristmillError, SourceChangedError
from gristmill.core.splits import TRAIN
from gristmill.pipeline.stages.outputs.dropped import SAMPLES, join_dropped
from gristmill.pipeline.stages.outputs.quarantine import fill_in_path
from gristmill.pipeline.stages.outputs.split_files import SplitFile
from gristmill.pipeline.work_folder import work_path
from gristmill.report.model import JobTimes, RunTimes, WorkerTimes
from gristmill.report.write import load_report, write_report
from gristmill.shards.canonical import ORIGINS_SCHEMA, SAMPLE_BYTES, origins_footer, origins_header, read_mapped_batches
from gristmill.shards.derived_files import REPORT_PAGE
from gristmill.shards.formats.base import has_sample_sizes
from gristmill.shards.formats.shard_format import open_encoder, write_shard
from gristmill.shards.manifest_file import encode_shard_list
from gristmill.shards.score_file import ScoreEncoder
from gristmill.shards.stored_files import ScoreFile, StoredFile, TokenizerIdentity
from gristmill.storage.commit import PendingFile, remove_temporaries, write_file
from gristmill.storage.files import open_input
from gristmill.storage.locations import path_below
from gristmill.storage.urls import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.core.recipe import Recipe
    from gristmill.engine.tasks import JobUse, Stopwatch
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.planning.source_plan import SourcePlan
    from gristmill.pipeline.publishing.file_placer import FilePlacer
    from gristmill.pipeline.stages.outputs.score_writer import StageScores
    from gristmill.report.thresholds import TextReader
    from gristmill.shards.manifest import Manifest
    from gristmill.shards.manifest_file import TokenizerSnapshot
    from gristmill.shards.stored_files import Shard
    from gristmill.storage.leases import HeldOutput
    from gristmill.storage.locations import Location

FOLDER = ".nv-meta"
_SPLITS = {"validation": "val"}
"""The names of splits that Energon has other names for."""
_log = logging.getLogger("gristmill")


def publish_quarantine(
    plan: Plan, task_files: Mapping[str, Sequence[StoredFile]], placer: FilePlacer, run_id: str
) -> list[StoredFile]:
    """Join the quarantine files of all tasks into one for each source that has some."""
    return [
        placer.place_lines(
            "quarantine", source.name, join_quarantine(plan.output, source, task_files[source.name], run_id)
        )
        for source in plan.sources
        if task_files[source.name]
    ]


def join_quarantine(root: Location, source: SourcePlan, task_files: Sequence[StoredFile], run_id: str) -> StoredFile:
    """Join the quarantine files of the tasks of a source into one, in the work folder."""
    path = work_path(f"quarantine-{source.name}-{run_id}.jsonl")
    input_paths = {file.id: file.relative for file in source.files}
    with PendingFile(root / path, run_id) as joined:
        for file in task_files:
            for line in io.BytesIO(file.read_intact(root)):
                joined.write(fill_in_path(line, input_paths))
        joined.commit()
    return StoredFile(path=path, bytes=joined.num_bytes, xxh3=joined.checksum)


def find_quarantined_files(root: Location, source: SourcePlan, task_files: Sequence[StoredFile]) -> list[str]:
    """Find the input files with quarantined records, those with the most first."""
    counts: Counter[str] = Counter()
    input_paths = {file.id: file.relative for file in source.files}
    for file in task_files:
        for line in io.BytesIO(file.read_intact(root)):
            entry = msgspec.json.decode(fill_in_path(line, input_paths))
            counts[entry["file"]] += entry.get("records", 1)
    return [name for name, _ in counts.most_common()]


def publish_dropped(
    plan: Plan, task_files: Mapping[str, Sequence[StoredFile]], placer: FilePlacer, run_id: str
) -> list[StoredFile]:
    """Join the dropped records of all tasks, and the evidence of barriers, into one file for each step and reason."""
    joined = join_refused(plan, task_files, run_id)
    return [placer.place_lines("dropped", name, file) for name, file in sorted(joined.items())]


def join_refused(plan: Plan, task_files: Mapping[str, Sequence[StoredFile]], run_id: str) -> dict[str, StoredFile]:
    """Join dropped records into files of the work folder, by step and reason."""
    pieces = []
    for source in plan.sources:
        input_paths = {file.id: file.relative for file in source.files}
        pieces += [(file, input_paths) for file in task_files.get(source.name, ())]
    return join_dropped(plan.output, pieces, plan.recipe.keep_dropped or SAMPLES, run_id)


def publish_scores(
    root: Location, scores: Iterable[Sequence[StageScores]], placer: FilePlacer, run_id: str
) -> list[ScoreFile]:
    """Join the scores of all tasks into one file for each source and stage that has some."""
    return [_publish_stage_scores(root, stage, placer, run_id) for stages in scores for stage in stages if stage.blocks]


def _publish_stage_scores(root: Location, scores: StageScores, placer: FilePlacer, run_id: str) -> ScoreFile:
    layout = scores.layout
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
    root: Location, splits: Mapping[str, Mapping[str, Sequence[Shard]]], placer: FilePlacer, max_shards: int
) -> StoredFile | msgspec.UnsetType:
    """Write the list of shards to a separate file, if the manifest would list more than `max_shards`."""
    if sum(len(shards) for sources in splits.values() for shards in sources.values()) <= max_shards:
        return msgspec.UNSET
    lines = [
        {"split": split, "source": source, **msgspec.to_builtins(shard)}
        for split, sources in splits.items()
        for source, shards in sources.items()
        for shard in shards
    ]
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


def write_energon_files(root: Location, manifest: Manifest, moves: Sequence[tuple[str, str]], run_id: str) -> None:
    """Write the files for all shards of a dataset whose own files are still to be moved (`moves`)."""
    places = {target: path for path, target in moves}
    counts: dict[str, int] = {}
    splits: dict[str, list[str]] = {}
    for split, _, shard in manifest.shards():
        counts[shard.path] = shard.rows
        splits.setdefault(_SPLITS.get(split, split), []).append(shard.path)
        if shard.origins is not None:
            side_file = path_below(root, places.get(shard.origins.path, shard.origins.path))
            write_file(path_below(root, f"{shard.path}.idx"), _make_index(side_file).tobytes(), run_id)
    info = {"energon_version": "7.0.0", "shard_counts": counts}
    contents = {
        ".info.json": msgspec.json.format(msgspec.json.encode(info), indent=2),
        # JSON is YAML too.
        "split.yaml": msgspec.json.encode({"split_parts": splits, "exclude": []}) + b"\n",
        "dataset.yaml": b"__module__: megatron.energon\n__class__: CrudeWebdataset\n",
    }
    for name, content in contents.items():
        write_file(root / FOLDER / name, content, run_id)


def _make_index(side_file: Location) -> NDArray[np.uint64]:
    batches = read_mapped_batches(side_file, ORIGINS_SCHEMA)
    sizes = [batch.column(SAMPLE_BYTES).to_numpy(zero_copy_only=False) for batch in batches]
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(np.concatenate([np.empty(0, np.uint64), *sizes]))]).astype(
        "<u8"
    )


def publish_report(
    folder: Location,
    manifest: Manifest,
    held: HeldOutput,
    samples: int,
    run: RunTimes | None = None,
    read_text: TextReader | None = None,
) -> None:
    """Write the report of a dataset. The dataset is complete: a report that cannot be made is only a warning."""
    held.check()
    try:
        write_report(folder, manifest, held.run_id, samples=samples, run=run, read_text=read_text)
    except (OSError, GristmillError):  # the disk is full, or a shard is damaged: the user has to know
        raise
    except Exception:
        _log.warning("the dataset is complete, but its report could not be made", exc_info=True)


def complete_report(
    plan: Plan, manifest: Manifest, held: HeldOutput, open_text_reader: Callable[[Manifest], TextReader | None]
) -> None:
    """Write the report again if a killed run has left none, or if the recipe asks for another number of samples."""
    report = load_report(plan.output)
    has_page = report is not None and report.page is not None and (plan.output / REPORT_PAGE).exists()
    if not has_page or report is None or report.samples is None or report.samples.wanted != plan.recipe.num_samples:
        remove_temporaries(plan.output, None)  # of the run that was killed
        run = report.run if report is not None else None
        publish_report(plan.output, manifest, held, plan.recipe.num_samples, run, open_text_reader(manifest))


def describe_times(stopwatch: Stopwatch, backend: str, seconds: float, recipe: Recipe) -> RunTimes:
    """Describe what the jobs of a run have used."""
    return RunTimes(
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
        backend=backend,
        jobs=[_describe_job(job) for job in stopwatch.jobs],
        recipe=redact(recipe.written or ""),
    )


def _describe_job(job: JobUse) -> JobTimes:
    return JobTimes(
        name=job.name,
        seconds=round(job.seconds, 3),
        tasks=job.tasks,
        deaths=job.deaths,
        records=job.counts.get("records", 0),
        bytes=job.counts.get("bytes", 0),
        workers=[
            WorkerTimes(
                name=worker.name,
                tasks=worker.items,
                cpu_seconds=round(worker.cpu_seconds, 2),
                peak_bytes=worker.peak_bytes,
                node=worker.node,
                host=worker.host,
            )
            for worker in job.workers
        ],
    )
