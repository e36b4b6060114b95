"""Checks of a conversation before it is rendered: whether it has answers, and an order of messages that makes sense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.text.chats.chat_options import DROP, KEEP, TRAIN_MARKED
from gristmill.text.chats.rendered_record import DroppedChat
from gristmill.text.chats.shapes import ASSISTANT, SYSTEM, TOOL, USER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.text.chats.chat_options import ChatOptions
    from gristmill.text.chats.rendered_record import RenderedRecord
    from gristmill.text.chats.shapes import Conversation


def check_conversation(conversation: Conversation, options: ChatOptions, rendered: RenderedRecord) -> Conversation:
    """Check that a conversation can be trained on, and count what is unusual in it.

    Returns the conversation; with `last_not_assistant: trim`, without the messages behind its last answer.

    Raises:
        DroppedChat: There is nothing to train on, or the order of its messages makes no sense.
    """
    answers = conversation.answers()
    if not answers:
        raise DroppedChat("no_assistant")
    if answers[0] == 0:
        raise DroppedChat("begins_with_assistant")
    last = len(conversation.messages) - 1
    if answers[-1] != last and options.last_not_assistant != KEEP:
        if options.last_not_assistant == DROP:
            raise DroppedChat("last_not_assistant")
        conversation = conversation.first(answers[-1] + 1)
        rendered.counts.append(("trimmed_messages", last - answers[-1]))
    for index, message in enumerate(conversation.messages):
        role = message["role"]
        if role == TOOL and (index == 0 or conversation.messages[index - 1]["role"] not in (ASSISTANT, TOOL)):
            raise DroppedChat("tool_without_call")
        if role == SYSTEM and index and conversation.messages[index - 1]["role"] not in (SYSTEM, "developer"):
            rendered.counts.append(("late_system_messages", 1))
        if index and role in (USER, ASSISTANT) and role == conversation.messages[index - 1]["role"]:
            rendered.counts.append(("repeated_roles", 1))
        if not _has_words(message):
            if role == ASSISTANT:
                raise DroppedChat("empty_answer")
            rendered.counts.append(("empty_messages", 1))
    if conversation.marks and options.train_on != TRAIN_MARKED:
        rendered.counts.append(("ignored_train_marks", len(conversation.marks)))
    return conversation


def _has_words(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    if isinstance(content, str) and content and not content.isspace():
        return True
    texts = [part.get("text", "") for part in content] if isinstance(content, list) else [content or ""]
    texts.append(message.get("reasoning_content") or "")
    return bool(message.get("tool_calls")) or any(text.strip() for text in texts)
