"""Conversations that are too long, made to fit.

The oldest exchanges go first. An exchange is a question and all that follows it up to the next question; a message is
never cut, and what the system says always stays. With s = system, q = question, a = answer, and room for two exchanges:

    drop_turns:  s q1 a1 q2 a2 q3 a3  →  s q2 a2 q3 a3
    windows:     s q1 a1 q2 a2 q3 a3  →  s q1 a1  and  s q2 a2 q3 a3
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gristmill.text.chats.options import CUT, DROP_CHAT, ChatOptions, DroppedChat, RenderedRecord
from gristmill.text.chats.shapes import SYSTEM, USER, Conversation, NotAChat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gristmill.text.chats.chat_images import ChatImages


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
        while rest.answers():
            text = self._render(rest)
            if self._fits(text, rest):
                windows.append(Window(rest, text))
                break
            starts = _find_exchanges(rest)
            window = self._find_longest_end(rest, starts)
            if window is not None:
                windows.append(window)
                rest = rest.first(window.first_message)
            else:  # not even the last exchange fits
                begin = starts[-1] if len(starts) > 1 else 0
                rendered.drop_answers("too_long", rest, [message for message in rest.answers() if message > begin])
                rest = rest.first(begin)
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
        window = self._find_longest_end(conversation, _find_exchanges(conversation))
        if window is None:
            raise DroppedChat("too_long")
        rendered.counts.append(("shortened_chats", 1))
        num_dropped = len(conversation.messages) - len(window.conversation.messages)
        rendered.counts.append(("dropped_messages", num_dropped))
        if self._count_tokens is not None:  # without it nothing is too long
            num_tokens = self._count(text, conversation) - self._count(window.text, window.conversation)
            rendered.counts.append(("shortened_tokens", num_tokens))
        return window

    def _find_longest_end(self, conversation: Conversation, starts: Sequence[int]) -> Window | None:
        """Find the last exchanges, as many as fit, by bisection over the first exchange that stays."""
        low, high = 1, len(starts)
        longest: Window | None = None
        while low < high:
            middle = (low + high) // 2
            shorter = conversation.remove_messages(_list_removable(conversation, starts[0], starts[middle]))
            text = self._render(shorter)
            if self._fits(text, shorter):
                longest, high = Window(shorter, text, starts[middle]), middle
            else:
                low = middle + 1
        return longest

    def _count(self, text: str, conversation: Conversation) -> int:
        assert self._count_tokens is not None
        if self._images is None:
            return self._count_tokens(text)
        return self._count_tokens(self._images.expand(text)) + self._images.count_more_tokens(conversation)

    def _fits(self, text: str, conversation: Conversation) -> bool:
        max_tokens = self._options.max_tokens
        text += self._appended
        if self._images is not None and self._images.list_names(conversation):
            return max_tokens is None or self._count_tokens is None or self._count(text, conversation) <= max_tokens
        # No token is shorter than a byte, and no character longer than four: most texts need not be counted.
        if max_tokens is None or len(text) * 4 < max_tokens or self._count_tokens is None:
            return True
        try:
            num_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            raise NotAChat("lone_surrogate", str(error)) from None
        return num_bytes < max_tokens or self._count_tokens(text) <= max_tokens


def _find_exchanges(conversation: Conversation) -> list[int]:
    """Find where exchanges begin: at a question, or the first of several, that has an answer after it."""
    roles = [message["role"] for message in conversation.messages]
    last = conversation.answers()[-1]
    return [index for index in range(last) if roles[index] == USER and (not index or roles[index - 1] != USER)]


def _list_removable(conversation: Conversation, start: int, stop: int) -> set[int]:
    """List the messages of exchanges, without those of the system: they hold for the exchanges that follow, too."""
    standing = (SYSTEM, "developer")
    return {index for index in range(start, stop) if conversation.messages[index]["role"] not in standing}
