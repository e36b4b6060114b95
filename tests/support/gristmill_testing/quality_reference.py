"""Every score once more, slowly and in the words of its definition: what the kernels are compared with."""

import unicodedata
from collections import Counter

from gristmill.text.quality.characters import (
    _BULLETS,
    _CODE_SYMBOLS,
    _SPACELESS_BLOCKS,
    _TERMINALS,
)


def is_letter(char):
    return unicodedata.category(char).startswith("L")


def is_core(char):
    return is_letter(char) or unicodedata.category(char) == "Nd"


def is_spaceless(char):
    return is_letter(char) and any(first <= ord(char) <= last for first, last in _SPACELESS_BLOCKS)


def words_of(text):
    words = []
    for run in text.split():
        word, last_core = "", ""
        for char in run:
            if is_core(char):
                if last_core and (is_spaceless(char) or is_spaceless(last_core)):
                    words.append(word)
                    word = ""
                last_core = char
            word += char
        words.append(word)
    return words


def lines_of(text):
    return [line.strip() for line in text.split("\n") if line.strip()]


def paragraphs_of(text):
    paragraphs, lines = [], []
    for line in [*text.split("\n"), ""]:
        if line.strip():
            lines.append(line.strip())
        elif lines:
            paragraphs.append(tuple(lines))
            lines = []
    return paragraphs


def without_punctuation(word):
    first = next((place for place, char in enumerate(word) if is_core(char)), len(word))
    word = word[first:]
    while word and not is_core(word[-1]) and not unicodedata.category(word[-1]).startswith("M"):
        word = word[:-1]
    return word


def looks_like_code(line):
    dense = [char for char in line if not char.isspace()]
    return line[-1] in "{};" or 10 * sum(char in _CODE_SYMBOLS for char in dense) >= len(dense)


def longest_run(items):
    longest = run = 0
    before = object()
    for item in items:
        run = run + 1 if item == before else 1
        before = item
        longest = max(longest, run)
    return longest


def longest_character_run(text):
    return max((longest_run(part) for part in "".join(c if c > " " else " " for c in text).split(" ")), default=0)


def later_ones(items):
    seen = set()
    found = []
    for item in items:
        if item in seen:
            found.append(item)
        seen.add(item)
    return found


def covered(words, runs, length, of):
    """Characters of the words that lie in any run of `of`."""
    places = set()
    for start, run in enumerate(runs):
        if run in of:
            places.update(range(start, start + length))
    return sum(len(words[place]) for place in places)


def runs_of(words, length):
    return [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]


def top_covered(words, length):
    runs = runs_of(words, length)
    times = Counter(runs)
    most = max(times.values(), default=0)
    if most < 2:
        return 0
    return max(covered(words, runs, length, {run}) for run, count in times.items() if count == most)


def duplicate_covered(words, length):
    runs = runs_of(words, length)
    return covered(words, runs, length, {run for run, count in Counter(runs).items() if count > 1})


def by(number, divisor):
    return number / divisor if divisor else 0.0


def scores_of(text, stop_words=()):
    """All scores of a text."""
    words, lines, paragraphs = words_of(text), lines_of(text), paragraphs_of(text)
    chars = text.strip()
    letters = sum(map(is_letter, chars))
    digits = sum(unicodedata.category(char) == "Nd" for char in chars)
    capitals = sum(unicodedata.category(char) in ("Lu", "Lt") for char in chars)
    word_chars, line_chars = sum(map(len, words)), sum(map(len, lines))
    forms = {form: word for word in stop_words for form in (word, word.lower(), word.upper(), word.capitalize())}
    result = {
        "characters": len(chars),
        "words": len(words),
        "lines": len(lines),
        "paragraphs": len(paragraphs),
        "longest_word": max(map(len, words), default=0),
        "longest_line": max(map(len, lines), default=0),
        "longest_word_run": longest_run(words),
        "longest_character_run": longest_character_run(text),
        "stop_words": len({forms[core] for word in words if (core := without_punctuation(word)) in forms}),
        "mean_word_length": by(word_chars, len(words)),
        "mean_line_length": by(line_chars, len(lines)),
        "letter_ratio": by(letters, len(chars)),
        "digit_ratio": by(digits, len(chars)),
        "alphanumeric_ratio": by(letters + digits, len(chars)),
        "capital_ratio": by(capitals, letters),
        "space_ratio": by(sum(map(str.isspace, chars)), len(chars)),
        "alphabetic_word_ratio": by(sum(any(map(is_letter, word)) for word in words), len(words)),
        "hash_word_ratio": by(sum("#" in word for word in words), len(words)),
        "ellipsis_word_ratio": by(sum("..." in word or "…" in word for word in words), len(words)),
        "lines_per_word": by(len(lines), len(words)),
        "bullet_line_ratio": by(sum(line[0] in _BULLETS for line in lines), len(lines)),
        "ellipsis_line_ratio": by(sum(line.endswith(("...", "…")) for line in lines), len(lines)),
        "terminal_line_ratio": by(sum(line[-1] in _TERMINALS for line in lines), len(lines)),
        "short_line_ratio": by(sum(len(line) <= 30 for line in lines), len(lines)),
        "code_ratio": by(sum(len(line) for line in lines if looks_like_code(line)), line_chars),
        "duplicate_line_ratio": by(len(later_ones(lines)), len(lines)),
        "duplicate_line_character_ratio": by(sum(map(len, later_ones(lines))), line_chars),
        "duplicate_paragraph_ratio": by(len(later_ones(paragraphs)), len(paragraphs)),
        "duplicate_paragraph_character_ratio": by(
            sum(len(line) for paragraph in later_ones(paragraphs) for line in paragraph), line_chars
        ),
        "distinct_word_ratio": by(len(set(words)), len(words)),
    }
    for length in (2, 3, 4):
        result[f"top_{length}_gram_ratio"] = by(top_covered(words, length), word_chars)
    for length in (5, 6, 7, 8, 9, 10):
        result[f"duplicate_{length}_gram_ratio"] = by(duplicate_covered(words, length), word_chars)
    return result
