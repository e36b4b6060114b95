"""Where in a rendered conversation the assistant speaks, to the character.

An answer begins where the prompt for it would end, even if the template writes more there (a channel, a tool call),
and ends with its end of turn, which may be several tokens. A prompt can hold more than the rendered turn (`<think>`
that the model is made to begin with): then the answer begins after what both have in common (`Answer.missing` is the
rest of the prompt). There are three methods; the first that works is used:

* *tags*: the template says it itself, with `{% generation %}`.
* *sentinels*: all other messages are replaced by short marks, and the conversation is rendered once more. Putting the
  messages back must give the real rendering; then the text between two marks is one answer and what the template writes
  around it. What that is, is known from a made-up conversation with the same traits, or observed where a role is first
  answered, by rendering just up to there. Linear in the number of turns. With « » as marks:

      rendering:  <|user|>2+2?<|assistant|>4<|user|>And 3+3?<|assistant|>6
      with marks: <|user|>«0»<|assistant|>4<|user|>«1»<|assistant|>6
      regions:    <|user|>  and  <|assistant|>4<|user|>  and  <|assistant|>6

  `<|assistant|>` ends the prompt after a user's message, and `<|user|>` is written before the next one: what is left
  of the second region is the answer `4`.
* *prefixes*: each answer starts at the end of its prompt and ends with the rendering of the conversation up to it.
  Quadratic.

A template that writes earlier turns differently from when they were the last (old reasoning left out, tools moved to
the last question) has no such borders: `HistoryRewritten`. Then only the last answer of a conversation can be trained
on as the model will see it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gristmill.text.chats.answers import (
    CLOSE,
    SENTINEL,
    Answer,
    AnswerSearch,
    CommonPrefix,
    ConversationTraits,
    HistoryRewritten,
    MarkedConversation,
    MessageNotRendered,
    PromptTail,
    Surroundings,
    TextRegion,
)
from gristmill.text.chats.shapes import ASSISTANT, Conversation
from gristmill.text.chats.template_facts import CONTENT_MARK, TemplateFacts, find_tagged_end, find_tagged_spans
from gristmill.text.chats.templates import TemplateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.text.chats.template_facts import Ending
    from gristmill.text.chats.templates import ChatTemplate


TAGS, SENTINELS, PREFIXES = ("tags", "sentinels", "prefixes")

_PLAIN_KEYS = frozenset(("role", "content"))


class TurnFinder:
    """Finds answers in the renderings of one template."""

    def __init__(self, template: ChatTemplate, special_tokens: Sequence[str] = ()) -> None:
        """Nothing is rendered here: a template may never end, and no limit on time is in force yet."""
        self.template = template
        self.facts = TemplateFacts(template, special_tokens)
        self._observe_traits = lru_cache(maxsize=None)(self._observe_surroundings)  # there are 48 combinations

    @property
    def ending(self) -> Ending:
        """What the template writes after the last answer."""
        return self.facts.ending

    def answers(self, conversation: Conversation, text: str) -> tuple[list[Answer], str]:
        """Find all answers of a conversation that was rendered as `text`; returns them and the method that found them.

        Raises:
            HistoryRewritten: Not all of them have borders.
            MessageNotRendered: One of the messages is not in the text.
        """
        if self.template.marks_generation and (tagged := self._find_by_tags(conversation, text)) is not None:
            self.refuse_left_out(conversation)
            if self._is_rewritten(conversation, text):
                raise HistoryRewritten("the template writes earlier turns differently from when they were the last")
            return tagged, TAGS
        answers = self._find_by_sentinels(conversation, text, as_rendered=False)
        if answers is not None:
            return answers, SENTINELS
        return self._find_by_prefixes(conversation, text), PREFIXES

    def answers_as_rendered(self, conversation: Conversation, text: str) -> list[Answer]:
        """Find all answers in the whole rendering, even if the template wrote them differently when they were last."""
        answers = self._find_by_sentinels(conversation, text, as_rendered=True)
        if answers is None:
            raise HistoryRewritten(
                "the template writes earlier turns differently from when they were the last, and the answers cannot be "
                "found in the whole text; split_turns: auto makes an example of each answer"
            )
        return answers

    def last_answer(self, conversation: Conversation, text: str) -> list[Answer]:
        """Find what is trained on of the answer that ends a conversation. The history need not match the prompt."""
        last = self.find_last_borders(conversation, text)
        if self.template.marks_generation:
            spans = find_tagged_spans(self.template, conversation, text)
            if spans is not None:
                return self._assign_to_answers(text, spans, [last])
        return [last]

    def find_last_borders(self, conversation: Conversation, text: str) -> Answer:
        """Like `last_answer`, without regard to tags."""
        return self._find_last_answer(conversation, text, len(conversation.messages) - 1, any_history=True)

    def _find_by_tags(self, conversation: Conversation, text: str) -> list[Answer] | None:
        """Find answers by `{% generation %}`; None if its marks change what the template writes."""
        spans = find_tagged_spans(self.template, conversation, text)
        if spans is None:
            return None
        messages = conversation.answers()
        are_plain = all(conversation.messages[message].keys() <= _PLAIN_KEYS for message in messages)
        if len(spans) != len(messages) or not are_plain:  # reasoning and calls may have other tags, or none
            return self._assign_to_messages(conversation, text, spans)
        borders = self._find_by_sentinels(conversation, text, as_rendered=False)
        if borders is None:
            borders = [
                self._find_tagged_border(conversation, message, text, span[0])
                for message, span in zip(messages, spans, strict=True)
            ]
        return [self._make_tagged(text, *span, border) for span, border in zip(spans, borders, strict=True)]

    def _find_tagged_border(self, conversation: Conversation, message: int, text: str, start: int) -> Answer:
        """Find where prompt and rendering part; where the tags begin if that cannot be known."""
        try:
            return self._find_start(conversation, message, text, any_history=True)
        except HistoryRewritten:
            return Answer(message, start, 0, 0)

    def _assign_to_messages(
        self, conversation: Conversation, text: str, spans: Sequence[tuple[int, int]]
    ) -> list[Answer]:
        """Assign spans, of which a message may have none or several, to the messages whose borders they are in."""
        borders = self._find_by_sentinels(conversation, text, as_rendered=False)
        if borders is None:
            borders = self._find_by_prefixes(conversation, text)
        return self._assign_to_answers(text, spans, borders)

    def _assign_to_answers(
        self, text: str, spans: Sequence[tuple[int, int]], borders: Sequence[Answer]
    ) -> list[Answer]:
        answers = []
        for start, end in spans:
            owner = next((answer for answer in borders if answer.overlaps(start, end)), None)
            if owner is not None:
                answers.append(self._make_tagged(text, start, end, owner))
            elif borders and borders[-1].end <= start and not text[borders[-1].end : start].strip():
                # The end of the text, with other tags: it belongs to the end of the last turn.
                answers.append(Answer(borders[-1].message, start, start, end))
        return answers

    def _make_tagged(self, text: str, start: int, end: int, border: Answer) -> Answer:
        """Make the answer of a tagged span. Tags may also include the header, which ends at the border's start."""
        content_end, whole_end = find_tagged_end(text, start, end, self.ending)
        answer = Answer(border.message, start, content_end, whole_end, border.missing, border.has_other_history)
        if start != border.start:
            answer = replace(answer, header_end=border.start)
        return answer.skip_written_prompt(text)

    def _find_by_sentinels(self, conversation: Conversation, text: str, *, as_rendered: bool) -> list[Answer] | None:
        """Find answers between marks; None if the messages put back do not give the text, or a region is not clear."""
        replaced = MarkedConversation(conversation)
        marked = self.render(replaced.conversation)
        regions = replaced.regions(marked, text)
        if regions is None:
            return None
        if not as_rendered and (usual := self._choose_usual_surroundings(conversation)) is not None:
            answers = self._find_in_regions(AnswerSearch(conversation, text, regions, usual))
            if answers is not None:
                return answers
        return self._find_in_regions(
            AnswerSearch(conversation, text, regions, Surroundings(), replaced, marked, as_rendered)
        )

    def _find_in_regions(self, search: AnswerSearch) -> list[Answer] | None:
        answers = []
        for region in search.regions:
            if not region.answers:
                continue
            # Where two answers follow one another, nothing known stands between them.
            if len(region.answers) > 1 or not _holds_content(search.conversation, region, search.text):
                return None
            [message] = region.answers
            tail = self._find_prompt_tail(search, message)
            if message == len(search.conversation.messages) - 1:
                after: str | None = self.ending.rest
            elif search.as_rendered:
                # Like `_find_text_after`, by the last end of turn alone: how the answer was written
                # when last is ignored.
                position = search.text.rfind(self.ending.last, region.start, region.end) if self.ending.last else -1
                after = search.text[position + len(self.ending.last) : region.end] if position >= 0 else None
            else:
                after = self._find_text_after(search, message, region)
            if tail is None or after is None:
                return None
            if not region.is_between(search.text, tail.text, self.ending.last + after):
                return None
            start = region.start + len(tail.text)
            header = Answer(message, start, 0, 0, tail.missing, tail.has_other_history)
            header = header.skip_written_prompt(search.text)
            answers.append(self._close_answer(header, region.end - len(after), search.text))
        return answers

    def _find_prompt_tail(self, search: AnswerSearch, message: int) -> PromptTail | None:
        """Find what the template writes between an answer and the message before it; observed once for each role."""
        tails = search.surroundings.tails
        role = search.conversation.messages[message - 1]["role"] if message else ""
        if message and role not in tails and search.replaced is not None:
            try:
                header = self._find_start(search.replaced.conversation, message, search.marked)
                start = search.marked.rfind(CLOSE, 0, header.start) + 1
                tail = search.marked[start : header.start]
                tails[role] = PromptTail(tail, header.missing, has_other_history=header.has_other_history)
            except HistoryRewritten:
                tails[role] = None
        return tails.get(role)

    def _find_text_after(self, search: AnswerSearch, message: int, region: TextRegion) -> str | None:
        """Find what the template writes between an answer and the message after it; observed once for each role."""
        after = search.surroundings.after
        if region.next_role not in after and search.replaced is not None:
            so_far = self._render_through(search.replaced.conversation, message)
            is_prefix = search.marked.startswith(so_far) and len(so_far) <= region.marked_end
            after[region.next_role] = search.marked[len(so_far) : region.marked_end] if is_prefix else None
        return after.get(region.next_role)

    def _choose_usual_surroundings(self, conversation: Conversation) -> Surroundings | None:
        """Find the surroundings in a made-up conversation with the same traits; None if its history is rewritten."""
        if conversation.variables:
            return None
        return self._observe_traits(ConversationTraits.of(conversation))

    def _observe_surroundings(self, traits: ConversationTraits) -> Surroundings | None:
        conversation = traits.conversation()
        surroundings = Surroundings()
        replaced = MarkedConversation(conversation)
        try:
            text, marked = self.render(conversation), self.render(replaced.conversation)
            regions = replaced.regions(marked, text)
            if regions is None:
                return None
            search = AnswerSearch(conversation, text, regions, surroundings, replaced, marked)
            return surroundings if self._find_in_regions(search) is not None else None
        except TemplateError:
            return None

    def _is_rewritten(self, conversation: Conversation, text: str) -> bool:
        """Tell whether an earlier answer is written differently from when it was the last."""
        earlier = [message for message in conversation.answers() if message < len(conversation.messages) - 1]
        whole = TextRegion(0, len(text), 0, earlier, None)
        if _holds_content(conversation, whole, text) and self._choose_usual_surroundings(conversation) is not None:
            return False
        return not all(text.startswith(self._render_through(conversation, message)) for message in earlier)

    def _render_through(self, conversation: Conversation, message: int) -> str:
        """Render a conversation up to an answer's end of turn."""
        return self.render(conversation.first(message + 1)).removesuffix(self.ending.rest)

    def _find_by_prefixes(self, conversation: Conversation, text: str) -> list[Answer]:
        self.refuse_left_out(conversation)
        answers = []
        for message in conversation.answers():
            if message == len(conversation.messages) - 1:
                answers.append(self._find_last_answer(conversation, text, message))
                continue
            so_far = self._render_through(conversation, message)
            if not text.startswith(so_far):
                raise HistoryRewritten(f"message {message} is written differently when others follow it")
            answers.append(self._close_answer(self._find_start(conversation, message, text), len(so_far), text))
        return answers

    def _find_last_answer(
        self, conversation: Conversation, text: str, message: int, *, any_history: bool = False
    ) -> Answer:
        header = self._find_start(conversation, message, text, any_history=any_history)
        end = len(text) - len(self.ending.rest) if text.endswith(self.ending.rest) else len(text)
        return self._close_answer(header, max(end, header.start), text)

    def _find_start(self, conversation: Conversation, message: int, text: str, *, any_history: bool = False) -> Answer:
        """Find the start of an answer: after the prompt, or after what the rendering has of it.

        `any_history`: also where the prompt writes earlier messages differently from the rendering.
        """
        before = conversation.first(message)
        if not before.messages:  # no message before the answer shows where the template's own text ends
            raise HistoryRewritten("the conversation begins with the assistant")
        prompt = self.prompt(conversation, message)
        if text.startswith(prompt):
            return Answer(message, len(prompt), 0, 0)
        common = CommonPrefix(prompt, text, self.facts.specials)
        history = self._find_history_end(before, prompt)
        if common.length < history and not any_history:
            raise HistoryRewritten(f"the prompt for message {message} is not how the conversation begins")
        if common.length < history:
            return self._find_start_behind_history(conversation, message, text)
        generation_prompt = prompt.removeprefix(self.render(before))
        header = common.find_start(history, generation_prompt)
        if conversation.messages[message].keys() <= _PLAIN_KEYS:
            # By chance an answer may begin like the rest of the prompt. A mark in its place never does.
            answer_mark = self.facts.make_message(ASSISTANT, CONTENT_MARK)
            marked = Conversation([*before.messages, answer_mark], conversation.tools, conversation.variables)
            other = CommonPrefix(prompt, self.render(marked), self.facts.specials)
            if other.length >= history:
                header = min(header, other.find_start(history, generation_prompt))
        return Answer(message, header.start, 0, 0, header.missing, has_other_history=header.is_shifted)

    def _find_start_behind_history(self, conversation: Conversation, message: int, text: str) -> Answer:
        """Find the start where a prompt writes earlier messages differently: after the message before the answer."""
        replaced = MarkedConversation(conversation)
        regions = replaced.regions(self.render(replaced.conversation), text) or []
        region = next((region for region in regions if region.answers == [message]), None)
        if region is None:
            raise HistoryRewritten(f"the prompt for message {message} is not how the conversation begins")
        tail = self.prompt(replaced.conversation, message).rpartition(CLOSE)[2]
        common = CommonPrefix(tail, text[region.start : region.end], self.facts.specials)
        if not common.length and tail:
            raise HistoryRewritten(f"the prompt for message {message} does not end as the conversation has it")
        header = common.find_start(0, tail)
        return Answer(message, region.start + header.start, 0, 0, header.missing, has_other_history=True)

    def _find_history_end(self, before: Conversation, prompt: str) -> int:
        """Find where in a prompt the last message ends; what follows is the template's."""
        marked = self.prompt(MarkedConversation(before).conversation, len(before.messages))
        return len(prompt) - len(marked.rpartition(CLOSE)[2])

    def _close_answer(self, header: Answer, end: int, text: str) -> Answer:
        """Complete an answer whose start is known; `end` is after its end of turn."""
        start = self.facts.skip_supplied(text, header.start)
        tokens = (self.ending.token, self.ending.last)
        content = text[start:end].rstrip()
        if self.ending.last and content.endswith(self.ending.last):  # a line end after the token is the template's
            end = start + len(content)
        length = max((len(token) for token in tokens if text.endswith(token, start, max(start, end))), default=0)
        return Answer(header.message, start, end - length, end, header.missing, header.has_other_history)

    def refuse_left_out(self, conversation: Conversation) -> None:
        """Raise `MessageNotRendered` for a message that the template skips: it would be lost silently."""
        replaced = MarkedConversation(conversation)
        written = {int(mark.group(1)) for mark in SENTINEL.finditer(self.render(replaced.conversation))}
        for number, value in enumerate(replaced.values):
            if number not in written and value.strip():  # without words nothing is lost
                message = replaced.owners[number]
                role = conversation.messages[message]["role"]
                raise MessageNotRendered(f"message {message} ({role}) is not in the text: {value[:60]!r}")

    def prompt(self, conversation: Conversation, message: int) -> str:
        """Render what the model sees before it writes a message."""
        return self.render(conversation.first(message), add_generation_prompt=True)

    def render(self, conversation: Conversation, **variables: Any) -> str:
        """Render a conversation; with `add_generation_prompt` as a prompt."""
        return self.template.render(conversation.messages, conversation.tools, {**conversation.variables, **variables})


def _holds_content(conversation: Conversation, region: TextRegion, text: str) -> bool:
    """Tell whether a region has all content and reasoning word for word: templates leave old reasoning out."""
    for number in region.answers:
        message = conversation.messages[number]
        content = message.get("content")
        parts = [part.get("text", "") for part in content] if isinstance(content, list) else [content or ""]
        for part in (*parts, message.get("reasoning_content") or ""):
            if text.find(part.strip(), region.start, region.end) < 0:
                return False
    return True
