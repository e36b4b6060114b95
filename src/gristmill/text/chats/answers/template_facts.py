"""Facts about a chat template, observed by rendering tiny made-up conversations.

What ends a turn, whether contents must come in parts, which empty reasoning it writes by itself. Each fact costs a few
renderings and is found once for a template, when it is first needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from gristmill.text.chats.answers.answer_start import find_common_length
from gristmill.text.chats.answers.sentinels import CLOSE, OPEN, TOOL_DEFINITION
from gristmill.text.chats.jinja import TemplateError
from gristmill.text.chats.shapes import ASSISTANT, USER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.text.chats.jinja import ChatTemplate, Message

CONTENT_MARK = f"{OPEN}0{CLOSE}"
REASONING_SWITCHES = ("enable_thinking", "thinking")
"""Variables with which templates put a finished or an empty reasoning into the prompt."""
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
        longest_first = sorted((token for token in special_tokens if token), key=lambda token: (-len(token), token))
        self.specials = re.compile("|".join([*map(re.escape, longest_first), _TOKEN_LIKE]))
        """Matches special tokens, and what looks like one."""

    def make_message(self, role: str, content: str) -> Message:
        """Make a message in the form that the template reads."""
        return {"role": role, "content": [{"type": "text", "text": content}] if self._takes_parts else content}

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether content must come in parts: templates for images often write no other content."""
        for tools in (None, [TOOL_DEFINITION]):
            try:
                return CONTENT_MARK not in self._template.render([{"role": USER, "content": CONTENT_MARK}], tools)
            except TemplateError:
                continue
        return True

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
        """Find the tokens behind an answer that are there whether or not another message follows.

        They end before the token that begins a message: some templates begin the next message in any case.
        """
        try:
            behind = self._template.render([*chat, chat[0]], tools).partition(CONTENT_MARK)[2]
            question = self._template.render(chat[:1], tools)
            prompt = self._template.render(chat[:1], tools, {"add_generation_prompt": True})
        except TemplateError:
            return []
        begin = self._find_first_token(prompt.removeprefix(question)) or self._find_first_token(opening)
        length = find_common_length(tail, behind)
        tokens = [token for token in self.specials.finditer(tail) if token.end() <= length]
        return list(takewhile(lambda token: token.group() != begin, tokens))

    def _find_first_token(self, text: str) -> str:
        """Find the first token of a text, without the one that begins a conversation; empty if there is none."""
        tokens = (token.group() for token in self.specials.finditer(text))
        return next((token for token in tokens if token != self._template.begin_token), "")

    def skip_supplied(self, text: str, position: int) -> int:
        """Move behind an empty reasoning that the template's prompt can hold: only the template writes it."""
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
