"""Conversations that are too long, made to fit.

The oldest exchanges go first. An exchange is a question and all that follows it up to the next question; a message is
never cut, and what the system says always stays. With s = system, q = question, a = answer, and room for two exchanges:

    drop_turns:  s q1 a1 q2 a2 q3 a3  →  s q2 a2 q3 a3
    windows:     s q1 a1 q2 a2 q3 a3  →  s q1 a1  and  s q2 a2 q3 a3

An agent works long on one question: its turns (an answer and the results of its calls, r) are many in one exchange.
`turn_windows` cuts between turns, too, and each window has the question that its turns are about. With room for two
turns:

    turn_windows:  s q1 a1 r1 a2 r2 a3 r3 a4 q2 a5  →  s q1 a1 r1 a2  and  s q1 a3 r3 a4  and  s q2 a5

How long a part is, only its rendering tells. The first guess is made by characters, each next one by the tokens of the
parts that were rendered: 3 to 5 renderings of about the length of a window, however long the conversation is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import count, takewhile
from typing import TYPE_CHECKING, NamedTuple

from gristmill.text.chats.conversation_checks import is_wanted
from gristmill.text.chats.options import CUT, DROP_CHAT, TURN_WINDOWS, ChatOptions, DroppedChat, RenderedRecord
from gristmill.text.chats.shapes import ASSISTANT, SYSTEM, USER, Conversation, NotAChat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gristmill.text.chats.chat_images import ChatImages


_CHARS_PER_TOKEN = 3
"""The first guess."""
_MAX_GUESSES = 5
"""After this many guesses the rest is divided in halves."""


class Window(NamedTuple):
    """A part of a conversation that fits, and its text."""

    conversation: Conversation
    text: str
    first_message: int = 0
    """Which message of the whole conversation its first exchange begins with."""


class LengthFitter:
    """Shortens conversations to `max_tokens`."""

    def __init__(
        self,
        options: ChatOptions,
        render: Callable[[Conversation], str],
        count_tokens: Callable[[str], int] | None,
        appended: str,
        images: ChatImages | None = None,
    ) -> None:
        """`appended` is what is written after each text, and counts as well."""
        self._images = images
        self._options = options
        self._render = render
        self._count_tokens = count_tokens
        self._appended = appended

    def cut_windows(self, conversation: Conversation, rendered: RenderedRecord) -> list[Window]:
        """Cut a conversation into windows that fit, each with the system's words: every answer is in one of them.

        The last window is what `drop_turns` would leave, the one before it what it would leave of the rest, and so on.
        """
        windows: list[Window] = []
        rest = conversation
        sizes = _measure_messages(conversation)
        while any(is_wanted(rest, message, self._options.train_on) for message in rest.answers()):
            rest = rest.first(rest.answers()[-1] + 1)
            starts = self._find_starts(rest)
            window = self._find_longest_end(rest, [0, *starts[1:]], sizes)
            if window is not None:
                windows.append(window)
                rest = rest.first(window.first_message)
            else:  # not even the last exchange fits, or the last turn
                begin = starts[-1] if len(starts) > 1 else 0
                rendered.drop_answers("too_long", rest, [message for message in rest.answers() if message >= begin])
                rest = rest.first(begin)
        if not windows and not rendered.dropped:
            raise DroppedChat("nothing_to_train_on")
        if len(windows) > 1 or rendered.dropped:
            rendered.counts.append(("windows", len(windows)))
        return windows[::-1]

    def fit(self, conversation: Conversation, rendered: RenderedRecord) -> Window:
        """Leave out as few of the oldest exchanges as possible, so that the conversation fits."""
        text = self._render(conversation)
        if self._options.too_long == CUT or self._fits(text, conversation):
            return Window(conversation, text)
        if self._options.too_long == DROP_CHAT:
            raise DroppedChat("too_long")
        starts = self._find_starts(conversation)
        window = self._find_longest_end(conversation, starts[1:], _measure_messages(conversation))
        if window is None:
            raise DroppedChat("too_long")
        rendered.counts.append(("shortened_chats", 1))
        num_dropped = len(conversation.messages) - len(window.conversation.messages)
        rendered.counts.append(("dropped_messages", num_dropped))
        if self._count_tokens is not None:  # without it nothing is too long
            num_tokens = self._count(text, conversation) - self._count(window.text, window.conversation)
            rendered.counts.append(("shortened_tokens", num_tokens))
        return window

    def fit_together(
        self, conversations: Sequence[Conversation], num_prompted: int, rendered: RenderedRecord
    ) -> list[Conversation]:
        """Leave out as few of the oldest exchanges as possible, the same of each: they share the first messages.

        Of these, `num_prompted`, at least one stays.
        """
        ignored = RenderedRecord()
        first = max(self.fit(conversation, ignored).first_message for conversation in conversations)
        if not first:
            return list(conversations)
        if first >= num_prompted:
            raise DroppedChat("too_long")
        shorter = [each.remove_messages(_list_removable(each, _find_exchanges(each), first)) for each in conversations]
        rendered.counts.append(("shortened_chats", 1))
        rendered.counts.append(("dropped_messages", len(conversations[0].messages) - len(shorter[0].messages)))
        return shorter

    def _find_starts(self, conversation: Conversation) -> list[int]:
        """Find where a part may begin, the first of them where the conversation does."""
        starts = _find_exchanges(conversation)
        return _add_turns(conversation, starts) if self._options.too_long == TURN_WINDOWS else starts

    def _find_longest_end(
        self, conversation: Conversation, starts: Sequence[int], sizes: Sequence[int]
    ) -> Window | None:
        """Find the first start from which on a conversation fits; a later start never gives a longer text.

        Args:
            conversation: The conversation.
            starts: Where it may begin; from 0 on it is whole.
            sizes: About how many characters it has up to each of its messages.
        """
        exchanges = _find_exchanges(conversation)
        end, most = sizes[len(conversation.messages)], self._options.max_tokens or 0
        room = most * _CHARS_PER_TOKEN
        low, high = 0, len(starts)
        longest: Window | None = None
        for attempt in count():
            if low >= high:
                return longest
            middle = (low + high) // 2
            if attempt < _MAX_GUESSES:  # the first start after which there are no more characters than there may be
                middle = min(max(bisect_left(starts, end - room, key=sizes.__getitem__), low), high - 1)
            start = starts[middle]
            part = conversation
            if start:
                part = conversation.remove_messages(_list_removable(conversation, exchanges, start))
            text = self._render(part)
            num_tokens = self._count_if_long(text, part)
            if num_tokens <= most or self._is_unlimited:
                longest, high = Window(part, text, start), middle
            else:
                low = middle + 1
            if num_tokens:
                room = int((end - sizes[start]) * most / num_tokens)
        raise AssertionError

    def _count(self, text: str, conversation: Conversation) -> int:
        assert self._count_tokens is not None
        if self._images is None:
            return self._count_tokens(text)
        return self._count_tokens(self._images.expand(text)) + self._images.count_more_tokens(conversation)

    @property
    def _is_unlimited(self) -> bool:
        return self._options.max_tokens is None or self._count_tokens is None

    def _fits(self, text: str, conversation: Conversation) -> bool:
        return self._is_unlimited or self._count_if_long(text, conversation) <= (self._options.max_tokens or 0)

    def _count_if_long(self, text: str, conversation: Conversation) -> int:
        """Count the tokens of a text; 0 if it is so short that it fits in any case."""
        if self._is_unlimited:
            return 0
        assert self._count_tokens is not None
        assert self._options.max_tokens is not None
        text += self._appended
        if self._images is not None and self._images.list_names(conversation):
            return self._count(text, conversation)
        # No token is shorter than a byte, and no character longer than four: most texts need not be counted.
        if len(text) * 4 < self._options.max_tokens:
            return 0
        try:
            num_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            raise NotAChat("lone_surrogate", str(error)) from None
        return 0 if num_bytes < self._options.max_tokens else self._count_tokens(text)


def _measure_messages(conversation: Conversation) -> list[int]:
    """About how many characters there are up to each message, and up to the end."""
    sizes = [0]
    for message in conversation.messages:
        size = sum(len(value) for value in message.values() if isinstance(value, str))
        content = message.get("content")
        if isinstance(content, list) or message.get("tool_calls"):
            size += len(str(content)) if isinstance(content, list) else 0
            size += sum(len(str(call)) for call in message.get("tool_calls") or ())
        sizes.append(sizes[-1] + size)
    return sizes


def _find_exchanges(conversation: Conversation) -> list[int]:
    """Find where exchanges begin: at a question, or the first of several, that has an answer after it."""
    roles = [message["role"] for message in conversation.messages]
    last = conversation.answers()[-1]
    return [index for index in range(last) if roles[index] == USER and (not index or roles[index - 1] != USER)]


def _add_turns(conversation: Conversation, exchanges: Sequence[int]) -> list[int]:
    """Add to the starts of exchanges those of turns: answers that follow no question, but a result or an answer."""
    roles = [message["role"] for message in conversation.messages]
    first = exchanges[0] if exchanges else 0
    turns = [index for index in conversation.answers() if index > first and roles[index - 1] not in (USER, *_STANDING)]
    return sorted({*exchanges, *turns})


_STANDING = (SYSTEM, "developer")


def _list_removable(conversation: Conversation, exchanges: Sequence[int], start: int) -> set[int]:
    """List the messages to remove before a start.

    Those of the system stay: they hold for what follows, too. Before a turn the question stays that it is about.
    """
    roles = [message["role"] for message in conversation.messages]
    question_messages: set[int] = set()
    if roles[start] == ASSISTANT:
        question = exchanges[bisect_right(exchanges, start) - 1]
        question_messages.update(takewhile(lambda index: roles[index] == USER, range(question, start)))
    return {
        index
        for index in range(exchanges[0], start)
        if roles[index] not in _STANDING and index not in question_messages
    }
