"""The scheduler with workers that answer at once: what remains is its own processor time and memory."""

from __future__ import annotations

import resource
import tempfile
import time
from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path

from gristmill.engine.backend import Died, Ready, Results
from gristmill.engine.observer import Observer
from gristmill.engine.scheduler import Policy, Scheduler
from gristmill.engine.tasks import Task
from gristmill.engine.worker.chunk import ChunkResults
from gristmill.engine.worker.job import Job
from gristmill.engine.worker_pool import WorkerPool

_EVENTS_IN_A_TURN = 64


class SimulatedWorker:
    """A worker that answers at once."""

    pid = None
    node = None
    is_placed = True

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
    from gristmill.pipeline.stages.outputs.unit_output import choose_final_output
    from gristmill.pipeline.stages.receipts import Receipts
    from gristmill.pipeline.stages.runner import StageResults, StageRunner
    from gristmill.pipeline.stages.stage_context import RunOptions, SliceResult, SourceStage, StageContext
    from gristmill.pipeline.stages.unpack import InputUnits

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.jsonl").write_text('{"text": "one"}\n')
        recipe = Recipe(
            sources={"web": steps.Read(read=str(folder / "in.jsonl"))},
            steps=[steps.Length(min_chars=1), steps.Write(format="jsonl")],
            output=str(folder / "out"),
        )
        plan = gm.plan(recipe)
        unit_bytes = plan.layout.unit_bytes
        files = tuple(
            SourceFile(f"/{number}.jsonl", f"{number}.jsonl", min(1000, num_units - number) * unit_bytes, "1", number)
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
        units = list(InputUnits(plan, runner, context, "").prepare_units(source))
        assert len(units) == num_units, (len(units), num_units)
        runner.run(context, units, "simulation")
        assert sum(1 for _ in StageResults(runner, units)) == num_units
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
