"""Facts about a chat template, observed by rendering tiny made-up conversations.

What ends a turn, whether contents must come in parts, which empty reasoning it writes by itself. Each fact costs a few
renderings and is found once for a template, when it is first needed.

Answers that a template marks itself: `{% generation %}` … `{% endgeneration %}` around what the model writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from gristmill.text.chats.answers import CLOSE, OPEN, TOOL_DEFINITION, find_common_length
from gristmill.text.chats.jinja_environment import GENERATION_END, GENERATION_START
from gristmill.text.chats.shapes import ASSISTANT, TOOL, USER, is_text_part
from gristmill.text.chats.templates import TemplateError
from gristmill.text.tokenizers.special_tokens import compile_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.text.chats.shapes import Conversation
    from gristmill.text.chats.templates import ChatTemplate, Message


CONTENT_MARK = f"{OPEN}0{CLOSE}"
REASONING_SWITCHES = ("enable_thinking", "thinking")
"""Variables with which templates put a finished or an empty reasoning into the prompt."""
_CALL = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {}}}
_TOKEN_LIKE = r"<[^<>\s]{1,40}>|\[[A-Z_/]{1,40}\]"


@dataclass(frozen=True, slots=True)
class Ending:
    """The text that a template writes after the last answer: what ends the turn, and the rest."""

    token: str
    """All tokens that end the turn: `<|END_RESPONSE|><|END_OF_TURN_TOKEN|>`."""
    rest: str
    last: str
    """The last of these tokens, with which turns of other kinds (calls) end as well."""


class TemplateFacts:
    """Facts about one template."""

    def __init__(self, template: ChatTemplate, special_tokens: Sequence[str] = ()) -> None:
        """Nothing is rendered here: a template may never end, and no limit on time is in force yet."""
        self._template = template
        tokens = compile_tokens(special_tokens)
        self.specials = re.compile("|".join([tokens.pattern, _TOKEN_LIKE] if tokens is not None else [_TOKEN_LIKE]))
        """Matches special tokens, and what looks like one."""
        self._find_form = lru_cache(maxsize=None)(self._observe_form)

    def adapt_contents(self, messages: list[Message]) -> list[Message]:
        """Return the messages with their contents in the form that the template reads, text or parts of text.

        A template that expects a text may write a list of parts as code, or nothing at all.
        """
        if not self._takes_parts and all(type(message.get("content")) is str for message in messages):
            return messages
        return [self._adapt(message) for message in messages]

    def _adapt(self, message: Message) -> Message:
        content = message.get("content")
        form = self._find_form(message["role"])
        if form is str and isinstance(content, list) and all(map(is_text_part, content)):
            return {**message, "content": "\n".join(part["text"] for part in content)}
        if form is list and isinstance(content, str):
            return {**message, "content": [{"type": "text", "text": content}]}
        if content is None and ("content" in message) in self._misread_nulls:
            return {**message, "content": ""}
        return message

    def _observe_form(self, role: str) -> type | None:
        """Find the only form in which the template reads contents of a role; None if it reads both, or refuses them."""
        parts = [{"type": "text", "text": CONTENT_MARK}]
        as_text = self._render_role(role, CONTENT_MARK, "?")
        if CONTENT_MARK in as_text:
            second = f"{OPEN}1{CLOSE}"
            both = self._render_role(
                role, [*parts, {"type": "text", "text": second}], "?"
            )  # it may write only the first
            return None if self._render_role(role, parts, "?") == as_text and second in both else str
        return list if CONTENT_MARK in self._render_role(role, parts, [{"type": "text", "text": "?"}]) else None

    @cached_property
    def _misread_nulls(self) -> list[bool]:
        """Calls without content that the template misreads, and writes with an empty one: null (True), missing (False).

        It may refuse them, or write "None" as the answer.
        """
        call = {"role": ASSISTANT, "tool_calls": [_CALL]}
        empty, null, missing = (
            self._render_chat([{"role": USER, "content": "?"}, message])
            for message in ({**call, "content": ""}, {**call, "content": None}, call)
        )
        is_misread = {True: not null or null.count("None") > empty.count("None"), False: not missing}
        return [has_content for has_content in is_misread if empty and is_misread[has_content]]

    def _render_role(self, role: str, content: Any, other_content: Any) -> str:
        """Render a short conversation with a message of this role; empty if the template refuses it."""
        question, answer = ({"role": name, "content": other_content} for name in (USER, ASSISTANT))
        message = {"role": role, "content": content}
        if role == TOOL:
            result = {**message, "name": "f", "tool_call_id": _CALL["id"]}
            chat = [question, {**answer, "tool_calls": [_CALL]}, result, answer]
        elif role == ASSISTANT:
            chat = [question, message]
        else:
            chat = [message, answer] if role == USER else [message, question, answer]
        return self._render_chat(chat)

    def _render_chat(self, chat: list[Message]) -> str:
        """Render a conversation, with tools if it needs them; empty if the template refuses it."""
        for tools in (None, [TOOL_DEFINITION]):
            try:
                with self._template.without_tracing():
                    return self._template.render(chat, tools)
            except TemplateError:
                continue
        return ""

    def make_message(self, role: str, content: str) -> Message:
        """Make a message in the form that the template reads."""
        return {"role": role, "content": [{"type": "text", "text": content}] if self._takes_parts else content}

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether content must come in parts: templates for images often write no other content."""
        reads_text = CONTENT_MARK in self._render_role(USER, CONTENT_MARK, "?")
        return not reads_text and self._find_form(USER) is list

    @cached_property
    def ending(self) -> Ending:
        """What ends an answer, from a conversation with a mark as its answer."""
        chat = [self.make_message(USER, "?"), self.make_message(ASSISTANT, CONTENT_MARK)]
        for tools in (None, [TOOL_DEFINITION]):  # some templates are for conversations with tools only
            try:
                opening, mark, tail = self._template.render(chat, tools).rpartition(CONTENT_MARK)
            except TemplateError:
                continue
            if mark:
                break
        else:
            return Ending("", "", "")
        tokens = self._find_end_tokens(chat, tools, opening, tail) or list(islice(self.specials.finditer(tail), 1))
        if not tokens:
            return Ending(tail.rstrip(), tail[len(tail.rstrip()) :], tail.rstrip())
        end = tokens[-1].end()
        return Ending(tail[:end].lstrip(), tail[end:], tokens[-1].group())

    def _find_end_tokens(
        self, chat: list[Message], tools: Sequence[Any] | None, opening: str, tail: str
    ) -> list[re.Match[str]]:
        """Find the tokens after an answer that are there whether or not another message follows.

        They end before the token that begins a message: some templates begin the next message in any case.
        """
        try:
            after = self._template.render([*chat, chat[0]], tools).partition(CONTENT_MARK)[2]
            question = self._template.render(chat[:1], tools)
            prompt = self._template.render(chat[:1], tools, {"add_generation_prompt": True})
        except TemplateError:
            return []
        begin = self._find_first_token(prompt.removeprefix(question)) or self._find_first_token(opening)
        length = find_common_length(tail, after)
        tokens = [token for token in self.specials.finditer(tail) if token.end() <= length]
        return list(takewhile(lambda token: token.group() != begin, tokens))

    def _find_first_token(self, text: str) -> str:
        """Find the first token of a text, without the one that begins a conversation; empty if there is none."""
        tokens = (token.group() for token in self.specials.finditer(text))
        return next((token for token in tokens if token != self._template.begin_token), "")

    def skip_supplied(self, text: str, position: int) -> int:
        """Move after an empty reasoning that the template's prompt can hold: only the template writes it."""
        return position + max(
            (len(part) for part in self._supplied_texts if text.startswith(part, position)), default=0
        )

    @cached_property
    def _supplied_texts(self) -> tuple[str, ...]:
        """What the prompt may hold beyond its usual end, with reasoning switched on or off."""
        question = [self.make_message(USER, "?")]
        try:
            usual_prompt = self._template.render(question, None, {"add_generation_prompt": True})
        except TemplateError:
            return ()
        tail = usual_prompt.rpartition("?")[2]
        written = self._find_text_before_answer(tail)
        switches = [
            {name: value} for name in REASONING_SWITCHES for value in (False, True) if name in self._template.source
        ]
        additions = set()
        for variables in switches if tail else ():
            try:
                prompt = self._template.render(question, None, {"add_generation_prompt": True, **variables})
            except TemplateError:
                continue
            additions.add(prompt.rpartition(tail)[2] if tail in prompt else "")
        # All that the template itself writes before an answer without reasoning; `<think>` before one is the model's.
        parts = (part for part in additions - {""} if written.startswith(part))
        return tuple(sorted(part for part in parts if not written[len(part) :].strip()))

    def _find_text_before_answer(self, tail: str) -> str:
        """Find what is between the end of the usual prompt and an answer without reasoning."""
        try:
            text = self._template.render([self.make_message(USER, "?"), self.make_message(ASSISTANT, CONTENT_MARK)])
        except TemplateError:
            return ""
        return text.partition(CONTENT_MARK)[0].rpartition(tail)[2] if tail and tail in text else ""


_MARK = re.compile(f"[{GENERATION_START}{GENERATION_END}]")


def find_tagged_spans(template: ChatTemplate, conversation: Conversation, text: str) -> list[tuple[int, int]] | None:
    """Find the spans that the template marks; None if the marks change what it writes.

    The template is rendered once more with a mark for each tag. Without the marks that must be the real rendering.
    """
    marked = template.render_marked(conversation.messages, conversation.tools, conversation.variables)
    if _MARK.sub("", marked) != text:
        return None
    spans, start = [], None
    for number, mark in enumerate(_MARK.finditer(marked)):
        position = mark.start() - number  # the marks before it are not in the text
        if mark.group() == GENERATION_START:
            start = position
        elif start is not None:
            spans.append((start, position))
            start = None
    return spans


def find_tagged_end(text: str, start: int, end: int, ending: Ending) -> tuple[int, int]:
    """Find where the content of a tagged span ends, and where its end of turn does.

    Tags may include the end of turn, a part of it, or leave it out. With the token `<|end|>` the content ends after
    `4` in all of `4<|end|>]`, `4<|]end|>` and `4]<|end|>`, where `]` is the end of the span.
    """
    inside = text[start:end].rstrip()
    inside_end = start + len(inside)
    for token in (ending.token, ending.last):
        for length in range(len(token), 0, -1):
            if inside.endswith(token[:length]) and text.startswith(token[length:], inside_end):
                return inside_end - length, inside_end - length + len(token)
        if token and text.startswith(token, end):
            return end, end + len(token)
    return end, end
