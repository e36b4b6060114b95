"""Prompts for reinforcement learning: a conversation up to where the model is to answer, as the template writes it.

The answers at the end of a conversation are not part of its prompt; the last of them is kept as its completion, which
is often the solution that a reward compares with. A record may have nothing but a prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.text.chats.conversation_checks import has_words
from gristmill.text.chats.options import DroppedChat
from gristmill.text.chats.shapes import ASSISTANT, CHAT_PARTS, KEYS_WITH_MEANING, MESSAGES, USER, NotAChat, list_shapes
from gristmill.text.chats.templates import TemplateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.text.chats.example_maker import ExampleMaker
    from gristmill.text.chats.shapes import Conversation

_PROMPT = "prompt"


class RenderedPrompt(NamedTuple):
    """A prompt: its text with the beginning of an answer, its messages, and the answer that the record has."""

    text: str
    messages: list[dict[str, Any]]
    completion: str | None


class PromptMaker:
    """Makes prompts with the template of an `ExampleMaker`."""

    def __init__(self, maker: ExampleMaker) -> None:
        self._maker = maker
        self._fields = maker.options.fields
        self._of_messages = maker.with_options(shape=MESSAGES, fields={})

    def make(self, record: Mapping[str, Any]) -> RenderedPrompt:
        """Render the prompt of a record.

        Raises:
            NotAChat: The record is no chat, or the template cannot render it.
            DroppedChat: There is no prompt, or it has too many tokens.
        """
        maker = self._maker
        conversation = self._parse(record)
        count = len(conversation.messages)
        while count and conversation.messages[count - 1]["role"] == ASSISTANT:
            count -= 1
        if not count:
            raise DroppedChat("no_prompt")
        if not has_words(conversation.messages[count - 1]):
            raise DroppedChat("empty_prompt")
        try:
            text = maker.choose_finder(conversation).turns.prompt(conversation, count)
        except TemplateError as error:
            raise NotAChat("template_error", error.message) from None
        limit = maker.options.max_tokens
        if limit is not None and maker.count_tokens is not None and maker.count_tokens(text) > limit:
            raise DroppedChat("too_long")
        answers = conversation.messages[count:]
        return RenderedPrompt(text, conversation.messages[:count], _join_texts(answers[-1]) if answers else None)

    def _parse(self, record: Mapping[str, Any]) -> Conversation:
        """Read a chat, or a record that has nothing but a prompt."""
        fields = self._fields
        key = fields.get(_PROMPT, _PROMPT)
        names_whole_chat = "response" in fields or "messages" in fields
        if names_whole_chat or key not in record or (not fields and list_shapes(record)):
            return self._maker.parse(record)
        prompt = record[key]
        if not isinstance(prompt, str | list):
            raise NotAChat("not_a_chat", f"{key!r} is {type(prompt).__name__}, not a text or a list of messages")
        named = {CHAT_PARTS[part]: record[name] for part, name in fields.items() if part != _PROMPT and name in record}
        others = {name: value for name, value in record.items() if name in KEYS_WITH_MEANING}
        messages = [{"role": USER, "content": prompt}] if isinstance(prompt, str) else prompt
        return self._of_messages.parse({**others, **named, MESSAGES: messages})


def check_plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages of nothing but roles and texts, as trainers read prompts.

    Raises:
        NotAChat: A message has something else, such as a call of a tool.
    """
    for number, message in enumerate(messages):
        others = [key for key, value in message.items() if key not in ("role", "content") and value not in (None, [])]
        if others or not isinstance(message.get("content"), str):
            held = others[0] if others else "a content that is no text"
            raise NotAChat("prompt_not_plain", f"message {number} has {held}; prompts are messages of role and text")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _join_texts(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""
