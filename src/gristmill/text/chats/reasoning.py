r"""Reasoning in answers: where a record keeps it, and the tags with which prompts and templates surround it.

The last answer of a conversation is trained as the model will write it: after the prompt that it will see. A rendered
conversation need not hold what the prompt holds. Some templates open a thought in the prompt only:

    prompt:     …<|assistant|><think>\n
    rendering:  …<|assistant|>4<|end|>
    example:    …<|assistant|><think>\nTwo and two.\n</think>\n\n4<|end|>

The example is the prompt, then the reasoning of the record where the template leaves it out, then the rendered answer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.text.chats.options import DroppedChat
from gristmill.text.chats.shapes import Conversation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gristmill.text.chats.chat_literals import ChatLiterals
    from gristmill.text.chats.templates import ChatTemplate, Message


_INLINE = re.compile(r"\s*([<\[])([\w:]{1,40})([>\]])(.*?)\1/\2\3", re.DOTALL)
_THOUGHT = re.compile(r"think|thought|reason|reflect|scratch|monologue|analysis", re.IGNORECASE)
"""In the names of tags around reasoning. Answers begin with other tags, too: `<b>`, `<answer>`."""
_TAG = re.compile(r"([<\[])(\|?)([^<>\[\]|]*)(\|?)([>\]])\s*\Z")
_NAMES = (("START", "END"), ("start", "end"), ("BEGIN", "END"), ("begin", "end"), ("open", "close"))


def find_reasoning(message: Mapping[str, Any]) -> str:
    r"""Find the reasoning of an answer, in a separate field or in tags at the start of its content; empty: none.

    >>> find_reasoning({"content": "<think>\nTwo and two.\n</think>\n\n4"})
    'Two and two.'
    >>> find_reasoning({"content": "<b>4</b>, of course"})
    ''
    """
    reasoning = message.get("reasoning_content")
    if reasoning:
        return str(reasoning).strip()
    inline = _find_inline(message)
    return inline.group(4).strip() if inline else ""


def find_written_thought(message: Mapping[str, Any]) -> str:
    r"""Find reasoning at the start of the content as it is written there, with its tags and the space after them.

    >>> find_written_thought({"content": "<think>Two and two.</think>\n4"})
    '<think>Two and two.</think>\n'
    """
    inline = _find_inline(message)
    if inline is None:
        return ""
    after = inline.string[inline.end() :]
    return inline.group().lstrip() + after[: len(after) - len(after.lstrip())]


class InlineReasoning(NamedTuple):
    """The place of the reasoning in a content, without its tags and the space inside of them."""

    start: int
    end: int
    words: int
    """Where the words after the closing tag begin."""


def find_inline_reasoning(content: str) -> InlineReasoning | None:
    """Find reasoning in tags at the start of a content, if there are words in it.

    >>> find_inline_reasoning("<think> Two and two. </think> 4")
    InlineReasoning(start=8, end=20, words=30)
    """
    inline = _match_inline(content)
    reasoning = inline.group(4) if inline is not None else ""
    if inline is None or not reasoning.strip():
        return None
    start = inline.start(4) + len(reasoning) - len(reasoning.lstrip())
    after = content[inline.end() :]
    return InlineReasoning(start, start + len(reasoning.strip()), len(content) - len(after.lstrip()))


def _find_inline(message: Mapping[str, Any]) -> re.Match[str] | None:
    content = message.get("content")
    return _match_inline(content) if isinstance(content, str) else None


def _match_inline(content: str) -> re.Match[str] | None:
    inline = _INLINE.match(content)
    return inline if inline and _THOUGHT.search(inline.group(2)) else None


def find_open_tag(prompt: str, template_source: str, end_of_turn: str) -> tuple[str, str] | None:
    r"""Find the tag that a prompt ends with, inside of which the model continues, and the tag that closes it.

    A template need not contain the closing tag of a thought: some write `<think>` into the prompt and no more. A tag
    that is closed by the end of the turn holds the whole answer; it counts as none.

    >>> find_open_tag("<|im_start|>assistant\n<think>\n", "… </think> …", "<|im_end|>")
    ('<think>', '</think>')
    >>> find_open_tag("<|im_start|>assistant\n<think>\n\n</think>\n\n", "… </think> …", "<|im_end|>")
    >>> find_open_tag("<assistant>", "… </assistant> …", "</assistant>")
    """
    match = _TAG.search(prompt, max(0, len(prompt) - 100))
    if match is None:
        return None
    tag = match.group().rstrip()
    names = [name for name in _list_closing_tags(match) if name != tag]
    closing = [name for name in names if name in template_source]
    if not closing and _THOUGHT.search(tag):
        closing = names[:1]
    return (tag, closing[0]) if closing and closing[0] not in end_of_turn else None


def has_closed_thought(prompt: str) -> bool:
    r"""Tell whether a prompt ends with a finished thought, so that the model answers directly.

    >>> has_closed_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n"), has_closed_thought("<|assistant|>")
    (True, False)
    """
    match = _TAG.search(prompt, max(0, len(prompt) - 100))
    if match is None:
        return False
    _, bar, name, last_bar, _ = match.groups()
    is_end = name.startswith(("/", "END", "end")) or (last_bar and not bar)
    return bool(is_end and _THOUGHT.search(prompt, max(0, len(prompt) - 100)))


def _list_closing_tags(tag: re.Match[str]) -> Iterator[str]:
    """List what the tag that closes this one may look like."""
    whole = tag.group().rstrip()
    first, bar, name, last_bar, last = tag.groups()
    if name.startswith("/"):  # it closes one itself
        return
    yield from (whole.replace(begin, end) for begin, end in _NAMES if begin in name)
    yield f"{first}{bar}/{name}{last_bar}{last}"
    yield f"{first}/{bar}{name}{last_bar}{last}"
    yield from (f"{first}{bar}{prefix}{name}{last_bar}{last}" for prefix in ("end_", "end_of_", "end▁of▁"))
    if bar and not last_bar:  # <|channel> … <channel|>
        yield f"{first}{name}|{last}"


class PromptedAnswer(NamedTuple):
    """The text after a prompt: what is added of the thought, and what the template has rendered."""

    thought: str
    rendered: str


def make_prompted_answer(
    message: Message, prompt: str, rendered: str, *, template_source: str, end_of_turn: str
) -> PromptedAnswer:
    """Make an answer fit after its prompt.

    Args:
        message: The answer.
        prompt: The prompt for it.
        rendered: What the template writes of the answer and after it.
        template_source: The source of the template, which may name the tag that closes a thought.
        end_of_turn: The token that ends a turn.

    Raises:
        DroppedChat: The prompt opens a thought, and the record has no reasoning to put there.
    """
    reasoning = find_reasoning(message)
    tags = find_open_tag(prompt, template_source, end_of_turn)
    if tags is None:
        if reasoning in rendered:
            # The prompt says that thinking is over, so no model would write the reasoning after it.
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
    after = ((begin + shift, end + shift) for begin, end in literals.find(template, conversation, text))
    return [*spans, *((begin, end) for begin, end in after if begin >= len(prompt) + len(thought))]


def _strip_reasoning(text: str, reasoning: str) -> str:
    """Remove the reasoning and the tag that closes it from a text."""
    after = text.partition(reasoning)[2]
    tag = re.match(r"\s*[<\[][^<>\[\]\s]{1,40}[>\]]\s*", after)
    return after[tag.end() :] if tag else after
