"""The shapes of chats in records, and one shape for all of them: OpenAI's messages.

A record that is no chat raises `NotAChat`, with a reason for the books. Nothing is guessed: an unknown role, a message
without one, or content that is not text are reported, not repaired.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from gristmill.text.chats.jinja import Message

Shape = Literal["auto", "messages", "sharegpt", "alpaca", "prompt_completion"]
SHAPES: tuple[str, ...] = get_args(Shape)
AUTO, MESSAGES, SHAREGPT, ALPACA, PROMPT_COMPLETION = SHAPES

ASSISTANT = "assistant"
SYSTEM = "system"
USER = "user"
TOOL = "tool"
ROLES = (SYSTEM, "developer", USER, ASSISTANT, TOOL)
_SPEAKERS = {
    "human": USER,
    "user": USER,
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bing": ASSISTANT,
    "bard": ASSISTANT,
    "model": ASSISTANT,
    "assistant": ASSISTANT,
    "function_call": ASSISTANT,
    "system": SYSTEM,
    "tool": TOOL,
    "observation": TOOL,
    "function_response": TOOL,
}
"""Roles by the names that ShareGPT files use."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
_TRAIN = "train"


class NotAChat(Exception):
    """A record is no conversation: `reason` is counted, `message` says what is wrong."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in the form that templates read, with tools and variables."""

    messages: list[Message]
    tools: list[Any] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    """`chat_template_kwargs` of the record: `enable_thinking` and the like."""
    marks: Mapping[int, bool] = field(default_factory=dict)
    """Messages that say themselves whether they are trained on (`train: false`)."""

    def first(self, count: int) -> Conversation:
        """Return the conversation with only its first `count` messages."""
        return Conversation(self.messages[:count], self.tools, self.variables, self.marks)

    def remove_messages(self, indexes: Collection[int]) -> Conversation:
        """Return the conversation without some messages."""
        remaining = [index for index in range(len(self.messages)) if index not in indexes]
        marks = {new: self.marks[index] for new, index in enumerate(remaining) if index in self.marks}
        return Conversation([self.messages[index] for index in remaining], self.tools, self.variables, marks)

    def answers(self) -> list[int]:
        """List the indexes of the assistant's messages."""
        return [index for index, message in enumerate(self.messages) if message["role"] == ASSISTANT]


def detect_shape(record: Mapping[str, Any]) -> str:
    """Detect the shape of a record from its keys."""
    if record.get(MESSAGES) is not None:
        return MESSAGES
    if record.get("conversations", record.get("conversation")) is not None:
        return SHAREGPT
    if "instruction" in record and "output" in record:
        return ALPACA
    if "prompt" in record and "completion" in record:
        return PROMPT_COMPLETION
    keys = ", ".join(map(str, list(record)[:8])) or "no keys"
    raise NotAChat(
        "not_a_chat", f"no messages, conversations, instruction and output, or prompt and completion: {keys}"
    )


def parse_conversation(
    record: Mapping[str, Any],
    shape: str = AUTO,
    *,
    parse_arguments: bool = False,
    place_images: Callable[[Mapping[str, Any], list[Any]], list[Any]] | None = None,
) -> Conversation:
    r"""Parse the conversation of a record; `parse_arguments` decodes tool arguments that are JSON in a string.

    `place_images` puts the images of a record into its messages (`ChatImages.read`); without it there may be none.

    >>> parse_conversation({"instruction": "2 + 2?", "output": "4"}).messages
    [{'role': 'user', 'content': '2 + 2?'}, {'role': 'assistant', 'content': '4'}]
    """
    raw = _READERS[detect_shape(record) if shape == AUTO else shape](record)
    tools = record.get("tools")
    if isinstance(tools, str):
        tools = _parse_json(tools, "tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise NotAChat("invalid_tools", f"tools must be a list of objects, not {tools!r:.80}")
    variables = record.get("chat_template_kwargs") or {}
    if not isinstance(variables, dict) or any(name in RESERVED_VARIABLES for name in variables):
        raise NotAChat("invalid_variables", f"chat_template_kwargs cannot be {variables!r:.80}")
    if not raw:
        raise NotAChat("no_messages", "the conversation is empty")
    if place_images is not None:
        raw = place_images(record, raw)
    marks: dict[int, bool] = {}
    has_images = place_images is not None
    messages = [_parse_message(message, index, marks, has_images=has_images) for index, message in enumerate(raw)]
    if parse_arguments:
        for message in messages:
            if message.get("tool_calls"):
                message["tool_calls"] = [_with_parsed_arguments(call) for call in message["tool_calls"]]
    return Conversation(messages, tools or None, variables, marks)


RESERVED_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")


def _parse_message(raw: Any, index: int, marks: dict[int, bool], *, has_images: bool) -> Message:
    if not isinstance(raw, dict):
        raise NotAChat("invalid_message", f"message {index} is {type(raw).__name__}, not an object")
    role = raw.get("role")
    if len(raw) == 2 and role in ROLES and type(raw.get("content")) is str:  # most messages: nothing to change
        return raw
    if role == "function":
        role = TOOL
    if role not in ROLES:
        role_names = ", ".join(ROLES)
        raise NotAChat("unknown_role", f"message {index} has the role {role!r:.60}; known are {role_names}")
    message = dict(raw)
    message["role"] = role
    _check_content(message, index, has_images=has_images)
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise NotAChat("invalid_tool_calls", f"message {index}: tool_calls must be a list")
    for call in calls or ():
        _check_tool_call(call, index)
    mark = message.pop(_TRAIN, None)
    weight = message.pop("weight", None)
    if mark is None and weight is not None:  # the name in OpenAI's fine-tuning files
        mark = bool(weight)
    if mark is not None:
        if not isinstance(mark, bool):
            raise NotAChat("invalid_mark", f"message {index}: train must be true or false, not {mark!r:.60}")
        marks[index] = mark
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if reasoning is not None:  # under both names that templates use, like transformers
        if not isinstance(reasoning, str):
            raise NotAChat("content_not_text", f"message {index}: its reasoning is {type(reasoning).__name__}")
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def is_image_part(part: Any) -> bool:
    """Tell whether a part of a message is an image, in the form that `ChatImages.read` gives it."""
    return isinstance(part, dict) and part.get("type") == "image" and isinstance(part.get("image"), str)


def _check_content(message: Message, index: int, *, has_images: bool) -> None:
    content = message.get("content")
    if content is None:
        if not message.get("tool_calls"):
            raise NotAChat("missing_content", f"message {index} has neither content nor tool calls")
        return
    if isinstance(content, str):
        return
    parts = content if isinstance(content, list) else [None]
    for part in parts:
        is_text = isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        if not is_text and not (has_images and is_image_part(part)):
            hint = "; for images set `images`" if isinstance(part, dict) and "image" in str(part.get("type")) else ""
            raise NotAChat("content_not_text", f"message {index}: content must be text or parts of text{hint}")


def _check_tool_call(call: Any, index: int) -> None:
    if not isinstance(call, dict):
        raise NotAChat("invalid_tool_calls", f"message {index}: a tool call is {type(call).__name__}, not an object")
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise NotAChat("invalid_tool_calls", f"message {index}: a tool call without the name of its function")


def _with_parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function", call)
    try:
        parsed = json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError):
        return call  # an object already, or not JSON: written so by the model
    if not isinstance(parsed, dict):
        return call
    function = {**function, "arguments": parsed}
    return {**call, "function": function} if "function" in call else function


def _parse_json(text: str, noun: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotAChat(f"invalid_{noun}", f"{noun} is not JSON: {error}") from None


def _from_messages(record: Mapping[str, Any]) -> list[Any]:
    messages = record.get(MESSAGES)
    if isinstance(messages, str):
        messages = _parse_json(messages, MESSAGES)
    if not isinstance(messages, list):
        raise NotAChat("invalid_messages", f"messages must be a list, not {type(messages).__name__}")
    return messages


def _from_sharegpt(record: Mapping[str, Any]) -> list[Any]:
    turns = record.get("conversations", record.get("conversation"))
    if isinstance(turns, str):
        turns = _parse_json(turns, MESSAGES)
    if not isinstance(turns, list):
        raise NotAChat("invalid_messages", f"conversations must be a list, not {type(turns).__name__}")
    messages: list[Any] = []
    if isinstance(record.get("system"), str) and record["system"]:
        messages.append({"role": SYSTEM, "content": record["system"]})
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict):
            raise NotAChat("invalid_message", f"message {index} is {type(turn).__name__}, not an object")
        if "from" not in turn and "role" in turn:  # OpenAI's messages under ShareGPT's name
            messages.append(turn)
            continue
        speaker = turn.get("from")
        if not isinstance(speaker, str) or speaker not in _SPEAKERS:
            speaker_names = ", ".join(_SPEAKERS)
            raise NotAChat("unknown_role", f"message {index} is from {speaker!r:.60}; known are {speaker_names}")
        other_fields = {name: value for name, value in turn.items() if name not in ("from", "value")}
        messages.append({"role": _SPEAKERS[speaker], "content": turn.get("value"), **other_fields})
    return messages


def _from_alpaca(record: Mapping[str, Any]) -> list[Any]:
    question = record.get("instruction")
    details = record.get("input")
    if details is not None and not isinstance(details, str):
        raise NotAChat("content_not_text", f"input is {type(details).__name__}, not text")
    if isinstance(question, str) and details:
        question = f"{question}\n\n{details}"
    messages = [{"role": USER, "content": question}, {"role": ASSISTANT, "content": record.get("output")}]
    for turn in reversed(record.get("history") or ()):
        if not isinstance(turn, list) or len(turn) != 2:
            raise NotAChat("invalid_message", f"history must be pairs of question and answer, not {turn!r:.60}")
        messages[:0] = [{"role": USER, "content": turn[0]}, {"role": ASSISTANT, "content": turn[1]}]
    if isinstance(record.get("system"), str) and record["system"]:
        messages.insert(0, {"role": SYSTEM, "content": record["system"]})
    return messages


def _from_prompt_completion(record: Mapping[str, Any]) -> list[Any]:
    prompt, completion = record.get("prompt"), record.get("completion")
    if isinstance(prompt, list) and isinstance(completion, list):  # messages, as in TRL
        return [*prompt, *completion]
    return [{"role": USER, "content": prompt}, {"role": ASSISTANT, "content": completion}]


_READERS = {
    MESSAGES: _from_messages,
    SHAREGPT: _from_sharegpt,
    ALPACA: _from_alpaca,
    PROMPT_COMPLETION: _from_prompt_completion,
}
