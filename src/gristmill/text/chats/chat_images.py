r"""Images in conversations: which ones a record refers to, where they stand, and what is written for them.

    OpenAI      {"type": "image_url", "image_url": {"url": "cats/1.jpg"}}, or {"type": "image", "image": "cats/1.jpg"}
    ShareGPT    "<image>\nWhat is this?", and next to the conversation "images": ["cats/1.jpg"]

Both become parts of a message, `{"type": "image", "image": "cats/1.jpg"}`, which templates of such models read. Of a
template that does not know of images, contents are texts with a mark for each image; the mark becomes the placeholder
once the text is rendered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.text.chats.options import Example
from gristmill.text.chats.shapes import IMAGE_KEYS, IMAGE_TAG, NotAChat, is_image_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gristmill.text.chats.shapes import Conversation
    from gristmill.text.chats.templates import Message

MARK = "\ufdda"
_TAGS = re.compile(f"({IMAGE_TAG})")


@dataclass(frozen=True, slots=True)
class ChatImages:
    """The images that conversations may refer to, and what is written for them."""

    placeholder: str
    """What a template writes for an image."""
    expansion: str
    """What takes its place: one image token, and what stands around it."""
    inline: str
    """What takes the place of a mark, in the texts of templates that do not know of images."""
    count_tokens: Callable[[str], int]
    """The number of tokens of an image, by its name. Raises `NotAChat` if there is no such image."""

    def read(self, record: Mapping[str, Any], raw: list[Any], *, inlines: bool) -> list[Any]:
        """Return the messages of a record with its images as parts, or as marks in the texts.

        Raises:
            NotAChat: An image is missing, or not placed.
        """
        waiting = _ImageQueue(record)
        messages = [self._read_message(message, index, waiting) for index, message in enumerate(raw)]
        if waiting.names:
            raise NotAChat("unplaced_image", f"{len(waiting.names)} images of the record are in none of its messages")
        return [_put_marks(message) for message in messages] if inlines else messages

    def _read_message(self, message: Any, index: int, waiting: _ImageQueue) -> Any:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            if not waiting.is_used or IMAGE_TAG not in content:
                return message
            parts = [
                {"type": "image", "image": self._check(waiting.take(index))}
                if piece == IMAGE_TAG
                else {"type": "text", "text": piece}
                for piece in _TAGS.split(content)
                if piece
            ]
            return {**message, "content": parts}
        if isinstance(content, list) and any(_is_image(part) for part in content):
            parts = [
                {"type": "image", "image": self._check(_find_name(part) or waiting.take(index))}
                if _is_image(part)
                else part
                for part in content
            ]
            return {**message, "content": parts}
        return message

    def _check(self, name: str) -> str:
        self.count_tokens(name)
        return name

    def list_names(self, conversation: Conversation) -> list[str]:
        """List the images of a conversation, in order."""
        return [name for message in conversation.messages for name in _list_names(message)]

    def count_more_tokens(self, conversation: Conversation) -> int:
        """Count the tokens that images have more than the one in the text."""
        return sum(self.count_tokens(name) - 1 for name in self.list_names(conversation))

    def expand(self, text: str) -> str:
        """Put what stands for images into a text whose tokens are counted, whoever wrote the placeholders."""
        return text.replace(self.placeholder, self.expansion).replace(MARK, self._inline_expansion)

    @property
    def _inline_expansion(self) -> str:
        return self.inline.replace(self.placeholder, self.expansion)

    def place_in_example(self, example: Example, conversation: Conversation, *, inlines: bool) -> Example:
        """Put what stands for images into the text of an example.

        Raises:
            NotAChat: The template does not write each image once.
        """
        names = self.list_names(conversation)
        if not names and inlines:
            return example
        places = self._find_places(example.text, example.literals, inlines=inlines)
        if len(places) != len(names):
            raise NotAChat("images_left_out", f"the template writes {len(places)} of {len(names)} images")
        if not names:
            return example
        text, move = self._place(example.text, places, inlines=inlines)
        trained, literals = (
            [(move(start), move(end)) for start, end in spans] for spans in (example.trained, example.literals)
        )
        parts = [part._replace(start=move(part.start), end=move(part.end)) for part in example.parts]
        weights = [(move(start), move(end), weight) for start, end, weight in example.weights]
        return Example(text, trained, literals, move(example.last_answer), tuple(names), weights, parts)

    def _find_places(self, text: str, literals: list[tuple[int, int]], *, inlines: bool) -> list[tuple[int, int]]:
        """Find the placeholders or marks of a text, without those that someone wrote."""
        needle = MARK if inlines else self.placeholder
        spans = [match.span() for match in re.finditer(re.escape(needle), text)]
        return [span for span in spans if not any(span[0] < end and start < span[1] for start, end in literals)]

    def _place(self, text: str, places: list[tuple[int, int]], *, inlines: bool) -> tuple[str, Callable[[int], int]]:
        """Put what stands for images into their places; returns the text, and where its positions have moved."""
        new = self._inline_expansion if inlines else self.expansion
        pieces, end, moves = [], 0, []
        for start, stop in places:
            pieces += [text[end:start], new]
            end = stop
            moves.append((stop, len(new) - (stop - start)))
        pieces.append(text[end:])

        def move(position: int) -> int:
            return position + sum(shift for stop, shift in moves if stop <= position)

        return "".join(pieces), move


class _ImageQueue:
    """The images that a record lists next to its messages."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        listed: Any = next((record[key] for key in IMAGE_KEYS if record.get(key)), [])
        self.names = [_find_listed(value) for value in (listed if isinstance(listed, list) else [listed])]
        self.is_used = bool(self.names)

    def take(self, index: int) -> str:
        if not self.names:
            raise NotAChat("missing_image", f"message {index} has an image that the record does not name")
        return self.names.pop(0)


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in ("image", "image_url")


def _find_name(part: Mapping[str, Any]) -> str | None:
    """Find the image that a part names; None if it only says that there is one."""
    value = next((part[key] for key in ("image_url", "image", "url", "path") if part.get(key)), None)
    return None if value is None else _find_listed(value)


def _find_listed(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("url") or value.get("path")
    if not isinstance(value, str) or value.startswith(("data:", "http:", "https:")):
        raise NotAChat(
            "image_not_named",
            f"an image must be named by its file or member, not {value!r:.60}: its bytes are not kept",
        )
    return value


def _list_names(message: Message) -> Iterator[str]:
    content = message.get("content")
    if isinstance(content, list):
        yield from (part["image"] for part in content if is_image_part(part))
    yield from message.get("images", ())


def _put_marks(message: Any) -> Any:
    """Write the content of a message as one text, with a mark for each image."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or not any(map(is_image_part, content)):
        return message
    texts = [MARK if is_image_part(part) else part.get("text") if isinstance(part, dict) else None for part in content]
    words = [text for text in texts if isinstance(text, str)]
    if len(words) != len(texts):
        raise NotAChat("content_not_text", "content must be texts and images")
    return {**message, "content": "".join(words), "images": [part["image"] for part in content if is_image_part(part)]}
