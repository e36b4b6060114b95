"""From a preference to its texts: the prompt with each of its answers, which begin with exactly the same text.

The prompt ends where the prompt for the answer ends that the model will see. Where a template writes it differently in
a rendered conversation (a thought that is opened in the prompt only), it ends where the texts begin to differ:

    prompt:     <|user|>2+2?<|assistant|><think>
    chosen:     <|user|>2+2?<|assistant|>4<|end|>
    rejected:   <|user|>2+2?<|assistant|>5<|end|>
    shared:     <|user|>2+2?<|assistant|>                 and the answers are `4<|end|>` and `5<|end|>`

Such records are counted as `prompt_differs`; `prompt: refuse` drops them, and `as_prompted` puts each answer after the
whole prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.text.chats.answers import CommonPrefix
from gristmill.text.chats.conversation_checks import (
    CALLS_LEFT_OUT,
    check_conversation,
    count_lost_reasoning,
    find_lost_call,
    refuse_quoted_arguments,
)
from gristmill.text.chats.example_maker import ExampleMaker
from gristmill.text.chats.options import (
    AS_PROMPTED,
    REFUSE,
    TRAIN_LAST,
    DroppedChat,
    Example,
    RenderedRecord,
)
from gristmill.text.chats.preferences import make_chat, read_preferences
from gristmill.text.chats.reasoning import find_prompted_literals, make_prompted_answer
from gristmill.text.chats.shapes import MESSAGES, NotAChat, join_texts
from gristmill.text.tokenizers.special_tokens import is_inside_word

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gristmill.text.chats.options import ChatOptions
    from gristmill.text.chats.preferences import Preference
    from gristmill.text.chats.shapes import Conversation
    from gristmill.text.chats.templates import FoundTemplate


class PreferenceMaker(ExampleMaker):
    """Makes the texts of preferences with one template: two examples for each pair, one for each labeled answer."""

    def __init__(self, template: FoundTemplate, options: ChatOptions, form: str, **facts: Any) -> None:
        """`form` says whether rows are pairs or labeled answers; `facts` are those of `ExampleMaker`."""
        sides = msgspec.structs.replace(options, shape=MESSAGES, fields={}, train_on=TRAIN_LAST)
        super().__init__(template, sides, **facts)
        self._form = form
        self._fields = options.fields

    def list_sides(self, records: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
        """List the sides of records as chats; and what is wrong with records that are no preferences."""
        chats: list[dict[str, Any]] = []
        problems: list[str] = []
        for record in records:
            try:
                for preference in read_preferences(record, self._form, self._fields):
                    chats += [make_chat(record, preference, answer) for answer in range(len(preference.answers))]
            except NotAChat as problem:
                problems.append(problem.message)
            except DroppedChat as dropped:
                problems.append(str(dropped))
        return chats, problems

    def _make(self, record: Mapping[str, Any], rendered: RenderedRecord, *, may_hold_literals: bool) -> None:
        for preference in read_preferences(record, self._form, self._fields):
            conversations, num_prompted = self._read_sides(record, preference, rendered)
            examples = self._render_sides(conversations, num_prompted, rendered, may_hold_literals=may_hold_literals)
            rendered.examples += examples
            rendered.values.append(preference.values)

    def _read_sides(
        self, record: Mapping[str, Any], preference: Preference, rendered: RenderedRecord
    ) -> tuple[list[Conversation], int]:
        """Read the conversation of each side, not longer than allowed; and how many messages are the prompt."""
        conversations = []
        num_prompted = 0
        for number, answer in enumerate(preference.answers):
            conversation = self.parse(make_chat(record, preference, number))
            num_prompted = len(conversation.messages) - len(answer)  # with a system message that is a key of the record
            # What is unusual in the prompt is counted once.
            account = rendered if not number else RenderedRecord()
            conversations.append(check_conversation(conversation, self.options, account))
        fitting = self._fitter.fit_together(conversations, num_prompted, rendered)
        return fitting, num_prompted - len(conversations[0].messages) + len(fitting[0].messages)

    def _render_sides(
        self,
        conversations: Sequence[Conversation],
        num_prompted: int,
        rendered: RenderedRecord,
        *,
        may_hold_literals: bool,
    ) -> list[Example]:
        finder = self.choose_finder(conversations[0])
        prompt = finder.turns.prompt(conversations[0], num_prompted)
        texts = [self._render(conversation) for conversation in conversations]
        literals: list[list[tuple[int, int]]] = [[] for _ in texts]
        for side, (conversation, text) in enumerate(zip(conversations, texts, strict=True)):
            self._refuse_lost(conversation, text, range(num_prompted, len(conversation.messages)), rendered)
            if may_hold_literals:
                literals[side] = self.literals.find(finder.template, conversation, text)
        border = min(CommonPrefix(prompt, text, finder.turns.facts.specials).length for text in texts)
        if border < len(prompt):
            if self.options.prompt == REFUSE:
                raise DroppedChat("prompt_differs")
            rendered.counts.append(("prompt_differs", 1))
            if self.options.prompt == AS_PROMPTED:
                sides = [
                    self._put_after_prompt(conversation, text, prompt, may_hold_literals=may_hold_literals)
                    for conversation, text in zip(conversations, texts, strict=True)
                ]
                texts, literals = [text for text, _ in sides], [spans for _, spans in sides]
                border = len(prompt)
        if self._appended:
            texts = [text if text.endswith(self._appended) else text + self._appended for text in texts]
        if any(len(text) <= border for text in texts):
            raise DroppedChat("empty_answer")
        examples = []
        for text, spans, conversation in zip(texts, literals, conversations, strict=True):
            num_literals = sum(not is_inside_word(text, begin, end) for begin, end in spans)
            if num_literals:
                rendered.counts.append(("special_literals", num_literals))
            examples.append(Example(text, [(border, len(text))], spans, border))
            if not (self.options.parse_arguments or self.options.accepts_quoted_arguments):
                refuse_quoted_arguments(conversation, RenderedRecord([examples[-1]]))
        return examples

    def _refuse_lost(
        self, conversation: Conversation, text: str, answers: Sequence[int], rendered: RenderedRecord
    ) -> None:
        """Refuse a conversation of which the template leaves out a message, or a call in its answer."""
        finder = self.choose_finder(conversation)
        words = (join_texts(message.get("content")) for message in conversation.messages)
        if any(each not in text for each in words):
            finder.turns.refuse_left_out(conversation)
        messages = [message for message in answers if message in conversation.answers()]
        lost_call = find_lost_call(finder.template, conversation, text, messages)
        if lost_call:
            raise NotAChat(CALLS_LEFT_OUT, lost_call)
        count_lost_reasoning(conversation, text, messages, rendered)

    def _put_after_prompt(
        self, conversation: Conversation, text: str, prompt: str, *, may_hold_literals: bool
    ) -> tuple[str, list[tuple[int, int]]]:
        """Put what the template writes of the last answer after the prompt that the model will see."""
        finder = self.choose_finder(conversation)
        answer = finder.turns.find_last_borders(conversation, text)
        thought, after = make_prompted_answer(
            conversation.messages[-1],
            prompt,
            text[answer.start :],
            template_source=finder.template.source,
            end_of_turn=finder.turns.ending.token,
        )
        whole = prompt + thought + after
        if not may_hold_literals:
            return whole, []
        shift = len(whole) - len(text)
        return whole, find_prompted_literals(
            self.literals, finder.template, conversation, text, prompt, thought, shift=shift
        )
