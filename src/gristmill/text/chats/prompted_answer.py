r"""The last answer of a conversation as the model will write it: behind the prompt that it will see.

A rendered conversation need not hold what the prompt holds. Some templates open a thought in the prompt only:

    prompt:     …<|assistant|><think>\n
    rendering:  …<|assistant|>4<|end|>
    example:    …<|assistant|><think>\nTwo and two.\n</think>\n\n4<|end|>

The example is the prompt, then the reasoning of the record where the template leaves it out, then the rendered answer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from gristmill.text.chats.reasoning import find_open_tag, find_reasoning, find_written_thought, has_closed_thought
from gristmill.text.chats.rendered_record import DroppedChat
from gristmill.text.chats.shapes import Conversation

if TYPE_CHECKING:
    from gristmill.text.chats.chat_literals import ChatLiterals
    from gristmill.text.chats.jinja import ChatTemplate, Message


class PromptedAnswer(NamedTuple):
    """The text behind a prompt: what is added of the thought, and what the template has rendered."""

    thought: str
    rendered: str


def make_prompted_answer(
    message: Message, prompt: str, rendered: str, *, template_source: str, end_of_turn: str
) -> PromptedAnswer:
    """Make an answer fit behind its prompt.

    Args:
        message: The answer.
        prompt: The prompt for it.
        rendered: What the template writes of the answer and behind it.
        template_source: The source of the template, which may name the tag that closes a thought.
        end_of_turn: The token that ends a turn.

    Raises:
        DroppedChat: The prompt opens a thought, and the record has no reasoning to put there.
    """
    reasoning = find_reasoning(message)
    tags = find_open_tag(prompt, template_source, end_of_turn)
    if tags is None:
        if reasoning in rendered:
            # The prompt says that thinking is over, so no model would write the reasoning behind it.
            is_over = reasoning and has_closed_thought(prompt)
            return PromptedAnswer("", _strip_reasoning(rendered, reasoning) if is_over else rendered)
        thought = find_written_thought(message)
        if reasoning in thought and not has_closed_thought(prompt):
            return PromptedAnswer(thought, rendered.lstrip())
        return PromptedAnswer("", rendered)
    open_tag, close_tag = tags
    if close_tag not in rendered:
        if not reasoning:
            raise DroppedChat("unclosed_reasoning")
        return PromptedAnswer(f"{reasoning}\n{close_tag}\n\n", rendered.lstrip("\n"))
    if reasoning and reasoning not in rendered and rendered.lstrip().startswith(close_tag):
        return PromptedAnswer(reasoning + ("\n" if prompt.endswith("\n") else ""), rendered.lstrip())
    if rendered.lstrip().startswith(open_tag):  # the prompt has it already
        return PromptedAnswer("", rendered.lstrip()[len(open_tag) :].lstrip("\n"))
    return PromptedAnswer("", rendered)


def find_prompted_literals(
    literals: ChatLiterals,
    template: ChatTemplate,
    conversation: Conversation,
    text: str,
    prompt: str,
    thought: str,
    *,
    shift: int,
) -> list[tuple[int, int]]:
    """Find literals in each part of a prompted example: the prompt, the thought, and the rendered answer.

    `shift` is how far the rendered answer moved from its place in `text`.
    """
    before = conversation.first(len(conversation.messages) - 1)
    asked = Conversation(before.messages, before.tools, {**before.variables, "add_generation_prompt": True})
    spans = literals.find(template, asked, prompt)
    if thought:
        reasoning = find_reasoning(conversation.messages[-1])
        position = len(prompt) + thought.index(reasoning)
        spans += [(position + begin, position + end) for begin, end in literals.spans(reasoning)]
    behind = ((begin + shift, end + shift) for begin, end in literals.find(template, conversation, text))
    return [*spans, *((begin, end) for begin, end in behind if begin >= len(prompt) + len(thought))]


def _strip_reasoning(text: str, reasoning: str) -> str:
    """Remove the reasoning and the tag that closes it from a text."""
    behind = text.partition(reasoning)[2]
    tag = re.match(r"\s*[<\[][^<>\[\]\s]{1,40}[>\]]\s*", behind)
    return behind[tag.end() :] if tag else behind
