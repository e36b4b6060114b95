r"""Checks of a conversation before it is rendered: whether it has answers, and an order of messages that makes sense.

What the assistant said or called and a template does not write would be lost silently. Calls are searched by marks: one
more rendering, with a mark instead of each name and each argument. A template that writes only the first of two
parallel calls, or a call without its arguments, leaves some of the marks out.

Arguments that are JSON in a string are quoted a second time by a template with `tojson`:

    record   "arguments": "{\"city\": \"Bonn\"}"
    text     "arguments": "{\"city\": \"Bonn\"}"     instead of "arguments": {"city": "Bonn"}, which tools read

Most records of a source may have no calls at all, so each record is looked at, not only those of the plan's sample.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gristmill.text.chats.answers import list_written_forms
from gristmill.text.chats.options import DROP, KEEP, TRAIN_ALL, TRAIN_ASSISTANT, TRAIN_LAST, TRAIN_MARKED, DroppedChat
from gristmill.text.chats.reasoning import find_reasoning
from gristmill.text.chats.shapes import ASSISTANT, PARTIAL_MARK, SYSTEM, TOOL, USER, NotAChat
from gristmill.text.chats.templates import TemplateError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gristmill.text.chats.answers import Answer
    from gristmill.text.chats.options import ChatOptions, RenderedRecord, TrainOn
    from gristmill.text.chats.shapes import Conversation
    from gristmill.text.chats.templates import ChatTemplate, Message


UNPLANNED_WEIGHTS = "unplanned_weights"
WEIGHTS_HELP = "and `weights: true` of render keeps weights; `weights: false` trains all answers with 1"


def check_conversation(conversation: Conversation, options: ChatOptions, rendered: RenderedRecord) -> Conversation:
    """Check that a conversation can be trained on, and count what is unusual in it.

    Returns the conversation; with `last_not_assistant: trim`, without the messages after its last answer.

    Raises:
        DroppedChat: There is nothing to train on, or the order of its messages makes no sense.
        NotAChat: It marks parts of its messages.
    """
    rendered.counts += conversation.notes.items()
    if conversation.unread:
        rendered.counts.append(("unread_marks", sum(conversation.unread.values())))
        if PARTIAL_MARK in conversation.unread and options.train_on == TRAIN_MARKED:
            raise NotAChat("partial_mark", f"{PARTIAL_MARK}: only whole messages can be marked")
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
        if not has_words(message):
            if role == ASSISTANT:
                raise DroppedChat("empty_answer")
            rendered.counts.append(("empty_messages", 1))
    weighted = [message for message in answers if message in conversation.weights]
    if weighted and options.weights is None:
        raise NotAChat(UNPLANNED_WEIGHTS, f"message {weighted[0]} has a weight, {WEIGHTS_HELP}")
    if weighted and not options.weights:
        rendered.counts.append(("dropped_weights", len(weighted)))
    num_prompted = sum(message < conversation.prompt_length for message in answers)
    if num_prompted:
        rendered.counts.append(("answers_in_prompts", num_prompted))
    unwanted = [message for message in answers if not conversation.marks.get(message, True)]
    num_ignored = sum(is_wanted(conversation, message, options.train_on) for message in unwanted)
    if num_ignored:
        rendered.counts.append(("ignored_train_marks", num_ignored))
    return conversation


def is_wanted(conversation: Conversation, message: int, train_on: TrainOn) -> bool:
    """Tell whether an answer is to be trained on."""
    if train_on == TRAIN_LAST:
        return message == conversation.answers()[-1]
    if train_on in (TRAIN_ASSISTANT, TRAIN_ALL):
        return True
    is_completion = message >= conversation.prompt_length
    return conversation.marks.get(message, is_completion) if train_on == TRAIN_MARKED else is_completion


def has_words(message: Mapping[str, Any]) -> bool:
    """Tell whether a message says or calls anything."""
    content = message.get("content")
    if isinstance(content, str) and content and not content.isspace():
        return True
    texts = [part.get("text", "") for part in content] if isinstance(content, list) else [content or ""]
    texts.append(message.get("reasoning_content") or "")
    return bool(message.get("tool_calls")) or any(text.strip() for text in texts)


CALLS_LEFT_OUT = "calls_left_out"
REASONING_LEFT_OUT, TEXT_LEFT_OUT = "reasoning", "text"


def find_lost_call(template: ChatTemplate, conversation: Conversation, text: str, messages: Collection[int]) -> str:
    """Find a call of these messages that is not in the text, and describe it; empty if all are there."""
    calling = [message for message in sorted(messages) if conversation.messages[message].get("tool_calls")]
    if not calling:
        return ""
    for marks_names in (True, False):  # a template may refuse names of tools that it does not know
        marked = _MarkedCalls(conversation, calling, marks_names=marks_names)
        try:
            rendered = template.render(marked.messages, conversation.tools, conversation.variables)
        except TemplateError:
            continue
        for message, number, marks in marked.calls:
            if any(mark not in rendered for mark in marks):
                return _describe_call(conversation, message, number)
        if marks_names:
            return ""
    for message in calling:  # the template refuses marks: names alone must do
        for number, call in enumerate(conversation.messages[message]["tool_calls"]):
            if call.get("function", call)["name"] not in text:
                return _describe_call(conversation, message, number)
    return ""


def _describe_call(conversation: Conversation, message: int, number: int) -> str:
    calls = conversation.messages[message]["tool_calls"]
    name = calls[number].get("function", calls[number])["name"]
    call_name = f"call {number + 1} of {len(calls)}" if len(calls) > 1 else "the call"
    return f"message {message}: {call_name} ({name!r}) is not in the text with all of its arguments"


class _MarkedCalls:
    """Messages with marks in their calls, and for each call the marks that it has."""

    def __init__(self, conversation: Conversation, calling: Sequence[int], *, marks_names: bool) -> None:
        self.calls: list[tuple[int, int, list[str]]] = []
        self.messages: list[Message] = list(conversation.messages)
        self._marks_names = marks_names
        self._num_marks = 0
        for message in calling:
            calls = [self._call(message, *item) for item in enumerate(self.messages[message]["tool_calls"])]
            self.messages[message] = {**self.messages[message], "tool_calls": calls}

    def _call(self, message: int, number: int, call: dict[str, Any]) -> dict[str, Any]:
        marks: list[str] = []
        self.calls.append((message, number, marks))
        function = dict(call.get("function", call))
        if self._marks_names:
            function["name"] = self._mark(marks)
        if "arguments" in function:
            function["arguments"] = self._list_arguments(function["arguments"], marks)
        return {**call, "function": function} if "function" in call else function

    def _list_arguments(self, arguments: Any, marks: list[str]) -> Any:
        if isinstance(arguments, str):
            try:
                return json.dumps(self._leaves(json.loads(arguments), marks), ensure_ascii=False)
            except (ValueError, RecursionError):
                return self._mark(marks)
        return self._leaves(arguments, marks)

    def _leaves(self, value: Any, marks: list[str]) -> Any:
        if isinstance(value, dict):
            return {key: self._leaves(inner, marks) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._leaves(inner, marks) for inner in value]
        return self._mark(marks)

    def _mark(self, marks: list[str]) -> str:
        """Make a mark of letters, which neither JSON nor code escapes; no mark is the beginning of another one."""
        self._num_marks += 1
        marks.append(f"zqmark{self._num_marks}qz")
        return marks[-1]


def count_lost_answers(
    conversation: Conversation, text: str, answers: Sequence[Answer], rendered: RenderedRecord
) -> None:
    """Count messages whose words are not in the spans that are trained on: templates drop text next to calls."""
    for message in {answer.message for answer in answers}:
        spans = [text[answer.start : answer.end] for answer in answers if answer.message == message]
        lost = [
            (TEXT_LEFT_OUT, words)
            for words in _list_spoken_texts(conversation.messages[message])
            if not any(form in span for span in spans for form in list_written_forms(words))
        ]
        if lost:
            rendered.counts.append(("answer_left_out", 1))
            rendered.left_out += lost


def loses_reasoning(conversation: Conversation, text: str, answers: Sequence[Answer]) -> bool:
    """Tell whether the reasoning of one of these answers is not in the text."""
    reasonings = (find_reasoning(conversation.messages[answer.message]) for answer in answers)
    return any(reasoning not in text for reasoning in reasonings if reasoning)


def count_lost_reasoning(
    conversation: Conversation, text: str, messages: Sequence[int], rendered: RenderedRecord
) -> None:
    """Count reasoning that the template leaves out. It may be meant so, but the user should know."""
    for message in messages:
        reasoning = find_reasoning(conversation.messages[message])
        if reasoning not in text:
            rendered.counts.append(("reasoning_left_out", 1))
            rendered.left_out.append((REASONING_LEFT_OUT, reasoning))


def _list_spoken_texts(message: Message) -> list[str]:
    """List the texts of an answer, without the reasoning in it, which is counted separately."""
    content = message.get("content")
    texts = [part.get("text", "") for part in content] if isinstance(content, list) else [content or ""]
    reasoning = find_reasoning(message)
    if reasoning and len(texts) == 1 and reasoning in texts[0]:
        after = texts[0].partition(reasoning)[2]
        texts = [after.partition(">")[2] if ">" in after else after]
    return [text.strip() for text in texts if text.strip()]


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
