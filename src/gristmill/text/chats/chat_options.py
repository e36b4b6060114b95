"""The options that decide how conversations become examples."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from gristmill.text.chats.shapes import Shape  # noqa: TC001  (msgspec looks at the types of fields)

TrainOn = Literal["assistant", "last_assistant", "all", "marked"]
LastNotAssistant = Literal["drop", "keep", "trim"]
SplitTurns = Literal["auto", "always", "never"]
TooLong = Literal["drop_turns", "drop", "cut", "windows"]
PromptPolicy = Literal["as_rendered", "as_prompted", "refuse"]

TRAIN_ASSISTANT, TRAIN_LAST, TRAIN_ALL, TRAIN_MARKED = get_args(TrainOn)
DROP, KEEP, TRIM = get_args(LastNotAssistant)
SPLIT_AUTO, SPLIT_ALWAYS, SPLIT_NEVER = get_args(SplitTurns)
DROP_TURNS, DROP_CHAT, CUT, WINDOWS = get_args(TooLong)
AS_RENDERED, AS_PROMPTED, REFUSE = get_args(PromptPolicy)


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options by which conversations become examples. The fields are keys of the step `render`."""

    shape: Shape = "auto"
    train_on: TrainOn = "assistant"
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
    template_variables: dict[str, Any] = {}
    """Variables for the template of all records, like `chat_template_kwargs` of one."""
