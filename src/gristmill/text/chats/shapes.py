"""The shapes of chats in records, and one shape for all of them: OpenAI's messages.

A record that is no chat raises `NotAChat`, with a reason for the books. Nothing is guessed: an unknown role, a message
without one, or content that is not text are reported, not repaired.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from gristmill.text.chats.templates import Message

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
    "tool_call": ASSISTANT,
    "system": SYSTEM,
    "tool": TOOL,
    "observation": TOOL,
    "function_response": TOOL,
    "tool_response": TOOL,
}
"""Roles by the names that ShareGPT files use."""
_CALLERS = ("function_call", "tool_call")
"""Names of turns whose text is a call, or a list of calls, in JSON."""
IMAGE_KEYS = ("images", "image")
"""Keys of records that list images."""
IMAGE_TAG = "<image>"
"""What stands in a text for the next image of the record."""
_MEDIA = {IMAGE_TAG: IMAGE_KEYS, "<video>": ("videos", "video"), "<audio>": ("audios", "audio")}
"""Tags in texts, and the keys of records that list what they stand for."""
_ENABLE_THINKING = "enable_thinking"
_SYSTEM_KEYS = ("system", "system_prompt", "system_message", "system_instruction")
_TOOLS_KEYS = ("tools", "functions")
_BAD_ANSWER_KEYS = ("label", "kto_tag")
_GOOD_LABELS = frozenset(("true", "1", "1.0", "yes", "good", "desirable"))
_REASONING = ("reasoning_content", "thinking", "reasoning")
_REASONING_DETAILS = "reasoning_details"
_TRAIN, _WEIGHT = "train", "weight"
_MARKS = (_TRAIN, "training", "loss", "train_on_turn", _WEIGHT, "loss_weight")
"""Names of marks: axolotl's, ms-swift's and OpenAI's among them."""
PARTIAL_MARK = "train_detail"
"""axolotl's marks of parts of a message."""
KEYS_WITH_MEANING = frozenset(
    (
        *("chat_template_kwargs", _ENABLE_THINKING, "conversations", "conversation"),
        *(*chain(*_MEDIA.values()), *_SYSTEM_KEYS, *_TOOLS_KEYS, *_BAD_ANSWER_KEYS, *_MARKS),
    )
)
"""Keys of records that say something about a chat besides its messages."""
_KEYS_OF_SHAPES = {
    MESSAGES: ("messages",),
    SHAREGPT: ("conversations", "conversation"),
    ALPACA: ("instruction", "input", "output", "history"),
    PROMPT_COMPLETION: ("prompt", "completion"),
}
_KEYS_OF_MESSAGES = frozenset(("role", "content", "tool_calls", *_REASONING))
_is_part_word = re.compile(
    r"(?:answers?|attachments?|audios?|calls?|chosen|citations?|completions?|contents?|context|conversations?|cot|"
    r"documents?|explanation|files?|functions?|history|images?|inputs?|instructions?|messages?|outputs?|preprompt|"
    r"prompts?|questions?|rationale|reasoning|rejected|responses?|system|text|thinking|thoughts?|tools?|videos?)"
).fullmatch
_METADATA_ENDS = frozenset(
    [
        "count",
        "date",
        "format",
        "hash",
        "id",
        "ids",
        "kind",
        "language",
        "length",
        "model",
        "name",
        "score",
        "source",
        "type",
        "url",
    ]
)
CHAT_PARTS = {
    "prompt": "prompt",
    "response": "completion",
    "system": "system",
    "messages": "conversations",
    "tools": "tools",
}
"""What `fields` can name, and under which key it is read."""
_USUAL_NAMES = {
    "prompt": ("question", "query", "prompt", "instruction", "problem", "input", "user", "human", "inputs"),
    "response": ("answer", "response", "output", "completion", "reply", "solution", "assistant", "target", "targets"),
    "system": ("context", "system_prompt", "system"),
}
_looks_like_mark = re.compile(r"(?:.*_)?(?:train(?:ed|able|ing)?|loss|mask(?:ed)?|weight|ignored?)(?:_.*)?").fullmatch


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
    weights: Mapping[int, float] = field(default_factory=dict)
    """The weights of messages that have one other than 0 and 1."""
    prompt_length: int = 0
    """Number of messages that only lead up to the rest: the prompt of a completion, if there are answers in it."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """Counts of what is unusual in the record, for the books."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """Fields of messages that may say what is trained, and are not understood: how many messages have each."""

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but roles and contents."""
        if self.tools or self.variables or self.marks or self.notes or self.unread or self.prompt_length:
            return False
        return all(len(message) == 2 and type(message.get("content")) is str for message in self.messages)

    def first(self, count: int) -> Conversation:
        """Return the conversation with only its first `count` messages."""
        return replace(self, messages=self.messages[:count])

    def remove_messages(self, indexes: Collection[int]) -> Conversation:
        """Return the conversation without some messages."""
        remaining = [index for index in range(len(self.messages)) if index not in indexes]
        marks = {new: self.marks[index] for new, index in enumerate(remaining) if index in self.marks}
        weights = {new: self.weights[index] for new, index in enumerate(remaining) if index in self.weights}
        messages = [self.messages[index] for index in remaining]
        prompt_length = sum(index < self.prompt_length for index in remaining)
        return replace(self, messages=messages, marks=marks, weights=weights, prompt_length=prompt_length)

    def answers(self) -> list[int]:
        """List the indexes of the assistant's messages."""
        return [index for index, message in enumerate(self.messages) if message["role"] == ASSISTANT]


def list_shapes(record: Mapping[str, Any]) -> list[str]:
    """List the shapes that the keys of a record fit; the first of them is read."""
    fits = (
        (MESSAGES, record.get(MESSAGES) is not None),
        (SHAREGPT, _find_turns(record) is not None),
        (ALPACA, "instruction" in record and "output" in record),
        (PROMPT_COMPLETION, "prompt" in record and "completion" in record),
    )
    return [shape for shape, does_fit in fits if does_fit]


def _rename_fields(record: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return a record with what `fields` names under the keys that are read, and without other chats."""
    for part, name in fields.items():
        if name not in record and part not in ("system", "tools"):
            raise NotAChat("missing_field", f"there is no {name!r}, which `fields` names; keys: {_list_keys(record)}")
    others = KEYS_WITH_MEANING.difference(fields.values(), *_KEYS_OF_SHAPES.values())
    named = {CHAT_PARTS[part]: record[name] for part, name in fields.items() if name in record}
    return {name: value for name, value in record.items() if name in others} | named


def suggest_render(record: Mapping[str, Any]) -> str:
    """Suggest the step for a record that looks like a chat; empty if it does not.

    >>> suggest_render({"messages": []}), suggest_render({"id": 7, "question": "2 + 2?", "answer": "4"})
    ('render', 'render: {fields: {prompt: question, response: answer}}')
    """
    if list_shapes(record):
        return "render"
    fields = ", ".join(f"{part}: {name}" for part, name in _suggest_fields(record).items())
    return f"render: {{fields: {{{fields}}}}}" if fields else ""


def _suggest_fields(record: Mapping[str, Any]) -> dict[str, str]:
    for key, value in record.items():
        if _are_messages(value):
            return {"messages": str(key)}
    keys = {str(key).lower(): str(key) for key, value in record.items() if isinstance(value, str)}
    parts = {part: keys[name] for part, names in _USUAL_NAMES.items() for name in reversed(names) if name in keys}
    return parts if {"prompt", "response"} <= parts.keys() else {}


def count_unused(
    record: Mapping[str, Any], conversation: Conversation, template_words: Collection[str], fields: Collection[str]
) -> Counter[str]:
    """Count the fields of a record and its messages that look like part of the chat, and that nothing reads.

    Args:
        record: The record.
        conversation: What was read of it. A text that occurs in it is not lost.
        template_words: Words of the template, which may read fields of messages by these names.
        fields: Keys that `fields` names.
    """
    texts = [_join_texts(message.get("content")) for message in conversation.messages]

    def is_part(name: str, value: Any) -> bool:
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
        if words[-1] in _METADATA_ENDS or value in (None, "", [], {}):
            return False
        if isinstance(value, str | list | dict) and any(map(_is_part_word, words)):
            return not isinstance(value, str) or not any(value.strip() in text for text in texts)
        return _looks_like_mark("_".join(words)) is not None and not isinstance(value, str)

    shapes = list_shapes(record)
    read = KEYS_WITH_MEANING.union(fields, *(_KEYS_OF_SHAPES[shape] for shape in shapes))
    unused = Counter(name for name, value in record.items() if name not in read and is_part(name, value))
    for message in conversation.messages:
        others = [name for name in message if name not in _KEYS_OF_MESSAGES and name not in conversation.unread]
        unused.update(name for name in others if name not in template_words and is_part(name, message[name]))
    return unused


def _list_keys(record: Mapping[str, Any]) -> str:
    return ", ".join(map(str, list(record)[:8])) or "no keys"


def _find_turns(record: Mapping[str, Any]) -> Any:
    turns = record.get("conversations")
    return record.get("conversation") if turns is None else turns


def parse_conversation(
    record: Mapping[str, Any],
    shape: str = AUTO,
    *,
    parse_arguments: bool = False,
    place_images: Callable[[Mapping[str, Any], list[Any]], list[Any]] | None = None,
    fields: Mapping[str, str] | None = None,
) -> Conversation:
    r"""Parse the conversation of a record; `parse_arguments` decodes tool arguments that are JSON in a string.

    `place_images` puts the images of a record into its messages (`ChatImages.read`); without it there may be none.
    `fields` names the parts of a chat that has none of the shapes.

    >>> parse_conversation({"instruction": "2 + 2?", "output": "4"}).messages
    [{'role': 'user', 'content': '2 + 2?'}, {'role': 'assistant', 'content': '4'}]
    """
    notes: dict[str, int] = {}
    if fields:
        record = _rename_fields(record, fields)
    if shape == AUTO:
        shapes = list_shapes(record)
        if not shapes:
            raise NotAChat("not_a_chat", _describe_strange_record(record))
        if len(shapes) > 1:
            notes["several_shapes"] = 1
        shape = shapes[0]
    _refuse_bad_answer(record, "the answer")
    raw = _add_system(record, _READERS[shape](record))
    tools = _read_tools(record, shape)
    variables = record.get("chat_template_kwargs") or {}
    if not isinstance(variables, dict) or any(name in RESERVED_VARIABLES for name in variables):
        raise NotAChat("invalid_variables", f"chat_template_kwargs cannot be {variables!r:.80}")
    if isinstance(record.get(_ENABLE_THINKING), bool):  # the variable of templates, next to the messages
        variables = {_ENABLE_THINKING: record[_ENABLE_THINKING], **variables}
    if not raw:
        raise NotAChat("no_messages", "the conversation is empty")
    if place_images is not None:
        raw = place_images(record, raw)
    else:
        _refuse_media(record)
    marks: dict[int, float] = {}
    unread = _count_unread(record, shape)
    has_images = place_images is not None
    messages = [
        _parse_message(message, index, marks, unread, has_images=has_images) for index, message in enumerate(raw)
    ]
    if parse_arguments:
        for message in messages:
            if message.get("tool_calls"):
                message["tool_calls"] = [_with_parsed_arguments(call) for call in message["tool_calls"]]
    num_prompted = 0
    if shape == PROMPT_COMPLETION:
        num_prompted = len(messages) - len(_read_text_or_messages(record, "completion", ASSISTANT))
        if not any(message["role"] == ASSISTANT for message in messages[:num_prompted]):
            num_prompted = 0
    weights = {index: weight for index, weight in marks.items() if weight not in (0, 1)}
    is_trained = {index: bool(weight) for index, weight in marks.items()}
    return Conversation(messages, tools or None, variables, is_trained, weights, num_prompted, notes, unread)


def _count_unread(record: Mapping[str, Any], shape: str) -> Counter[str]:
    """Count the fields of a record that mean something for a chat, and have no effect."""
    # Marks of whole records have none: they may be about something else, such as weights of a mixture.
    marks = [name for name in _MARKS if record.get(name) is not None]
    unread = Counter(name for name in marks if record[name] in (False, 0) or ("weight" in name and record[name] != 1))
    if not isinstance(record.get(_ENABLE_THINKING), bool | None):
        unread[_ENABLE_THINKING] += 1
    for names in (_SYSTEM_KEYS, _TOOLS_KEYS, *([_KEYS_OF_SHAPES[SHAREGPT]] if shape == SHAREGPT else [])):
        values = {name: record[name] for name in names if record.get(name)}
        unread.update(name for name, value in values.items() if value != next(iter(values.values())))
    return unread


def _describe_strange_record(record: Mapping[str, Any]) -> str:
    if record.keys() >= {"chosen", "rejected"}:
        return "chosen and rejected are a preference pair, which is not trained"
    hint = suggest_render(record) or "render: {fields: {prompt: …, response: …}}"
    return (
        f"no messages, conversations, instruction and output, or prompt and completion: {_list_keys(record)}; "
        f"`{hint}` reads other keys"
    )


RESERVED_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")


def _refuse_bad_answer(marked: Mapping[str, Any], noun: str) -> None:
    """Refuse what is labeled as in files for KTO, unless the label clearly says that the answer is good."""
    for key in _BAD_ANSWER_KEYS:
        value = marked.get(key)
        if value is not None and str(value).strip().lower() not in _GOOD_LABELS:
            raise NotAChat(
                "bad_answer",
                f"{key}: {value!r:.60} does not say that {noun} is good (KTO), and other answers are not trained; a "
                "`filter` before `render` leaves such records out, a `map` removes a label that means something else",
            )


def _read_tools(record: Mapping[str, Any], shape: str) -> Any:
    """Read `tools`, or OpenAI's older `functions`, which are the same without a type, like the tools of ShareGPT."""
    name = next((name for name in _TOOLS_KEYS if record.get(name)), "tools")
    tools = record.get(name)
    if isinstance(tools, str):
        tools = _parse_json(tools, "tools") if tools.strip() else None
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise NotAChat("invalid_tools", f"{name} must be a list of objects, not {tools!r:.80}")
    if tools and (name == "functions" or shape == SHAREGPT):
        tools = [{"type": "function", "function": tool} if tool.keys().isdisjoint(_WRAPPED) else tool for tool in tools]
    return tools


_WRAPPED = ("type", "function")
"""Keys of tools and calls that hold a function; others are the function."""


def _add_system(record: Mapping[str, Any], messages: list[Any]) -> list[Any]:
    """Put a system message that stands next to the messages before them, unless they begin with the same one."""
    system: Any = next((record[key] for key in _SYSTEM_KEYS if record.get(key)), None)
    if system is None:
        return messages
    if isinstance(system, list) and len(system) == 1 and is_text_part(system[0]):
        system = system[0]["text"]
    if isinstance(system, str):
        if not system.strip():
            return messages
    elif not (isinstance(system, list) and all(map(is_text_part, system))):
        raise NotAChat("content_not_text", f"system is {type(system).__name__}, not text")
    first = messages[0] if messages and isinstance(messages[0], dict) else {}
    if first.get("role") == SYSTEM and _join_texts(first.get("content")) == _join_texts(system):
        return messages
    return [{"role": SYSTEM, "content": system}, *messages]


def _refuse_media(record: Mapping[str, Any]) -> None:
    """Refuse a record with images and the like: its texts would be trained as if they were all of it."""
    for tag, keys in _MEDIA.items():
        if any(record.get(key) for key in keys):
            noun = keys[0]
            helps = "for images set `images`" if tag == IMAGE_TAG else "they are not supported"
            raise NotAChat(f"{noun}_not_set", f"the record has {noun}; {helps}")


def _join_texts(content: Any) -> str:
    """Join the texts of a content, without the space around them; empty if it has none."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = (part["text"] for part in parts if is_text_part(part))
    return "\n".join(texts).strip()


def _parse_message(raw: Any, index: int, marks: dict[int, float], unread: Counter[str], *, has_images: bool) -> Message:
    if not isinstance(raw, dict):
        raise NotAChat("invalid_message", f"message {index} is {type(raw).__name__}, not an object")
    role = raw.get("role")
    if len(raw) == 2 and role in ROLES and type(raw.get("content")) is str:  # most messages: nothing to change
        return raw
    if role == "function":
        role = TOOL
    if role not in ROLES:
        role_names = ", ".join(ROLES)
        has = f"has the role {role!r:.60}" if "role" in raw else f"has no role, only {_list_keys(raw)}"
        raise NotAChat("unknown_role", f"message {index} {has}; known are {role_names}")
    # Files that are made from API responses write every field. A template may ask only whether there is one.
    message = {name: value for name, value in raw.items() if value is not None or name == "content"}
    message["role"] = role
    if role == ASSISTANT:
        _refuse_bad_answer(message, f"message {index}")
    calls = message.pop("tool_calls", None)
    function = message.pop("function_call", None)  # the one call of a message, before OpenAI had tools
    if function and calls:
        unread["function_call"] += 1
    elif function:
        calls = _read_functions(function, index)
    elif isinstance(calls, str):
        calls = _parse_json(calls, "tool_calls", f"message {index}: ")
    if calls:
        message["tool_calls"] = calls
    refusal = message.pop("refusal", None)
    if refusal:
        # What the assistant says instead of content, in OpenAI's responses.
        if role == ASSISTANT and isinstance(refusal, str) and not message.get("content"):
            message["content"] = refusal
        else:
            unread["refusal"] += 1
    _check_content(message, index, has_images=has_images)
    if calls is not None and not isinstance(calls, list):
        raise NotAChat("invalid_tool_calls", f"message {index}: tool_calls must be a list")
    for call in calls or ():
        _check_tool_call(call, index)
    _read_marks(message, index, marks, unread)
    details = message.pop(_REASONING_DETAILS, None)
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if details and reasoning is None:
        reasoning = _join_details(details)
        if reasoning is None:
            unread[_REASONING_DETAILS] += 1
    if reasoning is not None:  # under both names that templates use, like transformers
        if not isinstance(reasoning, str):
            raise NotAChat("content_not_text", f"message {index}: its reasoning is {type(reasoning).__name__}")
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def _read_marks(message: Message, index: int, marks: dict[int, float], unread: Counter[str]) -> None:
    """Take the marks off a message: it is not trained if one of them says so, and has the product of its weights."""
    for name in [name for name in message if _looks_like_mark(name)]:
        value = message[name]
        is_mark = name in _MARKS and type(value) in (bool, int, float)
        if is_mark and (value in (0, 1) or "weight" in name):
            if not 0 <= value < math.inf:
                raise NotAChat(
                    "invalid_weight", f"message {index}: {name} is {value}, and weights are numbers from 0 on"
                )
            del message[name]
            marks[index] = value * marks.get(index, 1)
        elif name in (_TRAIN, _WEIGHT):
            raise NotAChat("invalid_mark", f"message {index}: {name} must be true or false, not {value!r:.60}")
        else:
            unread[name] += 1


def _join_details(details: Any) -> str | None:
    """Join the texts of OpenRouter's `reasoning_details`; None if one of them is no text, such as an encrypted one."""
    if not isinstance(details, list):
        return None
    texts = [part.get("text") if isinstance(part, dict) else None for part in details]
    words = [text for text in texts if isinstance(text, str)]
    return "".join(words) if words and len(words) == len(texts) else None


def is_image_part(part: Any) -> bool:
    """Tell whether a part of a message is an image, in the form that `ChatImages.read` gives it."""
    return isinstance(part, dict) and part.get("type") == "image" and isinstance(part.get("image"), str)


def is_text_part(part: Any) -> bool:
    """Tell whether a part of a message is text; in files for Bedrock parts have no type."""
    return isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)


def _check_content(message: Message, index: int, *, has_images: bool) -> None:
    content = message.get("content")
    if content is None:
        if not message.get("tool_calls"):
            raise NotAChat("missing_content", f"message {index} has neither content nor tool calls")
        return
    if isinstance(content, str):
        return
    parts: list[Any] = content if isinstance(content, list) else [None]
    if any(map(is_text_part, parts)):
        parts = message["content"] = [{"type": "text", **part} if is_text_part(part) else part for part in parts]
    for part in parts:
        if not is_text_part(part) and not (has_images and is_image_part(part)):
            hint = "; for images set `images`" if isinstance(part, dict) and "image" in str(part.get("type")) else ""
            raise NotAChat("content_not_text", f"message {index}: content must be text or parts of text{hint}")


def _read_functions(function: Any, index: int) -> list[Any]:
    """Read the function that a message calls, or a list of them, which may be JSON in a string, as calls."""
    if isinstance(function, str):
        function = _parse_json(function, "tool_calls", f"message {index}: ")
    return [
        {"type": "function", "function": call} if isinstance(call, dict) and call.keys().isdisjoint(_WRAPPED) else call
        for call in (function if isinstance(function, list) else [function])
    ]


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


def _parse_json(text: str, noun: str, place: str = "") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotAChat(f"invalid_{noun}", f"{place}{noun} is not JSON: {error}") from None


_begins_list = re.compile(r"\s*\[\s*\{").match
_begins_messages = re.compile(r"""\s*\[\s*\{\s*["'](?:role|from|content|value)["']\s*:""").match


def _are_messages(value: Any) -> bool:
    """Tell whether a value is a list of messages or turns, or its JSON. JSON that is damaged counts, too."""
    if isinstance(value, str):
        if not _begins_list(value):
            return False
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return _begins_messages(value) is not None
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(isinstance(turn, dict) and turn.keys() & {"role", "from"} for turn in value)


def _read_messages(value: Any, noun: str) -> list[Any]:
    """Read a list of messages or of ShareGPT's turns, which may be JSON in a string. Messages are checked later."""
    if isinstance(value, str):
        value = _parse_json(value, MESSAGES, f"{noun}: ")
    if not isinstance(value, list):
        raise NotAChat("invalid_messages", f"{noun} must be a list, not {type(value).__name__}")
    return [_read_turn(turn, index) for index, turn in enumerate(value)]


def _read_turn(turn: Any, index: int) -> Any:
    if not isinstance(turn, dict):
        raise NotAChat("invalid_message", f"message {index} is {type(turn).__name__}, not an object")
    speaker = turn.get("from")
    value, content = turn.get("value"), turn.get("content")
    if speaker is None or (turn.get("role") is not None and value is None):  # OpenAI's messages
        if turn.get("role") not in _CALLERS:
            return turn
        speaker, value = turn["role"], content
    if not isinstance(speaker, str) or speaker not in _SPEAKERS:
        speaker_names = ", ".join(_SPEAKERS)
        raise NotAChat("unknown_role", f"message {index} is from {speaker!r:.60}; known are {speaker_names}")
    if content is not None and content != value:
        raise NotAChat("invalid_message", f"message {index} has a value and another content")
    said = {"content": None, "function_call": value} if speaker in _CALLERS else {"content": value}
    others = {name: value for name, value in turn.items() if name not in ("from", "value", "role", "content")}
    return {"role": _SPEAKERS[speaker], **said, **others}


def _read_text_or_messages(record: Mapping[str, Any], name: str, role: str) -> list[Any]:
    """Read the text of this role, or a list of messages as in TRL."""
    value = record.get(name)
    is_text = isinstance(value, str | None) and not _are_messages(value)
    return [{"role": role, "content": value}] if is_text else _read_messages(value, name)


def _from_messages(record: Mapping[str, Any]) -> list[Any]:
    return _read_messages(record.get(MESSAGES), MESSAGES)


def _from_sharegpt(record: Mapping[str, Any]) -> list[Any]:
    return _read_messages(_find_turns(record), "conversations")


def _from_alpaca(record: Mapping[str, Any]) -> list[Any]:
    question = record.get("instruction")
    details = record.get("input")
    if details is not None and not isinstance(details, str):
        raise NotAChat("content_not_text", f"input is {type(details).__name__}, not text")
    if isinstance(question, str) and details:
        question = f"{question}\n\n{details}"
    messages = [{"role": USER, "content": question}, {"role": ASSISTANT, "content": record.get("output")}]
    history = record.get("history") or []
    for turn in reversed(_parse_json(history, MESSAGES, "history: ") if isinstance(history, str) else history):
        if not isinstance(turn, list) or len(turn) != 2:
            raise NotAChat("invalid_message", f"history must be pairs of question and answer, not {turn!r:.60}")
        messages[:0] = [{"role": USER, "content": turn[0]}, {"role": ASSISTANT, "content": turn[1]}]
    return messages


def _from_prompt_completion(record: Mapping[str, Any]) -> list[Any]:
    prompt = _read_text_or_messages(record, "prompt", USER)
    return prompt + _read_text_or_messages(record, "completion", ASSISTANT)


_READERS = {
    MESSAGES: _from_messages,
    SHAREGPT: _from_sharegpt,
    ALPACA: _from_alpaca,
    PROMPT_COMPLETION: _from_prompt_completion,
}
