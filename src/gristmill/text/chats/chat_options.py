"""The options that decide how conversations become examples."""

from __future__ import annotations

from typing import Any

import msgspec

from gristmill.text.chats.shapes import AUTO

TRAIN_ON = TRAIN_ASSISTANT, TRAIN_LAST, TRAIN_ALL, TRAIN_MARKED = ("assistant", "last_assistant", "all", "marked")
DROP, KEEP, TRIM = LAST_NOT_ASSISTANT = ("drop", "keep", "trim")
SPLIT_AUTO, SPLIT_ALWAYS, SPLIT_NEVER = SPLIT_TURNS = ("auto", "always", "never")
DROP_TURNS, DROP_CHAT, CUT, WINDOWS = TOO_LONG = ("drop_turns", "drop", "cut", "windows")
AS_RENDERED, AS_PROMPTED, REFUSE = PROMPT = ("as_rendered", "as_prompted", "refuse")


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How conversations become examples. The fields are keys of the step `render`."""

    shape: str = AUTO
    train_on: str = TRAIN_ASSISTANT
    train_end_of_turn: bool = True
    last_not_assistant: str = DROP
    split_turns: str = SPLIT_AUTO
    max_tokens: int | None = None
    too_long: str = DROP_TURNS
    parse_arguments: bool = False
    append_eos: bool = False
    prompt: str = AS_RENDERED
    template_variables: dict[str, Any] = {}
    """Variables for the template of all records, like `chat_template_kwargs` of one."""
