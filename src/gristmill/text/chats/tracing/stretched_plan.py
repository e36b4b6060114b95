r"""A chat of one length, stretched to another: pieces of its middle are repeated or left out.

A template that does not know how many messages there are (`tracing/blind_messages.py`) writes the messages behind the
first few and before the last one alike, every second one:

    messages    0 1 2 3  4 5 4 5 … 4 5  last          of chats in which two roles take turns
    pieces      0 1 2 3 4  5 6 5 6 … 5 6  last two      piece 5 is between the messages 4 and 5

So the texts around the messages of a chat of 8 are those of a chat of 38, and so are the places in them. 20 µs for a
new length, where a trace with its search for answers takes 1,000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gristmill.text.chats.tracing.blind_messages import NUM_HEAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.text.chats.tracing.text_plan import GuardFunction

MIN_MESSAGES_TO_STRETCH = NUM_HEAD + 4
"""A chat of this length has both pieces that are repeated."""
_MIN_MESSAGES = NUM_HEAD + 2
_NUM_TAIL = 2
"""The pieces around the last message."""


class ExampleOutline(NamedTuple):
    """An example without its contents: the texts around them, and the places in these."""

    texts: list[bytes]
    """The pieces of text around the contents."""
    stripped: list[bool]
    """For each content whether it is written without space around it."""
    places: list[tuple[int, int]]
    """Where trained ranges begin and end, and then the start of the last answer: a piece, and bytes from its start."""
    counts: list[tuple[str, int]]
    refused_starts: list[tuple[int, str]]
    """Messages, and what their text must not begin with."""
    guards: list[GuardFunction | None]
    """For each content what it is asked; empty if the questions are known only for all together."""

    def are_guards_met(self, contents: Sequence[str]) -> list[str] | None:
        """Tell whether contents give the answers of the guards: an empty list or None."""
        for ask, content in zip(self.guards, contents, strict=True):
            if ask is not None and ask((content,)) is None:
                return None
        return []


def stretch(example: ExampleOutline, roles: Sequence[str], new_roles: Sequence[str]) -> ExampleOutline | None:
    """Make the outline of an example with other roles of that of a long one; None if it does not follow from it."""
    length, new_length = len(roles), len(new_roles)
    if length < MIN_MESSAGES_TO_STRETCH or new_length < _MIN_MESSAGES:
        return None
    messages = [_find_source(index, NUM_HEAD - 1, new_length - 1, length) for index in range(new_length)]
    pieces = [_find_source(index, NUM_HEAD, new_length - 1, length) for index in range(new_length + 1)]
    *trained, (last_piece, last_offset) = example.places
    from_end = len(example.texts) - last_piece
    # Other counts depend on the number of answers.
    is_counted_once = all(name.startswith("found_by_") and count == 1 for name, count in example.counts)
    if [roles[message] for message in messages] != list(new_roles) or from_end > _NUM_TAIL or not is_counted_once:
        return None
    offsets: dict[int, list[int]] = {}
    for piece, offset in trained:
        offsets.setdefault(piece, []).append(offset)
    places = [(index, offset) for index, piece in enumerate(pieces) for offset in offsets.get(piece, ())]
    starts = dict(example.refused_starts)
    return ExampleOutline(
        [example.texts[piece] for piece in pieces],
        [example.stripped[message] for message in messages],
        [*places, (len(pieces) - from_end, last_offset)],
        example.counts,
        [(index, starts[message]) for index, message in enumerate(messages) if message in starts],
        [example.guards[message] for message in messages],
    )


def _find_source(index: int, last_of_head: int, first_of_tail: int, length: int) -> int:
    """Find the message or piece of a chat of some length that another one is like.

    >>> [_find_source(index, 3, 10, 8) for index in range(11)]
    [0, 1, 2, 3, 4, 5, 4, 5, 4, 5, 7]
    """
    if index <= last_of_head:
        return index
    if index >= first_of_tail:
        return index - first_of_tail + length - 1
    return last_of_head + 1 + (index - last_of_head - 1) % 2
