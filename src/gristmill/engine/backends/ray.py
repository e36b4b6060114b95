"""Workers on a Ray cluster: long-lived actors, one for each slot. Ray places them and carries bytes, no more.

Answers arrive in a thread of Ray's and are put into one queue, from which `wait` takes them: a turn costs the same for
any number of workers. One agent on each node tells what its workers do and how they died (`NodeAgent`).
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import logging
import queue
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from gristmill.engine.backend import Died, RemoteUse
from gristmill.engine.ray_workers import cluster
from gristmill.engine.ray_workers.actor_worker import JobFile
from gristmill.engine.ray_workers.ray_worker import Actor, RayWorker
from gristmill.engine.worker_process import LEAVE_SECONDS, ONE_THREAD, STEADY_HEAP
from gristmill.storage.commit import PendingFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from gristmill.engine.backend import Event, WorkerSpec
    from gristmill.storage.locations import Location

_log = logging.getLogger("gristmill")

_MAX_POLLS_PER_SECOND = 200
_POLL_SECONDS = 0.5
_MAX_MESSAGE_BYTES = 64 * 1024
"""Jobs above this go through the work folder: Ray would put them into its object store."""
_MORE_MEMORY = 1.5
_HEAD_SECONDS = 5.0
"""How often it is checked whether the head of the cluster is there."""


@dataclass(slots=True, kw_only=True)
class RaySettings:
    """The settings of a run on a cluster. New workers are started with what holds then."""

    address: str | None = None
    wait_seconds: float = cluster.PLACE_SECONDS
    """How long a job without any worker waits for the first one to be placed."""
    worker_bytes: int = 0
    """The memory that Ray reserves for each worker; 0: none. It grows when memory runs out, also for later jobs."""
    job_stem: Location | None = None
    """The beginning of paths that all nodes reach, for jobs that are too large for messages."""

    def store_jobs_at(self, stem: Location) -> None:
        """Set `job_stem`, which is next to the output. Refuses a folder that Ray removes after the driver's end."""
        cluster.check_output(stem)
        self.job_stem = stem


def connect_to_cluster(address: str | None, wait_seconds: float | None = None, num_workers: int = 1) -> RaySettings:
    """Connect before any work: what is wrong with the cluster should be known at once. Waits for its first node."""
    cluster.connect(address)
    wait_seconds = cluster.wait_for_first_node(wait_seconds, num_workers)
    return RaySettings(address=address, wait_seconds=wait_seconds)


class RayBackend:
    """Runs chunks in actors of a Ray cluster."""

    can_kill = True
    is_local = False
    max_chunks = 2

    def __init__(self, settings: RaySettings | None = None) -> None:
        self._settings = settings or connect_to_cluster(None)
        cluster.connect(self._settings.address)
        self._numbers = itertools.count(1)
        self._workers: dict[RayWorker, None] = {}
        self._agents: dict[str, Actor] = {}
        self._answers: queue.SimpleQueue[tuple[Callable[[Future[bytes]], list[Event]], Future[bytes]]] = (
            queue.SimpleQueue()
        )
        self._events: list[Event] = []
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        """A heap of `(due time, number, call)`."""
        self._next_poll = monotonic()
        self._job: tuple[WorkerSpec, JobFile] | None = None
        self._last_end = 0.0
        """When the last worker ended that had been placed."""
        self._memory_kills: dict[str, int] = {}
        self._has_head = True
        self.call_later(_HEAD_SECONDS, self._look_for_head)

    def start(self, cpus: Sequence[int] | None, *, node: str | None = None) -> RayWorker:  # noqa: ARG002  (not pinned)
        """Start an actor, spread over the nodes, or on one of them as long as it is there."""
        reference = cluster.start_actor(
            num_cpus=1,
            num_bytes=self._settings.worker_bytes,
            environment={**STEADY_HEAP, **ONE_THREAD},
            node=node,
            is_bound=False,
        )
        actor = Actor(self, reference, "gristmill.engine.ray_workers.actor_worker:ActorWorker")
        worker = RayWorker(self, next(self._numbers), actor, self._find_agent)
        self._workers[worker] = None
        return worker

    def find_other_node(self, node: str) -> str | None:
        return next((other for other in cluster.list_nodes() if other != node), None)

    def wait(self, timeout: float | None) -> list[Event]:
        """Wait for answers. Looks after timers, agents and workers that are not placed in between."""
        self._run_due_calls()
        self._poll_agents()
        if not self._events:
            seconds = _POLL_SECONDS if timeout is None else min(timeout, _POLL_SECONDS)
            self._take_answers(max(0.0, min(seconds, self._later[0][0] - monotonic()) if self._later else seconds))
        self._run_due_calls()
        events, self._events = self._events, []
        for event in events:
            if isinstance(event, Died):
                self._forget(event)
        if not events:
            self._check_placement()
        return events

    def close(self, *, at_once: bool) -> None:
        """Kill all actors, or stop them and kill those that have not ended after two seconds."""
        for worker in list(self._workers):
            worker.kill() if at_once else worker.stop()
        deadline = monotonic() + LEAVE_SECONDS
        while self._workers and (seconds_left := deadline - monotonic()) > 0:
            self.wait(seconds_left)
        for worker in list(self._workers):
            worker.kill()
        for agent in self._agents.values():
            cluster.kill_actor(agent.reference)
        self._workers.clear()
        self._agents.clear()

    def submit(self, reference: Any, on_answer: Callable[[Future[bytes]], list[Event]]) -> None:
        """Have a call's answer handled by `wait`."""
        reference.future().add_done_callback(lambda answer: self._answers.put((on_answer, answer)))

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Have `wait` call something later."""
        heapq.heappush(self._later, (monotonic() + seconds, next(self._numbers), call))

    def add_event(self, event: Event) -> None:
        """Have an event returned by `wait`."""
        self._events.append(event)

    def find_job(self, spec: WorkerSpec) -> bytes | JobFile:
        """Return a job as workers get it: itself, or the name of a file that holds it."""
        pickled = spec.pickled_job_with_modules
        stem = self._settings.job_stem
        if len(pickled) <= _MAX_MESSAGE_BYTES or stem is None:
            return pickled
        if self._job is None or self._job[0] is not spec:
            sha256 = hashlib.sha256(pickled).hexdigest()
            location = stem.parent / f"{stem.name}{sha256[:16]}"
            with PendingFile(location, "jobs") as file:
                file.write(pickled)
                file.commit(sync=False)
            self._job = (spec, JobFile(location, sha256))
        return self._job[1]

    def _find_agent(self, node: str) -> Actor:
        agent = self._agents.get(node)
        if agent is None:
            reference = cluster.start_actor(num_cpus=0, num_bytes=0, environment={}, node=node, is_bound=True)
            agent = Actor(self, reference, "gristmill.engine.ray_workers.actor_worker:NodeAgent")
            agent.describe(lambda answer: [])  # noqa: ARG005  (it runs on a node that a worker has described)
            agent.on_death = partial(self._replace_agent, node, agent)
            self._agents[node] = agent
        return agent

    def _replace_agent(self, node: str, dead: Actor) -> None:
        """Start another agent for one that was killed: without one, it is not seen that an item takes too long.

        At once, because for lack of memory Ray kills the newest process first: the next one is then a worker.
        """
        if self._agents.get(node) is dead:
            del self._agents[node]
            agent = self._find_agent(node)
            for worker in self._workers:
                if worker.node == node:
                    worker.be_watched_by(agent)

    def _look_for_head(self) -> None:
        """Say that the head is gone, and how to resume: after a minute without it, Ray ends this process itself."""
        had_head, self._has_head = self._has_head, cluster.has_head()
        if had_head and not self._has_head:
            _log.warning(
                "the head of the cluster does not answer: Ray ends this process after a minute without it. When the "
                "cluster is there again, the same command resumes"
            )
        self.call_later(_HEAD_SECONDS, self._look_for_head)

    def _take_answers(self, timeout: float) -> None:
        try:
            on_answer, answer = self._answers.get(timeout=timeout)
            while True:
                self._events += on_answer(answer)
                on_answer, answer = self._answers.get_nowait()
        except queue.Empty:
            return

    def _run_due_calls(self) -> None:
        while self._later and self._later[0][0] <= monotonic():
            heapq.heappop(self._later)[2]()

    def _poll_agents(self) -> None:
        """Ask agents what busy workers do: whether their items take too long, how far they are, what they use."""
        if monotonic() < self._next_poll:
            return
        questions: dict[Actor, dict[int, RayWorker]] = {}
        for worker in self._workers:
            if (question := worker.agent_to_ask) is not None:
                questions.setdefault(question[0], {})[question[1]] = worker
        for agent, workers in questions.items():
            request = {"verb": "look", "pids": list(workers)}
            agent.call(json.dumps(request).encode(), _make_note_taker(workers))
        self._next_poll = monotonic() + max(_POLL_SECONDS, len(questions) / _MAX_POLLS_PER_SECOND)

    def _forget(self, event: Died) -> None:
        worker = event.worker
        assert isinstance(worker, RayWorker)
        self._workers.pop(worker, None)
        if worker.is_placed:
            self._last_end = monotonic()
        if event.is_blameless and worker.node is not None:
            self._agents.pop(worker.node, None)
        if event.out_of_memory and worker.node is not None:
            self._reserve_more(worker, worker.node)

    def _reserve_more(self, killed: RayWorker, node: str) -> None:
        """After the second kill on a node that workers share, have Ray reserve more memory for each new one.

        The first time the scheduler starts no other worker instead. A worker that was alone had all there was.
        """
        self._memory_kills[node] = self._memory_kills.get(node, 0) + 1
        if self._memory_kills[node] > 1 and any(worker.node == node for worker in self._workers):
            num_used = killed.remote_use.memory_bytes if killed.remote_use is not None else 0
            wanted = max(int(self._settings.worker_bytes * _MORE_MEMORY), num_used)
            self._settings.worker_bytes = min(wanted, cluster.find_most_memory())

    def _check_placement(self) -> None:
        """Raise `ClusterError` if Ray has placed no worker of the present job in time.

        Spare ones do not count: they may hold the CPUs that the job waits for.
        """
        waiting = [worker for worker in self._workers if worker.has_job]
        if not waiting or any(worker.is_placed for worker in waiting):
            return
        if monotonic() - max(self._last_end, waiting[0].started) > self._settings.wait_seconds:
            raise cluster.make_placement_error(self._settings.wait_seconds, 1, self._settings.worker_bytes)


def _make_note_taker(workers: dict[int, RayWorker]) -> Callable[[Future[bytes]], list[Event]]:
    nums_answers = {pid: worker.num_answers for pid, worker in workers.items()}

    def take_notes(answer: Future[bytes]) -> list[Event]:
        if answer.exception() is None:
            for pid, facts in json.loads(answer.result()).items():
                use = RemoteUse(facts["cpu_seconds"], facts["memory_bytes"], facts["peak_bytes"])
                workers[int(pid)].take_note(facts["note"], facts["counts"], use, nums_answers[int(pid)])
        return []

    return take_notes
