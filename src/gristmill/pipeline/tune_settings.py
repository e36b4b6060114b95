"""Which settings suit a recipe and a machine: its first seconds, run with one setting after another.

Each setting runs the recipe itself, on its own input, into a temporary folder, and is stopped when its share of the
time is used up. What is compared is the first stage: bytes/s from its first ready worker on. Compiling, planning
and the start of workers are not counted; the first setting runs once before, so that none reads a cold disk. Barriers
are only reached if a run ends in time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Literal

import msgspec

from gristmill.core.errors import GristmillError
from gristmill.core.quantities import format_count
from gristmill.core.recipe import AUTO
from gristmill.engine.parallel_run import choose_num_workers
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gristmill.core.recipe import Recipe
    from gristmill.pipeline.monitoring.run_status import RunStatus
    from gristmill.pipeline.run import RunResult


SLICE_SIZES = (4 << 20, 16 << 20, 64 << 20)
_MOST_SPEED_UP = 1.2
"""The most that a worker adds to the speed of one. More was measured while the first one had to wait."""
_BETTER = 1.05
"""A setting is recommended if it is faster than the simpler one by this factor: less is noise."""
_MIN_SECONDS = 1.0
_WARM_UP_SHARE = 0.1
_PATIENCE = 10
"""A setting that has counted nothing gets this many times its share."""
_ROUGH_SECONDS = 0.5
_BATCH_RECORDS = 1000
_BATCH_SECONDS = 0.5
BATCH_SIZES = (8, 32, 128)


class Setting(msgspec.Struct, frozen=True):
    """The settings of one run, none of which changes its output."""

    workers: int
    backend: str = "processes"
    slice_bytes: int | Literal["auto"] = AUTO


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The speed and the memory of one setting."""

    setting: Setting
    job: str
    """The stage that was measured."""
    seconds: float
    """From its first ready worker on."""
    records: int
    bytes: int
    memory_bytes: int
    """The largest memory of its workers together."""
    cpu_share: float
    """The CPUs that each worker used, on average."""
    cause: str
    """What slowed it most of the time (`find_bottleneck`)."""
    is_whole: bool
    """Whether the whole run ended in time."""
    speed_up: float | None = None
    """Compared with one worker process that chooses its slices."""

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds else 0.0

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0


class BatchSpeed(msgspec.Struct, frozen=True):
    """The speed of training batches of one size, in one thread."""

    batch_size: int
    rows_per_second: float
    tokens_per_second: float


class Bench(msgspec.Struct, kw_only=True):
    """All that was measured, and what follows from it."""

    measurements: list[Measurement] = []
    batches: list[BatchSpeed] = []
    num_settings: int = 0
    """How many settings were to be measured."""
    left_out: list[Setting] = []
    """The settings for which there was no time, or that counted nothing in theirs."""
    lacks_batches: bool = False
    """Whether the recipe packs rows and there was no time for training batches."""
    seconds: float = 0.0
    was_interrupted: bool = False

    @property
    def best(self) -> Measurement | None:
        """The setting to recommend: the simplest one that no other beats by more than noise."""
        simple_first = sorted(self.measurements, key=_rank_simplicity)
        best = next(iter(simple_first), None)
        for other in simple_first:
            if best is not None and other.bytes_per_second > _BETTER * best.bytes_per_second:
                best = other
        return best

    @property
    def flags(self) -> list[str]:
        """The recommended setting as options of `gristmill run`."""
        if self.best is None:
            return []
        setting = self.best.setting
        backend = [] if setting.backend == "processes" else ["--backend", setting.backend]
        slices = [] if setting.slice_bytes == AUTO else ["--set", f"slice_bytes={setting.slice_bytes >> 20}MiB"]
        return ["--workers", str(setting.workers), *backend, *slices]

    @property
    def bottleneck(self) -> str:
        """What keeps the recommended setting from being faster, in a sentence."""
        best = self.best
        if best is None:
            return "nothing was measured"
        workers = format_count(best.setting.workers, "worker")
        texts = {
            "computing": f"computing: {workers} use {best.cpu_share:.0%} of a CPU each; only more cores would help",
            "memory": "memory: there is not enough for more workers; smaller models or fewer steps need less",
            "reading": "reading: workers wait for the disk or the store; more of them would wait, too",
            "starved": "starved: workers wait for tasks; smaller slices or more input files would help",
            "straggler": "straggler: workers wait for the last tasks; smaller slices would help",
            "machine": "machine: other programs use the CPUs; measure again on a quiet machine",
        }
        return texts.get(best.cause, "unknown: the sample was too short; give the command more input or --seconds")

    @property
    def is_noise(self) -> bool:
        """Whether another program has slowed some settings: workers waited for CPUs, or sped up more than they can."""
        return any(
            measurement.cause == "machine"
            or (measurement.speed_up or 0.0) > _MOST_SPEED_UP * measurement.setting.workers
            for measurement in self.measurements
        )

    @property
    def is_rough(self) -> bool:
        """Whether the input is so small that the figures say little."""
        return any(measurement.seconds < _ROUGH_SECONDS for measurement in self.measurements)


class _TimeIsUp(GristmillError):
    """Ends a run that was only to be measured."""

    is_final = True


class _Probe:
    """A view (`monitoring.views.StatusView`) that keeps the numbers of a run, and ends it when its time is up."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._has_ended = False
        self._jobs: dict[str, RunStatus] = {}
        self._causes: Counter[str] = Counter()
        self._memory: Counter[str] = Counter()
        self._cpu_shares: list[float] = []

    def show(self, status: RunStatus) -> None:
        """Keep the numbers. Raises `_TimeIsUp` when the first stage has run for long enough."""
        before = self._jobs.get(status.job)
        if self._has_ended and before is not None:  # what the job was when its time was up counts, not its end
            changes = {"cpu_seconds": status.cpu_seconds, "seconds": status.seconds}
            self._jobs[status.job] = msgspec.structs.replace(before, **changes)
        else:
            self._jobs[status.job] = status
        memory = max(sum(worker.memory_bytes for worker in status.workers), status.peak_bytes)
        self._memory[status.job] = max(self._memory[status.job], memory)
        if status.num_busy and status.bottleneck.cause not in ("starting", "unknown"):
            self._causes[status.bottleneck.cause] += 1
            self._cpu_shares.append(sum(worker.cpu_share or 0.0 for worker in status.workers))
        # Without any count there would be nothing to compare.
        seconds = self._seconds if any(status.counts.values()) else _PATIENCE * self._seconds
        if before is not None and status.work_seconds > seconds and status.workers and not self._has_ended:
            self._has_ended = True
            raise _TimeIsUp("the time of this setting is used up")

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def measure(self, setting: Setting, *, is_whole: bool) -> Measurement | None:
        """Return what was measured of the first stage, or of what came before it if nothing else did."""
        jobs = [job for job in self._jobs.values() if job.counts.get("records")] or list(self._jobs.values())
        if not jobs or not any(jobs[0].counts.values()):
            return None
        job = jobs[0]
        if self._cpu_shares:
            cpu_share = sum(self._cpu_shares) / len(self._cpu_shares) / setting.workers
        else:
            cpu_share = job.cpu_seconds / setting.workers / job.seconds if job.seconds else 0.0
        cause = self._causes.most_common(1)[0][0] if self._causes else ""
        if not cause:  # the job was too short to look at it
            cause = "computing" if cpu_share > 0.7 else "unknown"
        return Measurement(
            setting=setting,
            job=job.job,
            seconds=job.work_seconds,
            records=job.counts.get("records", 0),
            bytes=job.counts.get("bytes", 0),
            memory_bytes=self._memory[job.job],
            cpu_share=round(cpu_share, 3),
            cause=cause,
            is_whole=is_whole,
        )


def run_bench(
    recipe: Recipe,
    *,
    seconds: float = 60.0,
    workers: Sequence[int] = (),
    backends: Sequence[str] = ("processes", "threads"),
    slice_sizes: Sequence[int] = SLICE_SIZES,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    show: Callable[[Setting], object] = lambda _: None,
) -> Bench:
    """Measure a recipe with several settings, for about `seconds`. Writes nothing to its output.

    Without `workers`: 1, 2, 4, … up to what the machine allows. `show` is called before each setting. An interrupt
    ends the measuring; what was measured until then is returned.
    """
    counts = tuple(workers) or _list_worker_counts(choose_num_workers("auto", "processes"))
    backends = tuple(dict.fromkeys(backends))
    num_of_processes = len(counts) + len(slice_sizes) if "processes" in backends else 0
    bench = Bench(num_settings=num_of_processes + len(set(backends) - {"processes"}))
    started = monotonic()
    folder = Path(tempfile.mkdtemp(prefix="gristmill-bench-"))
    trial = msgspec.structs.replace(
        recipe, output=str(folder / "out"), work=None, allow_empty=True, report={"samples": 0}
    )
    settings = _list_settings(bench, counts, backends, slice_sizes)
    try:
        _measure(trial, Setting(counts[0]), seconds * _WARM_UP_SHARE)
        for number, setting in enumerate(settings):
            bench.left_out.append(setting)
            time_left = seconds - (monotonic() - started)
            if bench.measurements and time_left < _MIN_SECONDS:
                break
            show(setting)
            # A run takes some more time, to plan and to end: about as long as it works.
            share = max(_MIN_SECONDS, time_left / (bench.num_settings - number) / 2)
            measurement = _measure(trial, setting, share)
            if measurement is not None:
                bench.left_out.pop()
                bench.measurements.append(measurement)
            if len(bench.measurements) == 1 and not bench.batches:  # other settings tell less than a first batch
                bench.lacks_batches = any(step.name == "pack" for step in trial.steps)
                bench.batches = _measure_batches(trial, batch_sizes, max(_PATIENCE * _MIN_SECONDS, share))
                bench.lacks_batches = bench.lacks_batches and not bench.batches
    except KeyboardInterrupt:
        bench.was_interrupted = True
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    bench.left_out += settings
    bench.seconds = round(monotonic() - started, 1)
    bench.measurements = _add_speed_ups(bench.measurements)
    return bench


def _list_worker_counts(largest: int) -> tuple[int, ...]:
    """List 1, 2, 4, … and the largest.

    >>> _list_worker_counts(6)
    (1, 2, 4, 6)
    """
    powers = [1 << power for power in range(largest.bit_length()) if 1 << power < largest]
    return (*powers, largest)


def _list_settings(
    bench: Bench, counts: Sequence[int], backends: Sequence[str], slice_sizes: Sequence[int]
) -> Iterator[Setting]:
    """List settings: the numbers of workers first, then the other choices with the best of them."""
    if "processes" in backends:
        yield from map(Setting, counts)
    best = bench.best.setting.workers if bench.best is not None else counts[-1]
    for backend in backends:
        if backend != "processes":
            yield Setting(1 if backend == "serial" else best, backend)
    if "processes" in backends:
        for size in slice_sizes:
            yield Setting(best, slice_bytes=size)


def _measure(recipe: Recipe, setting: Setting, seconds: float) -> Measurement | None:
    """Run a recipe with one setting, up to the end of its time."""
    probe = _Probe(seconds)
    try:
        _run(recipe, setting, probe)
    except _TimeIsUp:
        return probe.measure(setting, is_whole=False)
    return probe.measure(setting, is_whole=True)


def _run(recipe: Recipe, setting: Setting, view: _Probe, limit: int | None = None) -> RunResult:
    options = RunOptions(
        workers="auto" if setting.backend == "serial" else setting.workers,
        backend=setting.backend,
        overwrite=True,
        progress=False,
        view=view,
    )
    return run_recipe(msgspec.structs.replace(recipe, slice_bytes=setting.slice_bytes), options, limit=limit)


def _measure_batches(recipe: Recipe, batch_sizes: Sequence[int], seconds: float) -> list[BatchSpeed]:
    """Measure how fast training batches are made of a small dataset of the recipe, if it makes rows in time."""
    try:
        result = _run(recipe, Setting(1), _Probe(seconds), limit=_BATCH_RECORDS)
    except _TimeIsUp:
        return []
    if not result.manifest.holds_rows or not any(shard.rows for _, _, shard in result.manifest.shards()):
        return []
    from gristmill.stream import Stream  # noqa: PLC0415  (few recipes make rows)

    speeds = []
    for batch_size in batch_sizes:
        stream = Stream(result.output)
        batches = stream.batches(batch_size)
        next(batches)  # compiles
        stream.accounting.restart(0)
        end = monotonic() + _BATCH_SECONDS
        while monotonic() < end:
            next(batches)
        report = stream.accounting.report()
        speeds.append(BatchSpeed(batch_size, round(report.rows_per_second), round(report.tokens_per_second)))
    return speeds


def _add_speed_ups(measurements: Sequence[Measurement]) -> list[Measurement]:
    single = next((other for other in measurements if other.setting == Setting(1)), None)
    if single is None or not single.bytes_per_second:
        return list(measurements)
    return [
        msgspec.structs.replace(other, speed_up=round(other.bytes_per_second / single.bytes_per_second, 3))
        for other in measurements
    ]


def _rank_simplicity(measurement: Measurement) -> tuple[bool, bool, int]:
    setting = measurement.setting
    return setting.backend != "processes", setting.slice_bytes != AUTO, setting.workers
