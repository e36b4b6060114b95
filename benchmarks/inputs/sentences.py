"""Sentences of real text: the docstrings of Python's own library, or the texts of a file of the user's.

About 20,000 sentences of English technical prose come with every Python. New documents are new sequences of them, with
a share of the words misspelt or replaced by fresh numbers: a tokenizer with a cache of words meets unseen ones
at a natural rate, which repeating a small file would hide. `CORPUS=` uses sentences of real data instead.
"""

from __future__ import annotations

import json
import pydoc_data.topics
import re
import sysconfig
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

_DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
_END = re.compile(r"(?<=[.!?])\s+|\n{2,}")
_MAX_SENTENCES = 120_000
_MIN_CHARS, _MAX_CHARS = 30, 500


@cache
def list_sentences(corpus: Path | None = None) -> list[str]:
    """Return sentences in the order of their first appearance, each once."""
    sentences: dict[str, None] = {}
    for text in _texts_of(corpus) if corpus else _python_texts():
        for sentence in _END.split(text):
            words = " ".join(sentence.split())
            if _MIN_CHARS < len(words) < _MAX_CHARS:
                sentences[words] = None
        if len(sentences) > _MAX_SENTENCES:
            break
    return list(sentences)


def _texts_of(corpus: Path):
    with corpus.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def _python_texts():
    for topic in sorted(pydoc_data.topics.topics):
        yield pydoc_data.topics.topics[topic]
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if not {"site-packages", "test", "tests", "idlelib", "lib2to3"} & set(path.relative_to(library).parts):
            yield from _DOCSTRING.findall(path.read_text(encoding="utf-8", errors="replace"))


def edit_words(words: list[str], share: float, rng: random.Random) -> list[str]:
    """Change about this share of the words in place: swapped or added letters, numbers, identifiers.

    >>> import random
    >>> edit_words(["several", "words", "here"], 1.0, random.Random(3))
    ['several', 'words', '387296e']
    """
    count = len(words) * share
    for _ in range(int(count) + (rng.random() < count % 1)):
        position = rng.randrange(len(words))
        word, kind = words[position], rng.randrange(4)
        if kind == 0 and len(word) > 3:
            swapped = rng.randrange(len(word) - 1)
            word = word[:swapped] + word[swapped + 1] + word[swapped] + word[swapped + 2 :]
        elif kind == 1:
            word = str(rng.randrange(10**6))
        elif kind == 2:
            word = f"{rng.getrandbits(40):x}"
        else:
            word += rng.choice("aeiousrtn")
        words[position] = word
    return words


def make_text(pool: list[str], count: int, rng: random.Random) -> str:
    """Return a text of some sentences in paragraphs, with 2 % of its words changed."""
    text = " ".join(rng.choices(pool, k=count))
    text = " ".join(edit_words(text.split(" "), 0.02, rng))
    return text.replace(". ", ".\n", count // 4)
