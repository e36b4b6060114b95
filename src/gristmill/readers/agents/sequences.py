"""The sequences of a session: what a model has seen from its first message to its last, each answer in one of them.

Events form trees. A sequence follows a tree from its root to the last event with an answer; of several ways the latest
is followed, and each other one is a sequence of its own, whose context is what came before:

    u1 a1 u2 a2          u1 a1 u2 a2
           └ u3 a3   →   u1 a1 | u3 a3        (the user went back to a1 and asked something else)

The conversations of subagents are trees of their own. A compaction ends a sequence and begins another one, which opens
with the summary and the events that were kept. Answers that an earlier sequence has (left of the bar) become the
`prompt` of a record and are not trained again; the rest is its `completion`.

A tool's result stands after the call with its id, wherever the log has it. An event whose context could not be read is
not trained: it is quarantined with all that follows it.

Cost: linear in the events, except for the contexts of branches.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gristmill.readers.agents.events import LOST, Compaction, Event, LogFacts
from gristmill.readers.agents.messages import ASSISTANT, SYSTEM, TOOL, USER, Message, join_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAIN, SIDECHAIN, COMPACTION, BRANCH = "main", "sidechain", "compaction", "branch"


@dataclass(slots=True)
class AgentSequence:
    """The messages of one sequence, and those before it that other sequences have too."""

    kind: str
    position: int
    """Where its first event is in the file."""
    context: list[Message]
    messages: list[Message]

    @property
    def repeats_answers(self) -> bool:
        """Whether answers of its context are in another sequence."""
        return any(message["role"] == ASSISTANT for message in self.context)


@dataclass(slots=True)
class LostEvents:
    """Events that cannot be used, and the reason."""

    position: int
    num_bytes: int
    num_events: int
    reason: str
    message: str


@dataclass
class SessionSequences:
    """The sequences that a session becomes, and its events that are in none."""

    sequences: list[AgentSequence] = field(default_factory=list)
    lost: list[LostEvents] = field(default_factory=list)


def build_sequences(events: Sequence[Event], facts: LogFacts, first_loss: int | None) -> SessionSequences:
    """Build the sequences of a session; `first_loss` is where the first event is that could not be read."""
    built = SessionSequences()
    tree = _EventTree(events, facts, built)
    for root, kind in tree.find_roots(first_loss):
        for sequence in tree.follow(root, kind):
            built.sequences.append(sequence)
    tree.quarantine_cycles()
    built.sequences.sort(key=lambda sequence: sequence.position)
    built.lost.sort(key=lambda lost: lost.position)
    with_answers = [sequence for sequence in built.sequences if _has_answer(sequence.messages)]
    if with_answers:
        facts.counts["sequences_without_answer"] += len(built.sequences) - len(with_answers)
        built.sequences = with_answers
    else:
        built.sequences = built.sequences[:1]
    return built


def _has_answer(messages: Sequence[Message]) -> bool:
    return any(message["role"] == ASSISTANT for message in messages)


class _EventTree:
    """The events of a session by their keys, and the events after each."""

    def __init__(self, events: Sequence[Event], facts: LogFacts, built: SessionSequences) -> None:
        self._facts = facts
        self._built = built
        self._by_key: dict[str, Event] = {}
        self._turns: dict[str, str] = {}
        """By the key of an event that continues a turn, the key of its first event."""
        self._more_parents: dict[str, list[str | None]] = defaultdict(list)
        """The events before those that continue a turn: in any order of the lines, one is not of the turn itself."""
        self._join_turns(events)
        self._results: dict[str, Message] = {}
        self._take_results()
        self._children: dict[str, list[Event]] = defaultdict(list)
        self._visited: set[str] = set()
        self._has_words: set[str] = set()
        self._has_answer: set[str] = set()

    def _join_turns(self, events: Sequence[Event]) -> None:
        first_of_turn: dict[tuple[str, bool], Event] = {}
        for event in events:
            if event.key in self._by_key or event.key in self._turns:
                self._facts.counts["repeated_events"] += 1  # a resumed session repeats its history
                continue
            first = first_of_turn.setdefault((event.turn, event.is_side), event) if event.turn else event
            if first is event:
                self._by_key[event.key] = event
            else:
                self._turns[event.key] = first.key
                first.messages = [*first.messages, *event.messages]
                first.num_bytes += event.num_bytes
                self._more_parents[first.key].append(event.parent)

    def _take_results(self) -> None:
        """Take the results out of the events, to put each after its call."""
        calls = {
            call.get("id")
            for event in self._by_key.values()
            for messages in (event.messages, event.compaction.messages if event.compaction is not None else ())
            for message in messages
            for call in message.get("tool_calls", ())
        }
        for event in self._by_key.values():
            if not any(message["role"] == TOOL for message in event.messages):
                continue
            others: list[Message] = []
            for message in event.messages:
                call_id = message.get("tool_call_id")
                if message["role"] != TOOL or call_id is None:
                    others.append(message)
                elif call_id not in calls:
                    text = f"the result of {call_id!r:.60}, a call that is not in the session"
                    self._built.lost.append(LostEvents(event.position, event.num_bytes, 1, "result_without_call", text))
                elif call_id in self._results:
                    self._facts.counts["repeated_results"] += 1
                else:
                    self._results[call_id] = message
            event.messages, event.has_results = others, True

    def _find_parent(self, event: Event) -> str | None:
        for parent in (event.parent, *self._more_parents.get(event.key, ())):
            key = self._turns.get(parent, parent) if parent is not None else None
            if key != event.key:
                return key
        return None

    def find_roots(self, first_loss: int | None) -> Iterator[tuple[Event, str]]:
        """Find where sequences begin, and quarantine what has lost its context."""
        roots: list[Event] = []
        lost: list[Event] = []
        for event in self._by_key.values():
            parent = self._find_parent(event)
            before = self._by_key.get(parent) if parent is not None else None
            if before is not None and before.is_side == event.is_side:
                self._children[before.key].append(event)
            elif parent is None or before is not None:
                roots.append(event)
            elif parent.startswith(LOST) or (first_loss is not None and first_loss < event.position):
                lost.append(event)
            else:  # the program has not written it
                self._facts.counts["missing_parents"] += 1
                roots.append(event)
        for event in lost:
            self._quarantine(event, "lost_context", "follow an event that could not be read")
        for root in roots:
            self._mark(root)
            yield root, SIDECHAIN if root.is_side else COMPACTION if root.compaction else MAIN

    def _walk(self, root: Event) -> list[Event]:
        order, waiting = [], [root]
        while waiting:
            event = waiting.pop()
            if event.key not in self._visited:
                self._visited.add(event.key)
                order.append(event)
                waiting += self._children.get(event.key, ())
        return order

    def _mark(self, root: Event) -> None:
        """Mark the events from which on there are words, and those from which on there are answers."""
        for event in reversed(self._walk(root)):
            children = self._children.get(event.key, ())
            if event.messages or any(child.key in self._has_words for child in children):
                self._has_words.add(event.key)
            if _has_answer(event.messages) or any(child.key in self._has_answer for child in children):
                self._has_answer.add(event.key)

    def _quarantine(self, root: Event, reason: str, what: str) -> None:
        events = self._walk(root)
        if events:
            num_bytes = sum(event.num_bytes for event in events)
            text = f"{len(events):,} events {what}"
            first = min(event.position for event in events)
            self._built.lost.append(LostEvents(first, num_bytes, len(events), reason, text))

    def quarantine_cycles(self) -> None:
        """Quarantine events that come after themselves."""
        for event in self._by_key.values():
            if event.key not in self._visited:
                self._quarantine(event, "event_cycle", "follow each other in a circle")

    def follow(self, root: Event, kind: str) -> Iterator[AgentSequence]:
        """Follow a tree along all its ways."""
        waiting: list[tuple[Event, str, list[Event]]] = [(root, kind, [])]
        while waiting:
            event, kind, context = waiting.pop()
            own: list[Event] = []
            following: Event | None = event
            while following is not None:
                event = following
                if event.compaction is not None and (own or context):
                    yield from self._make(kind, context, own)
                    context, own, kind = [*context, *own], [], COMPACTION
                if event.compaction is not None:
                    context = self._keep(context, event, event.compaction)
                own.append(event)
                children = self._children.get(event.key, [])
                ways = [child for child in children if child.key in self._has_answer]
                ways = ways or [child for child in children if child.key in self._has_words][-1:] or children[-1:]
                unused = sum(child.key in self._has_words for child in children if child not in ways)
                self._facts.counts["branches_without_answer"] += unused
                following = ways[-1] if ways else None
                waiting += [(way, BRANCH, [*context, *own]) for way in ways[:-1]]
            yield from self._make(kind, context, own)

    def _keep(self, history: list[Event], event: Event, compaction: Compaction) -> list[Event]:
        """Find what is left of the history after a compaction."""
        summary = [Event(event.position, 0, "", None, compaction.messages, is_literal=True)]
        if compaction.forgotten is not None:
            rest = [before for before in history if before.key not in compaction.forgotten]
            return [*rest[: compaction.offset], *summary, *rest[compaction.offset :]]
        first = self._turns.get(compaction.first_kept, compaction.first_kept)
        index = next((index for index, before in enumerate(history) if before.key == first), len(history))
        return [*summary, *history[index:]]

    def _make(self, kind: str, context: list[Event], own: list[Event]) -> Iterator[AgentSequence]:
        messages = self._lay_out(own)
        if messages:
            before = self._lay_out(context)
            if self._facts.system and (before or messages)[0]["role"] != SYSTEM:
                before.insert(0, {"role": SYSTEM, "content": self._facts.system})
            yield AgentSequence(kind, own[0].position, before, messages)

    def _lay_out(self, events: Sequence[Event]) -> list[Message]:
        """List the messages of events, with results after their calls."""
        messages: list[Message] = []
        turn: str | None = None
        for event in events:
            if event.has_results and turn is not None:
                self._add_results(messages)
                turn = None
            for message in event.messages:
                last = messages[-1] if messages else None
                if last is None or last["role"] != message["role"] or event.is_literal:
                    is_same = False
                elif message["role"] == ASSISTANT:
                    is_same = event.turn == turn and (turn != "" or _can_continue(last, message))
                else:
                    is_same = message["role"] == USER
                if is_same and last is not None:
                    _extend(last, message)
                    continue
                if turn is not None:
                    self._add_results(messages)
                is_open = message["role"] == ASSISTANT and not event.is_literal
                turn = event.turn if is_open else None
                messages.append(dict(message))
        if turn is not None:
            self._add_results(messages)
        return messages

    def _add_results(self, messages: list[Message]) -> None:
        """Add the results of the calls of the last message."""
        for call in messages[-1].get("tool_calls", ()):
            result = self._results.get(call.get("id"))
            if result is None:
                self._facts.counts["calls_without_result"] += 1
            else:
                messages.append(result)


def _can_continue(last: Message, message: Message) -> bool:
    """Whether an answer can go on in one message, which has its reasoning first and its calls last."""
    if "reasoning_content" in message and (last["content"] or "tool_calls" in last):
        return False
    return not (message["content"] and "tool_calls" in last)


def _extend(last: Message, message: Message) -> None:
    last["content"] = join_texts(last["content"], message["content"])
    if "reasoning_content" in message:
        last["reasoning_content"] = join_texts(last.get("reasoning_content", ""), message["reasoning_content"])
    if "tool_calls" in message:
        last["tool_calls"] = [*last.get("tool_calls", ()), *message["tool_calls"]]
