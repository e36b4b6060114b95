"""The scheduler at the size of a cluster, and Ray beside processes.

    python -m benchmarks.cluster simulate --workers 10000 --tasks 1000000
    python -m benchmarks.cluster memory
    python -m benchmarks.cluster ray --tokenizer FOLDER
    python -m benchmarks.cluster store --tokenizer FOLDER

`simulate` has no data and no Ray: workers are objects that answer at once, so what remains is the scheduler's own
processor time and memory. `memory` runs a stage of up to a million units with such workers. `ray` tokenizes and packs
the same texts with two workers of each kind. `store` does it from the disk to the disk, from a store on
this machine to the store, and with 50 ms more for each request, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.harness.contest import Setting
from benchmarks.inputs import corpora
from gristmill.engine.backend import Died, Ready, Results
from gristmill.engine.observing.observer import Observer
from gristmill.engine.pool.worker_pool import WorkerPool
from gristmill.engine.scheduler import Policy, Scheduler
from gristmill.engine.tasks import Task
from gristmill.engine.worker.chunk import ChunkResults
from gristmill.engine.worker.job import Job

_EVENTS_IN_A_TURN = 64


class SimulatedWorker:
    """A worker that answers at once."""

    pid = None
    node = None

    def __init__(self, number: int, events: deque, result: object) -> None:
        self.name = f"simulated {number}"
        self._events = events
        self._result = result

    def assign(self, spec) -> None:
        if spec is not None:
            self._events.append(Ready(self))

    def send(self, chunk) -> int:
        results = ChunkResults()
        results.values = [self._result] * len(chunk.items)
        self._events.append(Results(self, chunk.number, results, last=True, num_bytes=100))
        return 100

    def current(self) -> None:
        return None

    def num_bytes_received(self) -> int:
        return 0

    def stop(self) -> None:
        self._events.append(Died(self, "stopped"))

    kill = stop


class SimulatedBackend:
    """Returns a few events a turn, as a cluster does whose workers end one after another."""

    can_kill = True
    is_local = False
    max_chunks = 2

    def __init__(self, result: object = None) -> None:
        self._events: deque = deque()
        self._num_workers = 0
        self._result = result

    def find_other_node(self, node) -> None:
        return None

    def start(self, place, *, node=None) -> SimulatedWorker:
        self._num_workers += 1
        return SimulatedWorker(self._num_workers, self._events, self._result)

    def wait(self, timeout) -> list:
        return [self._events.popleft() for _ in range(min(_EVENTS_IN_A_TURN, len(self._events)))]

    def close(self, *, at_once: bool) -> None:
        self._events.clear()


def simulate(num_workers: int, num_tasks: int) -> dict[str, float]:
    """Run tasks that do nothing; return milliseconds of processor time a task, seconds to start, and memory."""
    tasks = (Task(f"unit-{number:08d}", (number, number + 1)) for number in range(num_tasks))
    scheduler = Scheduler(
        WorkerPool("simulated", SimulatedBackend),
        Job(print, takes_context=True),
        tasks,
        Policy(workers=num_workers, chunk_size=1, timeout=600.0, retries=2),
        Observer("simulation", num_tasks, None, None),
        total=num_tasks,
    )
    before = time.process_time()
    outcomes = scheduler.outcomes()
    next(outcomes)
    started = time.process_time()
    num_done = 1 + sum(1 for _ in outcomes)
    seconds = time.process_time() - before
    assert num_done == num_tasks, (num_done, num_tasks)
    return {
        "workers": num_workers,
        "tasks": num_tasks,
        "milliseconds_a_task": 1000 * seconds / num_tasks,
        "seconds_to_first_result": started - before,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def run_units(num_units: int, num_workers: int) -> float:
    """Run a stage of units with simulated workers, as a run of 64 MiB for each unit does; return the peak in MiB.

    Units, tasks, receipts on a disk and the results of the stage are real; no file is read or written.
    """
    import gristmill as gm
    from gristmill import Recipe, steps
    from gristmill.core.records import SourceFile
    from gristmill.pipeline.planning.units import UNIT_BYTES
    from gristmill.pipeline.stages.input_units import InputUnits
    from gristmill.pipeline.stages.options import RunOptions
    from gristmill.pipeline.stages.outputs.unit_output import choose_final_output
    from gristmill.pipeline.stages.receipt_log.receipts import Receipts
    from gristmill.pipeline.stages.runner import StageResults, StageRunner
    from gristmill.pipeline.stages.slices.slice_task import SliceResult
    from gristmill.pipeline.stages.stage_context import SourceStage, StageContext
    from gristmill.pipeline.stages.unit_tasks import list_units

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.jsonl").write_text('{"text": "one"}\n')
        recipe = Recipe(
            sources={"web": steps.Read(read=str(texts))},
            steps=[steps.Length(min_chars=1), steps.Write(format="jsonl")],
            output=str(folder / "out"),
        )
        plan = gm.plan(recipe)
        files = tuple(
            SourceFile(f"/{number}.jsonl", f"{number}.jsonl", min(1000, num_units - number) * UNIT_BYTES, "1", number)
            for number in range(0, num_units, 1000)
        )
        source = replace(plan.sources[0], files=files)
        plan = replace(plan, sources=(source,))
        output = choose_final_output(plan, source.output_schema)
        stage = SourceStage(source.read, source.schema, source.stages[0].steps, output, "read", None)
        context = StageContext(
            root=plan.output,
            work=plan.output,
            run_id="00000001",
            seed=0,
            max_quarantine=0.01,
            sources={"web": stage},
            keep_dropped=None,
            watch=None,
        )
        pool = WorkerPool("processes", partial(SimulatedBackend, SliceResult(split_files=[], books=[])))
        receipts, finished = Receipts(folder / "receipts.jsonl"), Receipts(folder / "finished.jsonl")
        options = RunOptions(backend="processes", workers=num_workers, progress=False)
        runner = StageRunner(plan, options, receipts, finished, plan.output, pool=pool)
        units = list_units(InputUnits(plan, runner, context, "").prepare_units(source))
        assert len(units) == num_units, (len(units), num_units)
        runner.run(context, units, "simulation")
        assert sum(1 for _ in StageResults(runner, units)) == num_units
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_memory(num_workers: int) -> dict[str, float]:
    """Return the peak memory of stages of 1,000, 100,000 and 1,000,000 units, each in a process of its own."""
    peaks = {}
    for num_units in (1000, 100_000, 1_000_000):
        words = ["units", str(num_units), str(num_workers)]
        peaks[f"peak_mib_{num_units}"] = float(_run_here(words))
    return peaks


def _run_here(words: list[str], environment: dict[str, str] | None = None) -> str:
    """Run one command of this module in a process of its own; return what it prints."""
    command = [sys.executable, "-m", "benchmarks.cluster", *words]
    variables = {**os.environ, **(environment or {})}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables).stdout


def compare_with_processes(num_megabytes: int, tokenizer: str, corpus: Path | None) -> dict[str, float]:
    """Tokenize and pack the same texts with two workers of each kind; return seconds of work after the start."""
    import gristmill as gm
    from gristmill import Recipe, steps

    seconds = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = corpora.plain(Setting(folder, corpus=corpus), num_megabytes)
        for backend in ("processes", "ray", "processes", "ray"):
            output = folder / f"{backend}-{len(seconds)}-{time.monotonic_ns()}"
            recipe = Recipe(
                sources={"web": steps.Read(read=str(texts))},
                steps=[steps.Tokenize(tokenizer=tokenizer), steps.Pack(row_length=2048)],
                output=str(output),
            )
            result = gm.run(recipe, backend=backend, workers=2, progress=False)
            _tell(f"{backend}: {result.work_seconds:.2f} s of work")
            seconds[backend] = min(result.work_seconds, seconds.get(backend, float("inf")))
    return {**seconds, "ratio": seconds["processes"] / seconds["ray"]}


def compare_with_store(num_megabytes: int, tokenizer: str, corpus: Path | None) -> dict[str, float]:
    """Tokenize and pack the same texts on the disk, on a store here, and with 50 ms more for each request.

    The least of three runs each: processor time of driver and workers, and seconds of work without the start.
    """
    from benchmarks.local_store import delay_requests, make_environment, start_store

    least: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, start_store() as port, delay_requests(port, 0.05) as slow_port:
        _tell(f"nine runs of {num_megabytes} MB; first the texts are written and uploaded")
        texts = corpora.plain(Setting(Path(name), corpus=corpus), num_megabytes).rename(f"{name}/in.jsonl")
        _run_here(["upload", str(texts), "s3://bench/in.jsonl"], make_environment(port))
        sides = {
            "local": (name, {}),
            "store": ("s3://bench", make_environment(port)),
            "slow_store": ("s3://bench", make_environment(slow_port)),
        }
        for number in range(3):
            for side, (folder, environment) in sides.items():
                words = ["pack", f"{folder}/in.jsonl", f"{folder}/{side}-{number}", tokenizer]
                used = json.loads(_run_here(words, environment))
                _tell(f"{side}, run {number + 1} of 3: {used['work']:.2f} s of work, {used['cpu']:.2f} s of CPU")
                for kind, seconds in used.items():
                    least[f"{side}_{kind}"] = min(seconds, least.get(f"{side}_{kind}", float("inf")))
        words = ["copy", "in.jsonl", str(sum(path.stat().st_size for path in Path(name, "local-0").rglob("*.arrow")))]
        bare_copy = float(_run_here(words, make_environment(port)))
        _tell(f"the store alone, the same bytes read and written: {bare_copy:.2f} s")
    return {
        **least,
        "bare_copy": bare_copy,
        "cpu_ratio": least["store_cpu"] / least["local_cpu"],
        "speed_of_store": least["local_work"] / least["store_work"],
        "speed_with_delay": least["store_work"] / least["slow_store_work"],
    }


def pack(source: str, output: str, tokenizer: str) -> dict[str, float]:
    """Tokenize and pack one file with two workers; return processor time of all, and seconds of work."""
    import gristmill as gm
    from gristmill import Recipe, steps

    recipe = Recipe(
        sources={"web": steps.Read(read=source)},
        steps=[steps.Tokenize(tokenizer=tokenizer), steps.Pack(row_length=2048)],
        output=output,
    )
    result = gm.run(recipe, workers=2, backend="processes", progress=False)
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {"cpu": sum(use.ru_utime + use.ru_stime for use in uses), "work": result.work_seconds}


def copy(name: str, num_bytes: str) -> float:
    """Download an object and upload that many bytes, in parts of 8 MiB, eight at a time; return the seconds."""
    import obstore
    from obstore.store import S3Store

    store = S3Store("bench", client_options={"allow_http": True})
    written, part, started = os.urandom(int(num_bytes)), 8 << 20, time.perf_counter()
    size = obstore.head(store, name)["size"]
    starts = list(range(0, size, part))
    obstore.get_ranges(store, name, starts=starts, ends=[min(size, start + part) for start in starts], coalesce=0)
    obstore.put(store, "copy", written, chunk_size=part, max_concurrency=8)
    return time.perf_counter() - started


def upload(source: str, url: str) -> None:
    """Write a file to a store."""
    from gristmill.storage.commit import write_file
    from gristmill.storage.locations import StorePath

    write_file(StorePath(url), Path(source).read_bytes(), "00000001")


def _tell(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    simulation = commands.add_parser("simulate")
    simulation.add_argument("--workers", type=int, default=10_000)
    simulation.add_argument("--tasks", type=int, default=1_000_000)
    comparison = commands.add_parser("ray")
    comparison.add_argument("--megabytes", type=int, default=512, help="enough that starting does not count")
    store = commands.add_parser("store")
    store.add_argument("--megabytes", type=int, default=256, help="at least two units of 64 MiB for each worker")
    for compared in (comparison, store):
        compared.add_argument("--tokenizer", required=True, help="a folder with a tokenizer.json")
        compared.add_argument("--corpus", type=Path, help="JSON lines whose sentences are used, not those of Python's docs")
    single = commands.add_parser("pack", help="one run, as `store` starts it")
    for name in ("source", "output", "tokenizer"):
        single.add_argument(name)
    sent = commands.add_parser("upload", help="one file to a store, as `store` starts it")
    sent.add_argument("source")
    sent.add_argument("url")
    copied = commands.add_parser("copy", help="an object read and as many bytes written, as `store` starts it")
    copied.add_argument("name")
    copied.add_argument("num_bytes")
    memory = commands.add_parser("memory")
    memory.add_argument("--workers", type=int, default=1000)
    stage = commands.add_parser("units", help="one stage, as `memory` starts it")
    stage.add_argument("units", type=int)
    stage.add_argument("workers", type=int)
    arguments = parser.parse_args()
    if arguments.command == "pack":
        print(json.dumps(pack(arguments.source, arguments.output, arguments.tokenizer)))
    elif arguments.command == "upload":
        upload(arguments.source, arguments.url)
    elif arguments.command == "copy":
        print(copy(arguments.name, arguments.num_bytes))
    elif arguments.command == "store":
        print(json.dumps(compare_with_store(arguments.megabytes, arguments.tokenizer, arguments.corpus), indent=2))
    elif arguments.command == "units":
        print(run_units(arguments.units, arguments.workers))
    elif arguments.command == "memory":
        print(json.dumps(measure_memory(arguments.workers), indent=2))
    elif arguments.command == "simulate":
        print(json.dumps(simulate(arguments.workers, arguments.tasks), indent=2))
    else:
        print(json.dumps(compare_with_processes(arguments.megabytes, arguments.tokenizer, arguments.corpus), indent=2))


if __name__ == "__main__":
    main()
