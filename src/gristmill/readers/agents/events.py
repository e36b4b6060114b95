"""The events of a session's log: one class for each program that writes logs.

An event knows the event before it. Logs of Claude Code and pi say so themselves (`parentUuid`, `parentId`), so they may
branch; in those of Codex and OpenHands each event follows the one before it, unless something was taken back.

| log | what becomes a message | what else has a meaning |
|---|---|---|
| Claude Code | `user`, `assistant`: lines with one `message.id` are one message | `isSidechain`, `compact_boundary` |
| Codex | `response_item`, or the items themselves in old logs | `session_meta`, `compacted`, `thread_rolled_back` |
| pi | `message`, `custom_message`, `branch_summary` | `compaction` |
| OpenHands | `message`, other actions and their observations | `system`, `condensation` |

All other events are counted: `skipped_` and their name if they are known to be no part of what the model has seen,
else `unknown_event_` and their name.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from gristmill.readers.agents.messages import (
    ASSISTANT,
    USER,
    Message,
    count_name,
    join_texts,
    make_call,
    make_result,
    read_message,
    read_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

LOST = "\0lost"
"""The key of an event that could not be read: what follows it has lost its context."""


@dataclass(slots=True)
class Event:
    """An event of a log and what it says."""

    position: int
    num_bytes: int
    key: str
    parent: str | None
    messages: Sequence[Message] = ()
    turn: str = ""
    """Events of one turn are parts of one message."""
    is_side: bool = False
    """Whether it is in a conversation of a subagent."""
    compaction: Compaction | None = None
    has_results: bool = False
    """Whether results of tools were in it: what follows is another answer."""
    is_literal: bool = False
    """Whether its messages are a whole context, with results where they belong."""


@dataclass(slots=True)
class Compaction:
    """The context that a session continues with once its history is too long."""

    messages: Sequence[Message] = ()
    """What is said in the place of the history."""
    first_kept: str = ""
    """The first event that stays, after `messages`."""
    forgotten: frozenset[str] | None = None
    """The events that do not stay; None: only those from `first_kept` on do."""
    offset: int = 0
    """With `forgotten`: after how many events that stay the messages come."""


@dataclass
class LogFacts:
    """A record of what a log says besides its events."""

    counts: Counter[str] = field(default_factory=Counter)
    session: str = ""
    system: str = ""
    tools: list[Any] = field(default_factory=list)


class Log(Protocol):
    """A reader of the events of one program, in the order of the file."""

    name: ClassVar[str]
    facts: LogFacts

    def read(self, raw: dict[str, Any], position: int, num_bytes: int) -> Event | None:
        """Read an event; None if it is no part of the conversation."""

    def note_loss(self, position: int) -> None:
        """Note that an event could not be read."""


def find_log(raw: object) -> type[Log] | None:
    """Find the program that has written an event; None if it is none of a log, or can be of several."""
    if not isinstance(raw, dict):
        return None
    kind = raw.get("type")
    is_item = kind in _CODEX_ITEMS and "message" not in raw and "uuid" not in raw
    if isinstance(raw.get("payload"), dict) or is_item or (kind is None and {"id", "instructions"} <= raw.keys()):
        return CodexLog
    if "uuid" in raw or "sessionId" in raw or "leafUuid" in raw or kind == "file-history-snapshot":
        return ClaudeLog
    if kind in ("session", "message") and ("message" in raw or "cwd" in raw or "version" in raw):
        return PiLog
    is_action = isinstance(raw.get("action"), str) or isinstance(raw.get("observation"), str)
    if "source" in raw and (is_action or isinstance(raw.get("kind"), str)):
        return OpenHandsLog
    return None


def _get_text(raw: dict[str, Any], key: str) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) else ""


def _get_object(raw: dict[str, Any], key: str) -> dict[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


_CLAUDE_SKIPPED = frozenset(
    (
        *("summary", "file-history-snapshot", "queue-operation", "progress", "attachment", "system", "custom-title"),
        *("ai-title", "last-prompt", "agent-name", "agent-color", "agent-setting", "tag", "mode", "permission-mode"),
        *("pr-link", "saved_hook_context", "worktree-state", "content-replacement", "result", "speculation-accept"),
    )
)


class ClaudeLog:
    """Reads the log of a session of Claude Code, or of one of its subagents."""

    name: ClassVar[str] = "claude_code"

    def __init__(self) -> None:
        self.facts = LogFacts()

    def note_loss(self, position: int) -> None:
        """Do nothing: events name the event before them."""

    def read(self, raw: dict[str, Any], position: int, num_bytes: int) -> Event | None:
        counts = self.facts.counts
        kind, key = raw.get("type"), raw.get("uuid")
        self.facts.session = self.facts.session or _get_text(raw, "sessionId")
        message = raw.get("message")
        event: Event | None = None
        if isinstance(key, str):
            event = Event(position, num_bytes, key, raw.get("parentUuid"), is_side=raw.get("isSidechain") is True)
        if event is None or kind not in (USER, ASSISTANT) or not isinstance(message, dict):
            if event is not None and raw.get("subtype") == "compact_boundary":
                event.parent, event.compaction = None, Compaction()
            elif kind in _CLAUDE_SKIPPED:
                count_name(counts, "skipped", kind)
            else:
                count_name(counts, "unknown_event", kind)
        elif raw.get("isApiErrorMessage") or raw.get("isVisibleInTranscriptOnly"):
            counts["skipped_not_for_the_model"] += 1
        else:
            event.messages = read_message({"role": kind, "content": message.get("content")}, counts)
            if kind == ASSISTANT:
                event.turn = _get_text(message, "id")
            if raw.get("isCompactSummary") and event.parent is None:
                event.compaction = Compaction()
        return event


class PiLog:
    """Reads the log of a session of pi."""

    name: ClassVar[str] = "pi"
    _SKIPPED: ClassVar[frozenset[str]] = frozenset(
        ("model_change", "thinking_level_change", "label", "custom", "session_info", "usage", "leaf", "ephemeral")
    )

    def __init__(self) -> None:
        self.facts = LogFacts()
        self._last: str | None = None

    def note_loss(self, position: int) -> None:
        self._last = f"{LOST}{position}"

    def read(self, raw: dict[str, Any], position: int, num_bytes: int) -> Event | None:
        counts = self.facts.counts
        kind = raw.get("type")
        if kind == "session":
            self.facts.session = _get_text(raw, "id")
            return None
        # The first version of the format has no ids: there each entry follows the one before it.
        key = raw.get("id") if "parentId" in raw else None
        parent = raw.get("parentId") if isinstance(key, str) else self._last
        event = Event(position, num_bytes, key if isinstance(key, str) else f"at {position}", parent)
        self._last = event.key
        event.turn = event.key
        if kind == "message":
            event.messages = self._read_message(_get_object(raw, "message"))
        elif kind == "compaction":
            summary: Message = {"role": USER, "content": _get_text(raw, "summary")}
            event.compaction = Compaction([summary], _get_text(raw, "firstKeptEntryId"))
        elif kind == "branch_summary":
            event.messages = [{"role": USER, "content": _get_text(raw, "summary")}]
        elif kind == "custom_message":
            event.messages = [{"role": USER, "content": read_text(raw.get("content"), counts)}]
        else:
            count_name(counts, "skipped" if kind in self._SKIPPED else "unknown_event", kind)
        return event

    def _read_message(self, message: dict[str, Any]) -> list[Message]:
        role = message.get("role")
        if role == "bashExecution":  # a command of the user, which the model is told of
            output = f"$ {_get_text(message, 'command')}\n{_get_text(message, 'output')}"
            return [] if message.get("excludeFromContext") else [{"role": USER, "content": output}]
        if role in ("branchSummary", "compactionSummary"):
            return [{"role": USER, "content": _get_text(message, "summary")}]
        if role in ("custom", "hookMessage"):
            return [{"role": USER, "content": read_text(message.get("content"), self.facts.counts)}]
        if message.get("stopReason") in ("error", "aborted") and not message.get("content"):
            self.facts.counts["skipped_not_for_the_model"] += 1
            return []
        return read_message(message, self.facts.counts)


_CODEX_ITEMS = frozenset(
    (
        *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call"),
        *("custom_tool_call_output", "local_shell_call"),
    )
)
_CODEX_SKIPPED_ITEMS = frozenset(
    ("web_search_call", "image_generation_call", "ghost_snapshot", "compaction", "compaction_summary", "other")
)


class CodexLog:
    """Reads the log of a session of Codex (a rollout)."""

    name: ClassVar[str] = "codex"

    def __init__(self) -> None:
        self.facts = LogFacts()
        self._last: str | None = None
        self._turn_starts: list[str | None] = []
        """For each of the user's messages the event before it."""

    def note_loss(self, position: int) -> None:
        self._last = f"{LOST}{position}"

    def read(self, raw: dict[str, Any], position: int, num_bytes: int) -> Event | None:
        counts = self.facts.counts
        kind, payload = raw.get("type"), _get_object(raw, "payload")
        if kind == "session_meta":
            self._read_session(payload)
        elif kind == "response_item" or kind in _CODEX_ITEMS:
            messages = self._read_item(payload if kind == "response_item" else raw)
            if messages:
                event = Event(position, num_bytes, f"at {position}", self._last, messages)
                if messages[0]["role"] == USER:
                    self._turn_starts.append(self._last)
                self._last = event.key
                return event
        elif kind == "compacted":
            self._last = f"at {position}"
            self._turn_starts = []
            return Event(position, num_bytes, self._last, None, compaction=self._read_compaction(payload))
        elif kind == "event_msg" and payload.get("type") == "thread_rolled_back":
            num_turns = payload.get("num_turns")
            if isinstance(num_turns, int) and 0 < num_turns <= len(self._turn_starts):
                self._last = self._turn_starts[-num_turns]
                del self._turn_starts[-num_turns:]
            else:
                counts["unknown_rollback"] += 1
                self._last = f"{LOST}{position}"
        elif kind in ("event_msg", "turn_context", "world_state", "state"):
            count_name(counts, "skipped", kind)
        elif kind is None and isinstance(raw.get("id"), str) and "timestamp" in raw:  # the first line of old logs
            self._read_session(raw)
        elif kind is None and "record_type" in raw:
            counts["skipped_state"] += 1
        else:
            count_name(counts, "unknown_event", kind)
        return None

    def _read_session(self, payload: dict[str, Any]) -> None:
        facts = self.facts
        facts.session = facts.session or _get_text(payload, "id")
        instructions = payload.get("base_instructions") or payload.get("instructions")
        facts.system = facts.system or read_text(instructions, facts.counts)
        tools = payload.get("dynamic_tools")
        for tool in tools if isinstance(tools, list) and not facts.tools else ():
            if isinstance(tool, dict):
                facts.tools.append(_make_tool(tool, tool.get("inputSchema")))

    def _read_compaction(self, payload: dict[str, Any]) -> Compaction:
        history = payload.get("replacement_history")
        if isinstance(history, list):
            items = [self._read_item(item) for item in history if isinstance(item, dict)]
            return Compaction([message for messages in items for message in messages])
        summary = read_text(payload.get("message"), self.facts.counts)
        return Compaction([{"role": USER, "content": summary}] if summary else [])

    def _read_item(self, item: dict[str, Any]) -> list[Message]:
        counts = self.facts.counts
        kind = item.get("type", "message")
        if kind == "message":
            return read_message(item, counts)
        if kind == "reasoning":
            text = read_text(item.get("content"), counts)
            if not text:
                text = read_text(item.get("summary"), counts)
                counts["summarized_reasoning" if text else "hidden_reasoning"] += 1
            return [{"role": ASSISTANT, "content": "", "reasoning_content": text}] if text else []
        call_id = item.get("call_id") or item.get("id")
        if kind == "function_call":
            call = make_call(item.get("name"), item.get("arguments"), call_id)
        elif kind == "custom_tool_call":  # its input is free text, such as a patch
            call = make_call(item.get("name"), {"input": _get_text(item, "input")}, call_id)
        elif kind == "local_shell_call":
            call = make_call("local_shell", _get_object(item, "action"), call_id)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            output = item.get("output")
            if isinstance(output, dict) and "content" in output:
                output = output["content"]
            return [make_result(call_id, output, counts)]
        else:
            count_name(counts, "skipped" if kind in _CODEX_SKIPPED_ITEMS else "unknown_event", kind)
            return []
        return [{"role": ASSISTANT, "content": "", "tool_calls": [call]}]


def _make_tool(tool: dict[str, Any], parameters: Any) -> dict[str, Any]:
    function: dict[str, Any] = {"name": _get_text(tool, "name"), "description": _get_text(tool, "description")}
    if isinstance(parameters, dict):
        function["parameters"] = parameters
    return {"type": "function", "function": function}


_THOUGHTS = ("thought", "final_thought")
_NO_ARGUMENTS = frozenset((*_THOUGHTS, "security_risk", "confirmation_state", "blocking", "is_confirmed", "hidden"))


class OpenHandsLog:
    """Reads the events of OpenHands: of its server (`action`, `observation`) and of its SDK (`kind`)."""

    name: ClassVar[str] = "openhands"
    _SKIPPED: ClassVar[frozenset[str]] = frozenset(
        (
            *("null", "change_agent_state", "agent_state_changed", "recall", "condensation_request"),
            *(
                "ConversationStateUpdateEvent",
                "PauseEvent",
                "CondensationRequest",
                "TokenEvent",
                "ConversationErrorEvent",
            ),
        )
    )

    def __init__(self) -> None:
        self.facts = LogFacts()
        self._last: str | None = None

    def note_loss(self, position: int) -> None:
        self._last = f"{LOST}{position}"

    def read(self, raw: dict[str, Any], position: int, num_bytes: int) -> Event | None:
        key = raw.get("id")
        event = Event(position, num_bytes, str(key) if isinstance(key, (str, int)) else f"at {position}", self._last)
        kind = raw.get("kind") or raw.get("action") or raw.get("observation")
        if kind in self._SKIPPED:
            count_name(self.facts.counts, "skipped", kind)
            return None
        if isinstance(raw.get("kind"), str):
            is_known = self._read_sdk(raw, raw["kind"], event)
        elif isinstance(raw.get("action"), str):
            is_known = self._read_action(raw, raw["action"], event)
        elif isinstance(raw.get("observation"), str):
            metadata = _get_object(raw, "tool_call_metadata")
            call_id = _get_text(metadata, "tool_call_id") or f"event {raw.get('cause')}"
            event.messages = [make_result(call_id, raw.get("content"), self.facts.counts)]
            is_known = True
        else:
            is_known = False
        if not is_known:
            count_name(self.facts.counts, "unknown_event", kind)
            return None
        if event.messages or event.compaction is not None:
            event.turn = event.turn or event.key
            self._last = event.key
            return event
        return None

    def _read_action(self, raw: dict[str, Any], action: str, event: Event) -> bool:
        arguments, source = _get_object(raw, "args"), raw.get("source")
        thought = ""
        for name in _THOUGHTS:
            thought = join_texts(thought, _get_text(arguments, name))
        if action == "system":
            self._read_system(arguments.get("content"), arguments.get("tools"))
        elif action == "message":
            role = USER if source in ("user", "environment") else ASSISTANT
            event.messages = [{"role": role, "content": _get_text(arguments, "content")}]
        elif action == "condensation":
            event.compaction = _read_condensation(arguments, event.key)
        elif source == "agent":
            metadata = _get_object(raw, "tool_call_metadata")
            call_id = _get_text(metadata, "tool_call_id")
            call = self._find_call(_get_object(metadata, "model_response"), call_id, event)
            if call is None:
                inputs = {name: value for name, value in arguments.items() if name not in _NO_ARGUMENTS}
                name = _get_text(metadata, "function_name") or action
                call = make_call(name, inputs, call_id or f"event {raw.get('id')}")
            event.messages = [{"role": ASSISTANT, "content": thought, "tool_calls": [call]}]
        else:
            return False
        return True

    def _find_call(self, response: dict[str, Any], call_id: str, event: Event) -> Message | None:
        """Find the call as the model wrote it, with its own arguments."""
        event.turn = _get_text(response, "id")
        choices = response.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            message = _get_object(choice, "message") if isinstance(choice, dict) else {}
            for call in message.get("tool_calls") or ():
                function = _get_object(call, "function") if isinstance(call, dict) else {}
                if function and call.get("id") == call_id:
                    return make_call(function.get("name"), function.get("arguments"), call_id)
        return None

    def _read_sdk(self, raw: dict[str, Any], kind: str, event: Event) -> bool:
        counts = self.facts.counts
        call_id = _get_text(raw, "tool_call_id")
        if kind == "SystemPromptEvent":
            self._read_system(raw.get("system_prompt"), raw.get("tools"))
        elif kind == "MessageEvent":
            event.messages = read_message(_get_object(raw, "llm_message"), counts)
        elif kind == "ActionEvent":
            call = _get_object(raw, "tool_call")
            function = _get_object(call, "function") or call
            new_call = make_call(raw.get("tool_name") or function.get("name"), function.get("arguments"), call_id)
            message = {"role": ASSISTANT, "content": read_text(raw.get("thought"), counts), "tool_calls": [new_call]}
            if reasoning := _get_text(raw, "reasoning_content"):
                message["reasoning_content"] = reasoning
            event.messages, event.turn = [message], _get_text(raw, "llm_response_id")
        elif kind in ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation"):
            said = raw.get("observation") or raw.get("error") or raw.get("rejection_reason")
            if isinstance(said, dict):
                said = said.get("content", said.get("output", said))
            event.messages = [make_result(call_id, said, counts)]
        elif kind == "Condensation":
            event.compaction = _read_condensation(raw, event.key)
        else:
            return False
        return True

    def _read_system(self, content: Any, tools: Any) -> None:
        self.facts.system = self.facts.system or read_text(content, self.facts.counts)
        for tool in tools if isinstance(tools, list) and not self.facts.tools else ():
            if isinstance(tool, dict):
                is_complete = isinstance(tool.get("function"), dict)
                self.facts.tools.append(tool if is_complete else _make_tool(tool, tool.get("parameters")))


def _read_condensation(raw: dict[str, Any], key: str) -> Compaction:
    forgotten = raw.get("forgotten_event_ids")
    first, last = raw.get("forgotten_events_start_id"), raw.get("forgotten_events_end_id")
    if not isinstance(forgotten, list):
        forgotten = range(first, last + 1) if isinstance(first, int) and isinstance(last, int) else []
    summary, offset = _get_text(raw, "summary"), raw.get("summary_offset")
    return Compaction(
        [{"role": USER, "content": summary}] if summary else [],
        forgotten=frozenset(map(str, forgotten)) | {key},
        offset=offset if isinstance(offset, int) else 0,
    )
