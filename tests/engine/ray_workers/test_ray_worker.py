"""How the end of an actor is judged, with answers of Ray's that are made up: no cluster is started."""

import json
from concurrent.futures import Future

import pytest

from gristmill.engine.backend import Died
from gristmill.engine.ray_workers import cluster
from gristmill.engine.ray_workers.ray_worker import Actor, RayWorker, is_memory_kill, is_node_loss
from gristmill.engine.worker.chunk import Chunk

errors = pytest.importorskip("ray.exceptions")


def make_death(message):
    return errors.ActorDiedError(errors.ActorDiedErrorContext(error_message=message, actor_id=b"1" * 16))


NODE_LOSS = make_death("The actor died because its node has died. Node Id: 12")
CRASH = make_death("The actor is dead because its worker process has died.")
BROKEN = errors.ActorUnavailableError("Socket closed", b"1" * 16)
AUTOPSY = {"item": 3, "position": 7, "crash_text": "", "out_of_memory": False}


class Method:
    def __init__(self, name):
        self.name = name

    def remote(self, message=b""):
        return self.name, message


class Reference:
    def __init__(self):
        self.describe, self.call, self.leave = Method("describe"), Method("call"), Method("leave")


class Owner:
    """A backend whose answers the test gives."""

    def __init__(self):
        self.asked = []
        self.later = []
        self.events = []

    def submit(self, reference, on_answer):
        self.asked.append((reference, on_answer))

    def call_later(self, seconds, call):
        self.later.append(call)

    def add_event(self, event):
        self.events.append(event)

    def answer(self, outcome, number=0):
        """Answer one of the calls under way, the oldest one if no other is named."""
        _, on_answer = self.asked.pop(number)
        future = Future()
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        self.events += on_answer(future)


@pytest.fixture
def cluster_without_ray(monkeypatch):
    """What would be asked of Ray: kills are listed, and there is one node."""
    killed = []
    monkeypatch.setattr(cluster, "kill_actor", killed.append)
    monkeypatch.setattr(cluster, "list_nodes", lambda: {"node": "address"})
    monkeypatch.setattr(cluster, "check_environment", lambda environment, host: None)
    return killed


@pytest.fixture
def owner():
    return Owner()


@pytest.fixture
def agent(owner, cluster_without_ray):
    return Actor(owner, Reference(), "agent")


@pytest.fixture
def worker(owner, agent):
    return RayWorker(owner, 1, Actor(owner, Reference(), "worker"), lambda node: agent)


def describe(owner, node="node"):
    description = {"node": node, "host": "host", "pid": 12, "recording": 3, "environment": {}}
    owner.answer(json.dumps(description).encode())


@pytest.fixture
def busy(owner, worker):
    """A worker that is watched and runs a chunk."""
    describe(owner)
    owner.answer(b"true")
    worker.send(Chunk(0, range(3, 4), ["item"]))
    return worker


def test_an_actor_that_ends_before_its_first_answer(owner, worker):
    """It counts as a set-up that failed, of which three end a job: as a lost node it would be replaced for ever."""
    owner.answer(CRASH)
    [event] = owner.events
    assert (event.cause, event.is_blameless) == ("ended before its first answer", False)
    assert "worker process has died" in event.crash_text


def test_a_node_that_is_lost_before_the_first_answer(owner, worker):
    owner.answer(NODE_LOSS)
    assert [(event.cause, event.is_blameless) for event in owner.events] == [("was lost with its node", True)]


def test_a_first_answer_that_is_lost_is_asked_for_again(owner, worker):
    owner.answer(BROKEN)
    assert owner.events == []
    owner.later.pop()()
    describe(owner)
    assert worker.node == "node"


def test_a_worker_that_is_killed_tells_where_it_was(owner, busy):
    """The record that takes too long is found by its position."""
    busy.kill()
    owner.answer(CRASH)
    owner.answer(json.dumps(AUTOPSY).encode())
    [event] = owner.events
    assert (event.cause, event.item, event.position, event.is_blameless) == ("was stopped", 3, 7, False)


def test_a_worker_that_is_killed_and_then_stopped_is_ended_by_the_agent(owner, busy):
    """Ray's own kill takes five seconds where the process is stopped, and a driver that ends does not wait so long."""
    busy.kill()
    busy.stop()
    assert [reference for reference, _ in owner.asked if reference[0] == "leave"] == []
    owner.answer(CRASH)
    assert json.loads(owner.asked[0][0][1][8:]) == {"verb": "end", "pid": 12}
    assert owner.events == []


def test_a_lost_node_is_known_by_the_error(owner, busy):
    owner.answer(NODE_LOSS)
    assert [(event.cause, event.is_blameless) for event in owner.events] == [("was lost with its node", True)]
    assert owner.asked == []


@pytest.mark.parametrize(
    ("nodes", "cause"), [({"node": ""}, "died, and the agent of its node"), ({}, "was lost with its node")]
)
def test_a_worker_that_dies_with_its_agent(owner, busy, monkeypatch, nodes, cause):
    """As long as the node is there, its item may be the cause."""
    monkeypatch.setattr(cluster, "list_nodes", lambda: nodes)
    owner.answer(CRASH)
    owner.answer(CRASH)
    assert [(event.cause, event.is_blameless) for event in owner.events] == [(cause, not nodes)]


def test_an_agent_that_says_nothing(owner, busy, cluster_without_ray):
    """Its node counts as lost. The actor is killed: it may be alive, behind the connection that broke."""
    owner.answer(CRASH)
    owner.later.pop()()
    assert [event.is_blameless for event in owner.events] == [True]
    assert len(cluster_without_ray) == 1
    owner.answer(json.dumps(AUTOPSY).encode())
    assert len(owner.events) == 1


@pytest.mark.parametrize(
    ("error", "num_replaced"), [(CRASH, 1), (NODE_LOSS, 0), (errors.OutOfMemoryError("killed"), 1)]
)
def test_an_agent_that_dies_is_replaced_unless_its_node_is_lost(owner, agent, error, num_replaced):
    replaced = []
    agent.on_death = lambda: replaced.append(1)
    for _ in range(2):
        agent.call(b"", lambda answer: [])
    owner.answer(b"")
    owner.answer(error)
    assert len(replaced) == num_replaced


def test_an_agent_that_has_never_answered_is_not_replaced(owner, agent):
    """The next one would not come up either."""
    replaced = []
    agent.on_death = lambda: replaced.append(1)
    agent.call(b"", lambda answer: [])
    owner.answer(CRASH)
    assert replaced == []


def test_the_end_is_told_once(owner, busy):
    busy.send(Chunk(1, range(4, 5), ["item"]))
    owner.answer(CRASH)
    owner.answer(CRASH)
    owner.answer(json.dumps(AUTOPSY).encode())
    assert [type(event) for event in owner.events] == [Died]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.OutOfMemoryError("killed"), (True, False)),
        (make_death("Task was killed due to the node running low on memory."), (True, False)),
        (errors.NodeDiedError("gone"), (False, True)),
        (errors.RayActorError("actor", "drained", preempted=True), (False, True)),
        (NODE_LOSS, (False, True)),
        (CRASH, (False, False)),
        (errors.RayTaskError("call", "running low on memory: its node has died", ValueError()), (False, False)),
        (None, (False, False)),
    ],
)
def test_fields_and_types_of_errors_tell_the_cause_and_no_text_of_others(error, expected):
    assert (is_memory_kill(error), is_node_loss(error)) == expected
