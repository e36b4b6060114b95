"""A worker on the cluster as the driver sees it: one actor, the calls on their way to it, and the agent of its node.

describe ─▶ environment checked ─▶ watched by the agent ─▶ calls (job, chunks), in order ─▶ leave, kill or death
"""

from __future__ import annotations

import json
import sys
from collections import deque
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from gristmill.core.errors import ClusterError
from gristmill.engine.backend import Died, Ready, SetupFailed
from gristmill.engine.ray_workers import cluster
from gristmill.engine.worker import wire
from gristmill.engine.worker_process import decode_event

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from gristmill.engine.backend import Event, RemoteUse, WorkerSpec
    from gristmill.engine.ray_workers.actor_worker import JobFile
    from gristmill.engine.worker.chunk import Chunk
    from gristmill.engine.worker.pickling import Buffer
    from gristmill.engine.worker.recorder import Note

_UNAVAILABLE_SECONDS = 60.0
"""How long an actor that cannot be reached is asked again before it counts as dead."""
_ASK_AGAIN_SECONDS = 1.0
_AUTOPSY_SECONDS = 20.0
"""How long the agent of a node may take to say how a worker ended; then the node counts as lost."""
_MEMORY_CAUSE = "was killed because memory ran out"


def is_memory_kill(error: BaseException | None) -> bool:
    """Whether Ray ended an actor because the memory of its node ran out."""
    # Only calls that were running get the error of that type. Later ones get an `ActorDiedError` without a public field
    # for the cause.
    return isinstance(error, cluster.list_errors().OutOfMemoryError) or _tells_death(error, "running low on memory")


def is_node_loss(error: BaseException | None) -> bool:
    """Whether Ray says that an actor has ended because its node was lost or taken away."""
    if isinstance(error, cluster.list_errors().NodeDiedError) or getattr(error, "preempted", False):
        return True
    # `preempted` is only for nodes that an autoscaler took away. For others there is no public field.
    return _tells_death(error, "its node has died")


def _tells_death(error: BaseException | None, words: str) -> bool:
    """Whether an actor has died, and Ray's message has these words: those of other errors may quote a record."""
    return isinstance(error, cluster.list_errors().ActorDiedError) and words in error.error_msg


class Owner(Protocol):
    """The backend, as its actors see it."""

    def submit(self, reference: Any, on_answer: Callable[[Future[bytes]], list[Event]]) -> None:
        """Have a call's answer handled by `wait`."""

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Have `wait` call something later."""

    def add_event(self, event: Event) -> None:
        """Have an event returned by `wait`."""

    def find_job(self, spec: WorkerSpec) -> bytes | JobFile:
        """Return a job as workers get it."""


class Actor:
    """An actor and its numbered calls. A call that was lost on the way is asked again under its number."""

    on_death: Callable[[], None] | None = None
    """Called when an answer says that the actor has died, but not its node: memory ran out, or a user killed it."""

    def __init__(self, backend: Owner, reference: Any, serves: str) -> None:
        self._backend = backend
        self.reference = reference
        self._num_calls = 0
        self._has_answered = False
        self.description: dict[str, Any] = {}
        self._serves = serves

    def describe(self, on_answer: Callable[[Future[bytes]], list[Event]]) -> None:
        """Ask what is installed there. `on_answer` is called inside of the backend's `wait`."""
        request = cluster.make_description_request(self._serves)
        self._ask(self.reference.describe, request, on_answer, monotonic() + _UNAVAILABLE_SECONDS)

    def read_description(self, answer: Future[bytes]) -> None:
        """Keep the answer to `describe`. Raises `ClusterError` if something else is installed there."""
        self.description = json.loads(answer.result())
        cluster.check_environment(self.description["environment"], self.description["host"])

    def call(self, message: bytes, on_answer: Callable[[Future[bytes]], list[Event]]) -> None:
        """Send a message. An actor that cannot be reached is asked again for a minute."""
        self._num_calls += 1
        numbered = self._num_calls.to_bytes(8) + message
        self._ask(self.reference.call, numbered, on_answer, monotonic() + _UNAVAILABLE_SECONDS)

    def _ask(
        self, method: Any, message: bytes, on_answer: Callable[[Future[bytes]], list[Event]], give_up_at: float
    ) -> None:
        def examine(answer: Future[bytes]) -> list[Event]:
            error = answer.exception()
            if isinstance(error, cluster.list_errors().ActorUnavailableError) and monotonic() < give_up_at:
                again = partial(self._ask, method, message, on_answer, give_up_at)
                self._backend.call_later(_ASK_AGAIN_SECONDS, again)
                return []
            # One that never answered is not replaced: the next one would not come up either.
            has_died = isinstance(error, cluster.list_errors().ActorDiedError) and not is_node_loss(error)
            if self.on_death is not None and (is_memory_kill(error) or (self._has_answered and has_died)):
                self.on_death()
            self._has_answered |= error is None
            return on_answer(answer)

        self._backend.submit(method.remote(message), examine)


class RayWorker:
    """An actor as a worker: the handle for the scheduler."""

    pid = None

    def __init__(self, backend: Owner, number: int, actor: Actor, find_agent: Callable[[str], Actor]) -> None:
        self._backend = backend
        self._number = number
        self._actor = actor
        self._find_agent = find_agent
        self._agent: Actor | None = None
        self._unsent: deque[bytes] = deque()
        """Messages that wait until the node was checked."""
        self._is_watched = False
        self._held: list[Event] = []
        """Events that wait until the agent of the node watches the worker."""
        self._has_job = False
        self._num_pending = 0
        self._num_loading = 0
        """How many jobs it was given and has not set up yet. Only the last of them counts."""
        self._note: Note | None = None
        self._counts: dict[str, int] = {}
        self.remote_use: RemoteUse | None = None
        self._note_of_call = -1
        self._num_answers = 0
        self._is_stopping = False
        self._is_being_examined = False
        """Whether its node was asked how it ended."""
        self.has_ended = False
        self.started = monotonic()
        actor.describe(self._on_description)

    @property
    def name(self) -> str:
        placed = self._actor.description
        where = f" ({placed['host']}, process {placed['pid']})" if placed else ""
        return f"actor {self._number}{where}"

    @property
    def node(self) -> str | None:
        """The id of its node; None until it is placed."""
        node: str | None = self._actor.description.get("node")
        return node

    @property
    def host(self) -> str:
        """The name of its machine; empty until it is placed."""
        host: str = self._actor.description.get("host", "")
        return host

    @property
    def is_placed(self) -> bool:
        return bool(self._actor.description)

    @property
    def has_job(self) -> bool:
        """Whether a job counts on it."""
        return self._has_job and not self._is_stopping

    @property
    def agent_to_ask(self) -> tuple[Actor, int] | None:
        """The agent that can tell what the worker is doing, and the worker's process; None if it is not busy."""
        is_busy = self._num_pending > 0 and not self.has_ended
        return (self._agent, self._actor.description["pid"]) if is_busy and self._agent is not None else None

    def assign(self, spec: WorkerSpec | None) -> None:
        self._has_job = spec is not None
        if spec is None:
            self._enqueue(wire.pack(wire.FORGET))
            return
        payload = None, sys.argv, None, spec.returns_unstarted, self._backend.find_job(spec)
        self._num_loading += 1
        self._enqueue(wire.pack(wire.JOB, payload))

    def send(self, chunk: Chunk) -> int:
        segments = wire.pack(wire.CHUNK, (chunk.indexes, chunk.items), chunk=chunk.number, num_items=chunk.indexes[0])
        return self._enqueue(segments)

    def current(self) -> Note | None:
        if self._note is None or self._note_of_call != self._num_answers:
            return None
        seconds, item, position = self._note
        # As of the moment at which the agent looked: an old note must not make an item look late.
        return (monotonic() - seconds, item, position) if item >= 0 else None

    def read_counts(self) -> dict[str, int]:
        return self._counts

    def take_note(self, note: Note, counts: dict[str, int], use: RemoteUse, num_answers: int) -> None:
        """Keep what the agent saw, with the number of answers at the time of the question."""
        self._note, self._counts, self.remote_use, self._note_of_call = note, counts, use, num_answers

    @property
    def num_answers(self) -> int:
        return self._num_answers

    def num_bytes_received(self) -> int:
        return self._num_answers

    def stop(self) -> None:
        if self._is_stopping:  # of one that was killed while it was busy, the agent of its node tells the end
            return
        self._is_stopping = True
        if not self.is_placed:
            self.kill()
        else:
            self._backend.submit(self._actor.reference.leave.remote(), self._on_left)

    def kill(self) -> None:
        """End the actor now. Without a call under way its end would not be noticed, so it is reported here."""
        if self.has_ended:
            return
        cluster.kill_actor(self._actor.reference)
        self._is_stopping = True
        if not self._num_pending:
            self._backend.add_event(self._end("was killed"))

    def be_watched_by(self, agent: Actor) -> None:
        """Have an agent watch the worker, from now on or instead of one that has died."""
        self._agent = agent
        description = self._actor.description
        request = {"verb": "watch", "pid": description["pid"], "recording": description["recording"]}
        agent.call(json.dumps(request).encode(), self._on_watched)

    def _enqueue(self, segments: list[Buffer]) -> int:
        message = b"".join(segments)
        if self._agent is not None:
            self._call(message)
        else:
            self._unsent.append(message)
        return len(message)

    def _call(self, message: bytes) -> None:
        self._num_pending += 1
        self._actor.call(message, self._on_answer)

    def _on_description(self, answer: Future[bytes]) -> list[Event]:
        if self.has_ended:
            return []
        if answer.exception() is not None:
            return self._on_error(answer.exception())
        self._actor.read_description(answer)
        self.be_watched_by(self._find_agent(self._actor.description["node"]))
        while self._unsent:
            self._call(self._unsent.popleft())
        return []

    def _on_watched(self, answer: Future[bytes]) -> list[Event]:  # noqa: ARG002  (without an agent it works, unwatched)
        self._is_watched = True
        # While it loads another job, the end of an earlier set-up means nothing.
        held = [event for event in self._held if not (isinstance(event, Ready) and self._num_loading)]
        self._held = []
        return [] if self.has_ended else held

    def _on_answer(self, answer: Future[bytes]) -> list[Event]:
        if self.has_ended:
            return []
        if answer.exception() is not None:
            return self._on_error(answer.exception())
        self._num_pending -= 1
        self._num_answers += 1
        events: list[Event] = []
        for frame in wire.unpack(answer.result()):
            if frame.kind in (wire.READY, wire.SETUP_FAILED):
                self._num_loading -= 1
            if frame.kind == wire.READY and self._num_loading:  # of a job that has ended before
                continue
            events.append(decode_event(self, frame))
        if any(isinstance(event, SetupFailed) for event in events):
            cluster.kill_actor(self._actor.reference)
            events.append(self._end("could not be set up"))
        elif not self._is_watched:  # then it is given no item either
            self._held, events = [*self._held, *events], []
        return events

    def _on_left(self, answer: Future[bytes]) -> list[Event]:  # noqa: ARG002  (it always ends with an error: an end)
        return [] if self.has_ended else [self._end("was stopped")]

    def _on_error(self, error: BaseException | None) -> list[Event]:
        """Find out how the actor ended. Its node's agent knows, also where it was when it was killed on request."""
        if self._is_being_examined:  # errors of its other calls say the same
            return []
        errors = cluster.list_errors()
        if isinstance(error, errors.ActorUnschedulableError | errors.RuntimeEnvSetupError):
            raise ClusterError(f"no worker can be started: {error}") from error
        if isinstance(error, errors.RayTaskError):
            raise ClusterError(f"{self.name} failed: {error}", help="this is an error of Gristmill") from error
        if self._agent is None or is_node_loss(error):
            return [self._end_unseen(error)]
        self._is_being_examined = True
        request = {"verb": "end", "pid": self._actor.description["pid"]}
        self._agent.call(json.dumps(request).encode(), partial(self._on_autopsy, error))
        self._backend.call_later(_AUTOPSY_SECONDS, partial(self._give_up_on_agent, error))
        return []

    def _on_autopsy(self, error: BaseException | None, answer: Future[bytes]) -> list[Event]:
        if self.has_ended:
            return []
        if answer.exception() is not None:
            return [self._end_unseen(answer.exception() if not is_memory_kill(error) else error)]
        autopsy = json.loads(answer.result())
        if self._is_stopping:
            return [self._end("was stopped", item=autopsy["item"], position=autopsy["position"])]
        autopsy["out_of_memory"] |= is_memory_kill(error)
        return [self._end(_MEMORY_CAUSE if autopsy["out_of_memory"] else "died", **autopsy)]

    def _give_up_on_agent(self, error: BaseException | None) -> None:
        if not self.has_ended:
            self._backend.add_event(self._end_unseen(error, is_silent=True))

    def _end_unseen(self, error: BaseException | None, *, is_silent: bool = False) -> Died:
        """End without an agent that saw it.

        Only a node that was lost, or that says nothing any more, blames no item. Everything else would go on forever:
        actors that die before they can answer, and work that ends its worker and the agent each time.
        """
        cluster.kill_actor(self._actor.reference)  # it may be alive, and only its connection broken
        if self._is_stopping:
            return self._end("was stopped")
        _, item, position = self.current() or (0.0, -1, -1)
        if is_memory_kill(error):
            return self._end(_MEMORY_CAUSE, item=item, position=position, out_of_memory=True)
        if is_silent or is_node_loss(error) or (self.node is not None and self.node not in cluster.list_nodes()):
            return self._end("was lost with its node", is_blameless=True)
        if self.node is None:
            return self._end("ended before its first answer", crash_text=str(error))
        return self._end("died, and the agent of its node", item=item, position=position)

    def _end(self, cause: str, **facts: Any) -> Died:
        self.has_ended = True
        return Died(self, cause, **facts)
