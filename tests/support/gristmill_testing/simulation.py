"""A backend that exists only in memory, with a clock of its own: the scheduler's world under the control of a test.

Each item has a plan: what happens each time it is run (the last entry for ever). Everything else, such as who is
served next, how results are grouped, or when somebody kills a worker from outside, comes from a seeded generator.
"""

import contextlib
from collections import Counter, deque
from unittest import mock

from gristmill.engine.backend import Died, Ready, Results, SetupFailed, Undecodable
from gristmill.engine.observer import Observer
from gristmill.engine.scheduler import Scheduler
from gristmill.engine.worker.chunk import ChunkResults
from gristmill.engine.worker.pickling import CapturedError
from gristmill.engine.worker_pool import WorkerPool

MAX_WAITS = 20_000
"""A job of a few dozen items that waits more often than this does not end."""


class Hang(AssertionError):
    """The scheduler waits without end, or starts workers without end."""


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    @contextlib.contextmanager
    def installed(self):
        with contextlib.ExitStack() as stack:
            for module in ("failures", "job_workers", "worker_pool", "item_queue", "observer"):
                stack.enter_context(mock.patch(f"gristmill.engine.{module}.monotonic", self))
            yield self


class SimulatedWorker:
    def __init__(self, backend, number, node=None):
        self._backend = backend
        self.name = f"simulated {number}"
        self.pid = number
        self.wanted_node = node
        self.node = None
        self.is_placed = backend.slots is None
        if self.is_placed:
            self.node = node if node is not None or not backend.nodes else backend.nodes[number % len(backend.nodes)]
        self.host, self.remote_use = self.node or "", None
        self.chunks = deque()
        self.position = 0
        self.note = None
        self.is_ready = False
        self.spec = None
        self.is_told_to_stop = False
        self.killed_by = None

    def __repr__(self):
        return self.name

    def assign(self, spec):
        self.spec = spec
        self.is_ready = False

    def send(self, chunk):
        for index in chunk.indexes:
            if self._backend.plan(index) == "unsendable":
                raise TypeError(f"cannot pickle item {index}")
        if self.chunks:
            self._backend.check_chunk_ahead(self, chunk)
        self.chunks.append(chunk)
        return 100 * len(chunk.items)

    def current(self):
        return self.note

    def num_bytes_received(self):
        return 0

    def stop(self):
        self.is_told_to_stop = True
        if not self.is_placed:
            self.kill()

    def kill(self):
        self.killed_by = "SIGKILL"


class SimulatedBackend:
    can_kill = True
    is_local = True

    def __init__(
        self,
        rng,
        clock,
        plans,
        *,
        outside_kills=0,
        setup_plans=(),
        returns_unstarted=True,
        nodes=(),
        max_chunks=1,
        slots=None,
        node_changes=(),
    ):
        self._rng = rng
        self._clock = clock
        self._plans = plans
        self._outside_kills = outside_kills
        self._setup_plans = list(setup_plans)
        self._returns_unstarted = returns_unstarted
        self.nodes = nodes
        self.slots = slots
        """How many workers each node has room for; None: all are placed at once. Workers that wait are placed in any
        order, on the node that they were started for as long as it is there."""
        self._node_changes = list(node_changes)
        """At some moments, the slots of nodes that join, or of none: then one is lost, but never the last."""
        self.max_chunks = max_chunks
        self.num_ahead = 0
        self.workers = []
        self.runs = {}
        self.num_starts = 0
        self.num_waits = 0
        self._num_setup_kills = 0
        self.num_waits_for_nothing = 0
        self.most_workers = 0
        self.concurrency = {}
        self.users = set()
        """The workers that have run an item."""
        self.closed = None

    def plan(self, index):
        entries = self._plans.get(index, ["ok"])
        return entries[min(self.runs.get(index, 0), len(entries) - 1)]

    def check_chunk_ahead(self, worker, chunk):
        self.num_ahead += 1
        assert len(worker.chunks) < self.max_chunks
        assert not any(index in self.runs for index in chunk.indexes), "an item that was run before is sent ahead"

    def find_other_node(self, node):
        return next((other for other in self.nodes if other != node), None)

    def start(self, place, *, node=None):
        self.num_starts += 1
        if self.num_starts > 2000:
            raise Hang("workers are started without end")
        worker = SimulatedWorker(self, self.num_starts, node)
        self.workers.append(worker)
        staying = [worker for worker in self.workers if not (worker.is_told_to_stop or worker.killed_by)]
        self.most_workers = max(self.most_workers, len(staying))
        return worker

    def wait(self, timeout):
        self.num_waits += 1
        if self.num_waits > MAX_WAITS:
            raise Hang("the scheduler waits without end")
        if self._outside_kills and self.workers and self._rng.random() < 0.1:
            worker = self._rng.choice(self.workers)
            # Three deaths in set-up in a row end a job, and rightly so: kill at most two workers there.
            if worker.is_ready or self._num_setup_kills < 2:
                self._num_setup_kills += not worker.is_ready
                self._outside_kills -= 1
                worker.killed_by = self._rng.choice(["SIGKILL", "lost"])  # by somebody, or with its node
        if self.slots is not None:
            self._change_nodes()
            self._place_workers()
        able = [worker for worker in self.workers if self._has_something_to_do(worker)]
        if not able:
            if timeout <= 0:
                self.num_waits_for_nothing += 1
            self._clock.now += timeout + 1e-6
            return []
        events = []
        for worker in self._rng.sample(able, self._rng.randint(1, len(able))):
            events += self._step(worker)
        self._clock.now += 0.001
        return events

    def close(self, *, at_once):
        self.closed = "at once" if at_once else "in peace"
        self.workers.clear()

    def _change_nodes(self):
        if not self._node_changes or self._rng.random() > 0.1:
            return
        num_slots = self._node_changes.pop()
        if num_slots:
            self.slots[f"node that joined {len(self._node_changes)}"] = num_slots
        elif len(self.slots) > 1:
            lost = self._rng.choice(list(self.slots))
            del self.slots[lost]
            for worker in self.workers:
                if worker.node == lost:
                    worker.killed_by = "lost"
        self.nodes = list(self.slots)

    def _place_workers(self):
        waiting = [worker for worker in self.workers if not (worker.is_placed or worker.killed_by)]
        for worker in self._rng.sample(waiting, len(waiting)):
            allowed = [worker.wanted_node] if worker.wanted_node in self.slots else list(self.slots)
            num_used = Counter(other.node for other in self.workers)
            free = [node for node in allowed if num_used[node] < self.slots[node]]
            if free:
                worker.node = worker.host = self._rng.choice(free)
                worker.is_placed = True

    def _has_something_to_do(self, worker):
        if worker.killed_by:
            return True
        if not worker.is_placed:
            return False
        if worker.spec is None:
            return worker.is_told_to_stop
        if not worker.is_ready:
            return True
        if worker.chunks:
            return worker.note is None or self.plan(worker.note[1]) != "hang"
        return worker.is_told_to_stop

    def _step(self, worker):
        if worker.killed_by:
            running = -1
            if worker.note or (worker.chunks and self._rng.random() < 0.7):
                running = worker.chunks[0].indexes[worker.position]
                self._count_run(running)
            return [self._death(worker, f"was killed by {worker.killed_by}", worker.killed_by, running)]
        if not worker.is_ready and worker.spec is not None:
            return self._set_up(worker)
        if worker.chunks:
            return self._work(worker)
        return [self._death(worker, "exited with code 0", None, -1)]

    def _set_up(self, worker):
        plan = self._setup_plans.pop(0) if len(self._setup_plans) > 1 else (self._setup_plans or ["ok"])[0]
        if plan == "raise":
            failed = SetupFailed(worker, CapturedError(ValueError("no set-up")))
            return [failed, self._death(worker, "exited with code 0", None, -1)]
        if plan == "die":
            return [self._death(worker, "exited with code 3", None, -1)]
        worker.is_ready = True
        return [Ready(worker)]

    def _death(self, worker, cause, signal, item):
        self.workers.remove(worker)
        is_lost = signal == "lost"
        return Died(worker, cause, None if is_lost else signal, item, position=-1, is_blameless=is_lost)

    def _work(self, worker):
        self.users.add(worker)
        chunk = worker.chunks[0]
        deadly = [index for index in chunk.indexes if self.plan(index) == "die on arrival"]
        if deadly and worker.position == 0:
            self._count_run(deadly[0])
            return [self._death(worker, "exited with code 1", None, -1)]
        events, results = [], ChunkResults()
        for _ in range(self._rng.randint(1, len(chunk.indexes) - worker.position)):
            index, item = chunk.indexes[worker.position], chunk.items[worker.position]
            plan = self.plan(index)
            if plan == "hang":
                if results.values:
                    events.append(self._results(worker, chunk, results, last=False))
                worker.note = (self._clock.now, index, -1)
                return events
            self._count_run(index)
            if plan == "die":
                if results.values and self._rng.random() < 0.5:  # else what was done is lost with the worker
                    events.append(self._results(worker, chunk, results, last=False))
                return [*events, self._death(worker, "exited with code 3", None, index)]
            if plan == "unreturnable":
                last = worker.position + 1 == len(chunk.indexes)
                if results.values:
                    events.append(self._results(worker, chunk, results, last=False))
                events.append(Undecodable(worker, chunk.number, CapturedError(ValueError("odd"), "unpicklable"), last))
                worker.position += 1
                if last:
                    self._next_chunk(worker)
                return events
            if plan == "raise":
                results.errors[len(results.values)] = CapturedError(ValueError(f"item {index}"))
                results.values.append(None)
            else:
                results.values.append(("result", item))
            worker.position += 1
        returns_unstarted = worker.spec.returns_unstarted and self._returns_unstarted and self._rng.random() < 0.2
        last = worker.position == len(chunk.indexes) or returns_unstarted
        events.append(self._results(worker, chunk, results, last=last))
        if last:
            self._next_chunk(worker)
        return events

    def _next_chunk(self, worker):
        worker.chunks.popleft()
        worker.position = 0

    def _results(self, worker, chunk, results, *, last):
        results.seconds = 0.001 * len(results.values)
        return Results(worker, chunk.number, results, last, num_bytes=50 * len(results.values))

    def _count_run(self, index):
        self.runs[index] = self.runs.get(index, 0) + 1
        node = next(worker.node for worker in self.workers if worker.chunks and index in worker.chunks[0].indexes)
        self.concurrency.setdefault(index, []).append(sum(worker.node == node for worker in self.workers))


class SimulatedMemory:
    """What the scheduler asks of `MemoryWatch`, answered by a test."""

    def __init__(self, *, sizes=None, too_large=lambda pid: False, short=lambda: False, oom=lambda: False, room=None):
        self._sizes = sizes or {}
        self._too_large = too_large
        self._short = short
        self._oom = oom
        self._room = room

    def is_due(self):
        return True

    def size_of(self, pid):
        return self._sizes.get(pid, pid)

    def count_fitting_workers(self, worker_bytes, max_workers):
        return max_workers if self._room is None else min(max_workers, self._room)

    def is_too_large(self, size, size_after_setup, num_workers):
        return self._too_large(size)

    def is_short(self):
        return self._short()

    def has_oom_killer_fired(self):
        return self._oom()


class Events:
    """Stands for an `EventLog`."""

    def __init__(self):
        self.written = []

    def write(self, event, **fields):
        self.written.append({"event": event, **fields})

    def close(self):
        pass

    def named(self, name):
        return [event for event in self.written if event["event"] == name]


def make_pool(backend, **options):
    return WorkerPool("simulated", lambda: backend, **options)


def simulate(rng, plans, job, policy, *, items=None, memory=None, on_poison=None, **backend_options):
    """Run a whole job. Gives the outcomes as a list of `(index, value)`, the backend and the events."""
    clock, events = Clock(), Events()
    items = range(len(plans)) if items is None else items
    with clock.installed():
        backend = SimulatedBackend(rng, clock, plans, **backend_options)
        observer = Observer("simulated", len(plans), None, events)
        scheduler = Scheduler(
            make_pool(backend), job, items, policy, observer, memory=memory, total=len(plans), on_poison=on_poison
        )
        outcomes = list(scheduler.outcomes())
    return outcomes, backend, events
