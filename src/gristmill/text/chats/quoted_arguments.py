r"""Arguments of tool calls that are JSON in a string, and that a template with `tojson` quotes a second time.

    record   "arguments": "{\"city\": \"Bonn\"}"
    text     "arguments": "{\"city\": \"Bonn\"}"     in place of "arguments": {"city": "Bonn"}, which tools read

Most records of a source may have no calls at all, so each record is looked at, not only those of the plan's sample.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gristmill.text.chats.shapes import NotAChat

if TYPE_CHECKING:
    from gristmill.text.chats.rendered_record import RenderedRecord
    from gristmill.text.chats.shapes import Conversation

QUOTED_ARGUMENTS = "quoted_arguments"
QUOTED_MESSAGE = "arguments of tool calls are JSON in a string, and the template writes them as a quoted string"
QUOTED_HELP = "tool_arguments: object turns them into objects; as_given keeps them as they are"


def refuse_quoted_arguments(conversation: Conversation, rendered: RenderedRecord) -> None:
    """Raise `NotAChat` if arguments that are JSON in a string were written with their quotes escaped."""
    calls = [call for message in conversation.messages for call in message.get("tool_calls") or ()]
    arguments = [call.get("function", call).get("arguments") for call in calls]
    for text in arguments:
        if isinstance(text, str) and text.startswith("{") and '"' in text:
            quoted = json.dumps(text, ensure_ascii=False)
            if any(quoted in example.text and text not in example.text for example in rendered.examples):
                raise NotAChat(QUOTED_ARGUMENTS, f"{QUOTED_MESSAGE}; {QUOTED_HELP}")
