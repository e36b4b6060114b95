"""The rules of C4 once more, slowly: what the kernel is compared with."""

# ruff: noqa: RUF001
import re

from gristmill.text.quality.c4_lines import PHRASES
from gristmill.text.quality.character_classes import _TERMINALS
from gristmill_testing.quality_reference import words_of

CITATIONS = re.compile(r"\[[0-9]*\]|\[edit\]|\[citation needed\]")
FULL_WIDTH = "".join(mark for mark in _TERMINALS if ord(mark) >= 0x3000)
SENTENCE_END = re.compile(rf"[{re.escape(_TERMINALS)}]+[\"')\]’”{re.escape(_TERMINALS)}]*(?=\s|$)|[{FULL_WIDTH}]")


def lower(text):
    return "".join(char.lower() if char.isascii() else char for char in text)


def num_sentences(line):
    """Stretches between ends; one that holds nothing but marks and spaces is none."""
    marks = set(_TERMINALS) | set("\"')]’” ")
    pieces = SENTENCE_END.split(line)
    return sum(any(char not in marks and not char.isspace() for char in piece) for piece in pieces)


def clean(text, parameters):
    """The text that stays or None, the reason, and the rules that removed lines."""
    rule = parameters.get
    removed = []
    if not text.strip():
        return None, "empty", removed
    if rule("max_characters") is not None and len(text.strip()) > rule("max_characters"):
        return None, "max_characters", removed
    kept, sentences = [], 0
    for raw in text.strip().split("\n"):
        line = raw.strip()
        if not line:
            continue
        if rule("max_word_length") is not None and max(map(len, words_of(line))) > rule("max_word_length"):
            removed.append("max_word_length")
            continue
        if rule("remove_citations"):
            line = CITATIONS.sub("", line).strip()
        if not line:
            continue
        ends_well = line[-1] in _TERMINALS + '"”' and not line.endswith(("...", "…"))
        found = [phrase for phrase in PHRASES if phrase in lower(line)]
        if rule("require_terminal_punctuation") and not ends_well:
            removed.append("require_terminal_punctuation")
        elif rule("min_words_per_line") is not None and len(words_of(line)) < rule("min_words_per_line"):
            removed.append("min_words_per_line")
        elif rule("drop_lorem_ipsum") and "lorem ipsum" in found:
            return None, "drop_lorem_ipsum", removed
        elif rule("remove_javascript_lines") and "javascript" in found:
            removed.append("remove_javascript_lines")
        elif rule("drop_curly_brackets") and "{" in found:
            return None, "drop_curly_brackets", removed
        elif rule("remove_policy_lines") and set(found) - {"{", "javascript", "lorem ipsum"}:
            removed.append("remove_policy_lines")
        else:
            sentences += num_sentences(line)
            kept.append(line)
    if rule("min_sentences") is not None and sentences < rule("min_sentences"):
        return None, "min_sentences", removed
    return ("\n".join(kept), None, removed) if kept else (None, "no_lines", removed)
