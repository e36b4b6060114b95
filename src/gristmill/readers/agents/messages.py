"""Messages of APIs as OpenAI's: texts, reasoning, tool calls and tool results, each under one name.

The parts of Anthropic's messages, OpenAI's responses and pi's messages differ in names, not in what they mean:

    text, input_text, output_text               → content
    thinking, reasoning                         → reasoning_content
    tool_use, toolCall, function_call           → tool_calls, with arguments as an object
    tool_result, toolResult, function_call_output → a message of the role tool

What no text can hold is left out and said: an image becomes `[image left out]`. Everything that is not understood is
counted by its name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.json_values import decode_json, encode_json

if TYPE_CHECKING:
    from collections import Counter

Message = dict[str, Any]

ASSISTANT, SYSTEM, TOOL, USER = "assistant", "system", "tool", "user"
_ROLES = {
    "ai": ASSISTANT,
    "model": ASSISTANT,
    "assistant": ASSISTANT,
    "developer": SYSTEM,
    "system": SYSTEM,
    "tool": TOOL,
    "toolResult": TOOL,
    "function": TOOL,
    "user": USER,
    "human": USER,
}
_TEXT_PARTS = frozenset(("text", "input_text", "output_text", "summary_text", "reasoning_text"))
_MEDIA_PARTS = {
    "image": "image",
    "input_image": "image",
    "image_url": "image",
    "document": "document",
    "input_file": "document",
    "input_audio": "audio",
}
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_KEPT_KEYS = ("name", "train", "weight", "loss")
"""What a message of a row may say besides its words: the name of a speaker, and marks for training."""
_SEPARATOR = "\n\n"
MAX_NAMES = 40
"""The most names of unknown events that are counted one by one."""
_BINARY_SHARE = 0.1
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")
BINARY_TEXT = "[binary output left out]"


def count_name(counts: Counter[str], prefix: str, name: object) -> None:
    """Count something by a name from a file; there may be any number of names, of which the first ones are told."""
    key = f"{prefix}_{name}"[:80] if isinstance(name, str) and name else f"{prefix}_unnamed"
    if key not in counts and sum(known.startswith(prefix) for known in counts) >= MAX_NAMES:
        key = f"{prefix}_more"
    counts[key] += 1


def join_texts(first: str, second: str) -> str:
    r"""Join two texts of one message; an empty one adds nothing.

    >>> join_texts("a", ""), join_texts("a", "b")
    ('a', 'a\n\nb')
    """
    return first + _SEPARATOR + second if first and second else first or second


def clean_result(text: str, counts: Counter[str]) -> str:
    """Return the text of a tool's result; what a program wrote of a binary file is no text.

    >>> from collections import Counter
    >>> clean_result("ELF" + chr(0) * 9, Counter())
    '[binary output left out]'
    """
    if "\x00" in text or "\ufffd" in text:
        num_control = sum(1 for _ in _CONTROL.finditer(text))
        if num_control > _BINARY_SHARE * len(text):
            counts["binary_results"] += 1
            return BINARY_TEXT
    return text


def read_text(content: Any, counts: Counter[str]) -> str:
    """Read a content that holds texts and media only, such as a tool's result."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return "" if content is None else encode_json(content).decode()
    text = ""
    for part in content:
        if isinstance(part, str):
            text = join_texts(text, part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            text = join_texts(text, part["text"])
        elif isinstance(part, dict) and part.get("type") in _MEDIA_PARTS:
            text = join_texts(text, _leave_out(part, counts))
        elif isinstance(part, dict) and "type" not in part:  # a value of a tool that answers in JSON
            text = join_texts(text, encode_json(part).decode())
        else:
            count_name(counts, "unknown_part", part.get("type") if isinstance(part, dict) else None)
    return text


def _leave_out(part: dict[str, Any], counts: Counter[str]) -> str:
    kind = _MEDIA_PARTS[part["type"]]
    counts[f"{kind}s_left_out"] += 1
    return f"[{kind} left out]"


def make_call(name: Any, arguments: Any, call_id: Any) -> Message:
    """Make a tool call. Arguments are an object if they are one or its JSON; what a model wrote wrongly stays text."""
    if isinstance(arguments, str):
        try:
            parsed = decode_json(arguments)
        except (msgspec.DecodeError, RecursionError):
            parsed = arguments
        arguments = parsed if isinstance(parsed, dict) else arguments
    call: Message = {"id": call_id} if isinstance(call_id, str) else {}
    name = name if isinstance(name, str) and name else "unknown"
    return {**call, "type": "function", "function": {"name": name, "arguments": {} if arguments is None else arguments}}


def make_result(call_id: Any, content: Any, counts: Counter[str], name: Any = None) -> Message:
    """Make the message of a tool's result."""
    message: Message = {"role": TOOL, "content": clean_result(read_text(content, counts), counts)}
    if isinstance(name, str) and name:
        message["name"] = name
    if isinstance(call_id, str) and call_id:
        message["tool_call_id"] = call_id
    return message


def read_message(raw: Message, counts: Counter[str]) -> list[Message]:
    """Read a message of any API; a user's message with tool results becomes several.

    >>> from collections import Counter
    >>> read_message({"role": "ai", "text": "Hi."}, Counter())
    [{'role': 'assistant', 'content': 'Hi.'}]
    """
    role = _ROLES.get(raw["role"]) if isinstance(raw.get("role"), str) else None
    if role is None:
        count_name(counts, "unknown_role", raw.get("role"))
        return []
    content = raw.get("content", raw.get("text"))
    if role == TOOL:
        ids = raw.get("tool_call_ids")
        call_id = (
            raw.get("tool_call_id") or raw.get("toolCallId") or (ids[0] if isinstance(ids, list) and ids else None)
        )
        return [make_result(call_id, content, counts, raw.get("name") or raw.get("toolName"))]
    message: Message = {"role": role, "content": ""}
    results: list[Message] = []
    if isinstance(content, str):
        message["content"] = content
    elif content is not None:
        _add_parts(message, results, content, counts)
    for key in _REASONING_KEYS:
        if isinstance(raw.get(key), str) and raw[key]:
            message["reasoning_content"] = raw[key]
            break
    calls = raw.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        _add_call(message, call, counts)
    message |= {key: raw[key] for key in _KEPT_KEYS if raw.get(key) is not None}
    is_said = message["content"] or "reasoning_content" in message or "tool_calls" in message or not results
    return [*results, message] if is_said else results


def _add_call(message: Message, call: Any, counts: Counter[str]) -> None:
    """Add an OpenAI call, which may be JSON in a string, as tables without nested columns have it."""
    if isinstance(call, str):
        try:
            call = decode_json(call)
        except (msgspec.DecodeError, RecursionError):
            call = None
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        count_name(counts, "unknown_part", "tool_calls")
        return
    new_call = make_call(function.get("name"), function.get("arguments"), call.get("id"))
    message.setdefault("tool_calls", []).append(new_call)


def _add_parts(message: Message, results: list[Message], parts: Any, counts: Counter[str]) -> None:
    for part in parts if isinstance(parts, list) else [parts]:
        if isinstance(part, str):
            message["content"] = join_texts(message["content"], part)
            continue
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
            message["content"] = join_texts(message["content"], part["text"])
        elif kind == "thinking":
            thinking = part.get("thinking")
            if isinstance(thinking, str) and thinking:
                message["reasoning_content"] = join_texts(message.get("reasoning_content", ""), thinking)
            else:  # only its signature was written
                counts["hidden_reasoning"] += 1
        elif kind == "redacted_thinking":
            counts["hidden_reasoning"] += 1
        elif kind in ("tool_use", "toolCall", "server_tool_use"):
            call = make_call(part.get("name"), part.get("input", part.get("arguments")), part.get("id"))
            message.setdefault("tool_calls", []).append(call)
        elif kind in ("tool_result", "web_search_tool_result"):
            results.append(make_result(part.get("tool_use_id"), part.get("content"), counts))
        elif kind in _MEDIA_PARTS:
            message["content"] = join_texts(message["content"], _leave_out(part, counts))
        else:
            count_name(counts, "unknown_part", kind)
