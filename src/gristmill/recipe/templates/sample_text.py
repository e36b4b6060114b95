"""Made-up prose for the sample data of templates: sentences in an order that depends on a number."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gristmill.core.seeds import derive_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SUBJECTS = (
    "The miller",
    "An old farmer",
    "The baker",
    "A young carpenter",
    "The river",
    "Our neighbour",
    "The village",
)
_VERBS = ("brings", "carries", "remembers", "follows", "repairs", "watches", "describes", "measures")
_OBJECTS = (
    "the sacks that have been left by the door",
    "a wooden wheel that turns with the water",
    "every letter of the book with great care",
    "the road to the market in the early morning",
    "stones which have been worn by years of work",
    "a basket of bread and the news of the day",
    "some tools that nobody has used since spring",
    "the old clock whose hands have stopped at noon",
    "an apple tree that stands behind the barn",
    "songs of sailors who have never seen the sea",
    "two horses and the cart with a broken axle",
    "her notes about birds to show them to a friend",
    "the narrow bridge where children like to fish",
    "grain of four fields that have different soils",
    "a lantern for the people who walk home late",
    "his letters to a brother in another country",
    "maps of the valley that were drawn by hand",
    "the fire of the oven until the loaves are brown",
)
_ENDS = (
    "before the rain comes",
    "with a quiet smile",
    "because the harvest was good",
    "and goes home",
    "in late autumn",
    "as always",
    "without a word",
    "when the bell rings",
    "to be of help",
    "for a small fee",
)


def write_prose(number: int, num_sentences: int = 9) -> str:
    """Write a page of sentences, three to a line.

    >>> write_prose(1, 1) == write_prose(1, 1), write_prose(1) == write_prose(2)
    (True, False)
    """
    first = derive_key(number, "first")
    sentences = []
    for index in range(num_sentences):
        key = derive_key(number, f"sentence {index}")
        # Steps of 5 and 3 through the lists: no page says the same thing twice.
        thing, end = _OBJECTS[(first + 5 * index) % len(_OBJECTS)], _ENDS[(first + 3 * index) % len(_ENDS)]
        subject, verb = _SUBJECTS[key % len(_SUBJECTS)], _VERBS[key // 7 % len(_VERBS)]
        sentences.append(f"{subject} {verb} {thing} {end}, {key // 100 % 900} steps from {key // 10**6 % 70} wells.")
    lines = [" ".join(sentences[start : start + 3]) for start in range(0, num_sentences, 3)]
    return "\n".join(lines)


def encode_lines(records: Iterable[Mapping[str, object]]) -> bytes:
    """Encode records as JSON lines."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
