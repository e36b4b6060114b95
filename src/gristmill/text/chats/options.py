"""The options that decide how conversations become examples, and what becomes of one record: its examples, what was
dropped and why, and counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec

from gristmill.text.chats.shapes import (
    TOOL,
    Shape,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.text.chats.shapes import Conversation


TrainOn = Literal["auto", "assistant", "last_assistant", "all", "marked"]
LastNotAssistant = Literal["drop", "keep", "trim"]
SplitTurns = Literal["auto", "always", "never"]
TooLong = Literal["drop_turns", "drop", "cut", "windows", "turn_windows"]
PromptPolicy = Literal["as_rendered", "as_prompted", "refuse"]

TRAIN_AUTO, TRAIN_ASSISTANT, TRAIN_LAST, TRAIN_ALL, TRAIN_MARKED = get_args(TrainOn)
DROP, KEEP, TRIM = get_args(LastNotAssistant)
SPLIT_AUTO, SPLIT_ALWAYS, SPLIT_NEVER = get_args(SplitTurns)
DROP_TURNS, DROP_CHAT, CUT, WINDOWS, TURN_WINDOWS = get_args(TooLong)
AS_RENDERED, AS_PROMPTED, REFUSE = get_args(PromptPolicy)


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options by which conversations become examples. The fields are keys of the step `render`."""

    shape: Shape = "auto"
    fields: dict[str, str] = {}
    """Names of the parts of chats (`CHAT_PARTS`) that have none of the shapes."""
    train_on: TrainOn = "auto"
    train_kinds: tuple[str, ...] = ()
    """The kinds of tokens that are trained, of the chosen answers and of all else; empty: the answers."""
    train_end_of_turn: bool = True
    last_not_assistant: LastNotAssistant = "drop"
    split_turns: SplitTurns = "auto"
    max_tokens: int | None = None
    too_long: TooLong = "drop_turns"
    parse_arguments: bool = False
    accepts_quoted_arguments: bool = False
    """Whether the arguments of a tool call may be written as a quoted string of JSON."""
    append_eos: bool = False
    prompt: PromptPolicy = "as_rendered"
    weights: bool | None = None
    """Whether weights of messages are kept; None: a conversation with weights is refused."""
    template_variables: dict[str, Any] = {}
    """Variables for the template of all records, like `chat_template_kwargs` of one."""


PLAIN, CALL, AFTER_RESULT = ANSWER_KINDS = ("plain", "call", "after_result")
"""Kinds of answers: plain words, a call of tools, or what follows a tool's result."""


class DroppedChat(Exception):
    """A conversation that cannot be trained on; its argument is the reason."""


class TextPart(NamedTuple):
    """Some characters of a rendered conversation that are of one kind (`core/token_kinds.py`)."""

    start: int
    end: int
    kind: int


@dataclass(frozen=True, slots=True)
class Example:
    """A rendered conversation. Positions are in characters."""

    text: str
    trained: list[tuple[int, int]]
    """Spans that are trained on."""
    literals: list[tuple[int, int]]
    """Spans of special tokens that someone wrote: they are encoded as plain text."""
    last_answer: int
    """Where the last answer begins."""
    images: tuple[str, ...] = ()
    """The names of the images in it, in order."""
    weights: Sequence[tuple[int, int, float]] = ()
    """Spans of answers with a weight other than 1."""
    parts: Sequence[TextPart] = ()
    """What is whose, in order; the rest is the template's."""


@dataclass(slots=True)
class RenderedRecord:
    """The examples of one record, and an account of the rest."""

    examples: list[Example] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """The reason of each example that was dropped."""
    counts: list[tuple[str, int]] = field(default_factory=list)
    """Counters. Lists, because most records add nothing: a Counter costs more than its record."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """What the template leaves out of answers: `reasoning` or `text`, and its words."""

    def drop_answers(self, reason: str, conversation: Conversation, messages: Sequence[int]) -> None:
        """Drop an example, and count its answers by their kind."""
        self.dropped.append(reason)
        self.counts += [(f"lost_{classify_answer(conversation, message)}", 1) for message in messages]


def classify_answer(conversation: Conversation, message: int) -> str:
    """Tell what kind of answer a message is."""
    if conversation.messages[message].get("tool_calls"):
        return CALL
    return AFTER_RESULT if message and conversation.messages[message - 1]["role"] == TOOL else PLAIN
