"""Every score once more, slowly and in the words of its definition: what the kernels are compared with."""

import re
import unicodedata
from collections import Counter
from fractions import Fraction

from gristmill.text.quality.character_classes import (
    _BULLETS,
    _SPACELESS_BLOCKS,
    _TERMINALS,
)
from gristmill.text.quality.code_lines import _KEYWORDS

OPERATORS = re.findall(
    r"\S+",
    "== != => -> :: && || += -= *= := <- </ /> () [] {} /* */ <= >= << >> $( ${ ++ #{ <% %> |> ); }, ], // "
    "(\" (' =\" =' (( ))",
)
FENCES = ("```", "~~~")
QUOTES = ('"""', "'''")


def is_letter(char):
    return unicodedata.category(char).startswith("L")


def is_core(char):
    return is_letter(char) or unicodedata.category(char) == "Nd"


def is_spaceless(char):
    return is_letter(char) and bool(letters_a_word(char))


def letters_a_word(char):
    return next((letters for first, last, letters in _SPACELESS_BLOCKS if first <= ord(char) <= last), 0)


def words_of(text):
    return [word for words in runs_without_space(text) for word in words]


def runs_without_space(text):
    """The words of each run of characters without space."""
    runs = []
    for run in text.split():
        words = []
        runs.append(words)
        word, last_core = "", ""
        for char in run:
            if is_core(char):
                if last_core and (is_spaceless(char) or is_spaceless(last_core)):
                    words.append(word)
                    word = ""
                last_core = char
            word += char
        words.append(word)
    return runs


def piece_ends(text):
    """For each word the number of the one behind the piece that begins with it."""
    ends = []
    for words in runs_without_space(text):
        first = len(ends)
        shares = [Fraction(1, letters_a_word(letter)) if (letter := spaceless_letter(word)) else 1 for word in words]
        for place in range(len(words)):
            end, size = place + 1, shares[place]
            while size < 1 and end < len(words) and shares[end] < 1:
                size += shares[end]
                end += 1
            ends.append(first + end)
    return ends


def spaceless_letter(word):
    return next((char for char in word if is_spaceless(char)), None)


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


def is_glued(before, char, after):
    """Whether it is inside a name or a call, by the characters around it."""
    if not (before + char).isascii():
        return False
    return bool(
        (char == "_" and before.isalnum())
        or (char == "(" and (before.isalnum() or before in "_)"))
        or (char == "[" and (before.isalnum() or before in "_])"))
        or (char == "." and (before.isalnum() or before in ")]") and re.match("[a-z_]", after))
        or (before.islower() and char.isupper())
        or (before in "$@" and char.isalpha())
    )


def is_assigned(before, char, after):
    if char != "=" or not before.isascii():
        return False
    return (before == " " and after in "\0 ") or (before.isalnum() and after not in "\0 =>")


def next_word_state(state, char):
    """From "open" over "letters" and "closed" to "other": what has been seen of a word."""
    if is_letter(char) or unicodedata.category(char).startswith("M"):
        return "letters" if state in ("open", "letters") else "other"
    if char == "'":
        return state
    if char in "-,.;:!?)" and state == "open":
        return "other"
    if char == "-":
        return state
    if char in ",.;:!?)" and state == "letters":
        return "closed"
    if char == "(":
        return "other" if state == "letters" else state
    if char == "*" or not char.isascii():
        return "closed" if state == "letters" else state
    return state if char in ",.;:!?)" else "other"


def code_points_of_line(line, is_indented):
    """Above 0 for code, below 0 for prose."""
    keyword = re.match(r"#?(?:([a-z]+)(?![a-zA-Z0-9_'-])|([A-Z]+)(?![a-zA-Z0-9_']))", line)
    has_keyword = bool(keyword) and keyword[keyword.lastindex].lower() in _KEYWORDS.split()
    if line.startswith(("//", "/*", "*/", "#!", "#'")) or (has_keyword and line[0] == "#"):
        return 9
    if line.startswith(("#", "*", "%", ";", "!", "--")):
        return 0
    seen, states, state = Counter(), [], "open"
    quote, in_address, is_escaped = "", False, False
    for place, char in enumerate(line):
        before, after = line[place - 1] if place else " ", line[place + 1 : place + 2] or "\0"
        if quote:
            if is_escaped or char == "\\":
                is_escaped = not is_escaped
            elif char == quote:
                quote = ""
        elif char.isspace():
            seen["spaces"] += 1
            states.append(state)
            state, in_address = "open", False
        elif place and before.isspace() and (char + after) in ("# ", "//"):
            break
        elif in_address:
            pass
        elif before + char + after == "://":
            state, in_address = "other", True
        else:
            seen["letters"] += is_core(char)
            seen["operators"] += before + char in OPERATORS
            seen["glued"] += is_glued(before, char, after)
            if before.isascii() and char.isascii():
                seen["glued"] += bool(re.match("[A-Z]-[A-Z]| :[a-z]", before + char + after))
                seen["open"] += (char == "(") - (char == ")")
            seen["assigned"] += is_assigned(before, char, after)
            if char in '"`' or (char == "'" and not is_core(before)):
                quote = char
            else:
                seen["foreign"] += not char.isascii() and next_word_state("open", char) == "letters"
                state = next_word_state(state, char)
    states.append(state)
    ends_block = line[-1] in ";{}"
    if not seen["letters"]:
        return 5 if ends_block else 0
    if line[-1] == ":" and not seen["spaces"] and not has_keyword:
        return 0
    begins_small = bool(re.match("[a-z]", line))
    may_assign = begins_small or is_indented or line[0] in "_$@"
    points = -4 + 5 * ends_block + (line[-1] in ",:") - 2 * (line[-1] in _TERMINALS) + 4 * is_indented
    points += min(seen["operators"], 3) + 2 * min(seen["glued"], 3)
    points += 5 * (seen["assigned"] > 0 and may_assign) + 5 * has_keyword
    points += 4 * (line[0] == "(" and seen["open"] > 0)
    points += begins_small or line[0] in ")]}<@$\"'{(["
    points -= 5 * (seen["foreign"] > 0)
    return points - min(sum(state in ("letters", "closed") for state in states), 10) // 2


def mark_of(line):
    if line.startswith(FENCES):
        return line[:3]
    return next((quotes for quotes in QUOTES if triples(line).count(quotes) % 2), None)


def triples(line):
    return re.findall("\"\"\"|'''", line)


def code_characters(text):
    """Characters of the lines that are code."""
    lines = []
    for line in text.split("\n"):
        if line.strip():
            indent = line[: len(line) - len(line.lstrip())]
            lines.append((line.strip(), indent.endswith((" ", "\t"))))
    enclosed, quoted, place = set(), set(), 0
    while place < len(lines):
        mark = mark_of(lines[place][0])
        close = next((later for later in range(place + 1, len(lines)) if mark_of(lines[later][0]) == mark), None)
        if mark and close:
            enclosed.update(range(place, close + 1))
            quoted.update(range(place, close + 1) if mark in QUOTES else ())
            place = close
        elif mark:
            break
        place += 1
    verdicts = []
    for place, (line, is_indented) in enumerate(lines):
        if place in quoted:
            verdicts.append("code")
        elif place in enclosed:
            verdicts.append("fenced")
        else:
            points = code_points_of_line(line, is_indented)
            verdicts.append("code" if points > 0 else "prose" if points < 0 else "")
    characters = 0
    for place, own in enumerate(verdicts):
        decided = [verdict for verdict in verdicts[:place] if verdict in ("code", "prose")][-1:]
        decided += [verdict for verdict in verdicts[place:] if verdict in ("code", "prose")][:1]
        verdict = own or "".join(decided[:1])
        characters += len(lines[place][0]) * (verdict in ("code", "fenced"))
    return characters


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


def covered(words, runs, of):
    """Characters of the words that lie in any run of `of`."""
    places = set()
    for start, end, run in runs:
        if run in of:
            places.update(range(start, end))
    return sum(len(words[place]) for place in places)


def runs_of(words, ends, length):
    """Every run of so many pieces: its first word, the one behind its last, and its pieces."""
    runs = []
    for start in range(len(words)):
        pieces, end = [], start
        while len(pieces) < length and end < len(words):
            pieces.append("".join(words[end : ends[end]]))
            end = ends[end]
        if len(pieces) == length:
            runs.append((start, end, tuple(pieces)))
    return runs


def top_covered(words, runs):
    times = Counter(run for _, _, run in runs)
    most = max(times.values(), default=0)
    if most < 2:
        return 0
    return max(covered(words, runs, {run}) for run, count in times.items() if count == most)


def duplicate_covered(words, runs):
    times = Counter(run for _, _, run in runs)
    return covered(words, runs, {run for run, count in times.items() if count > 1})


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
        "code_ratio": by(code_characters(text), line_chars),
        "duplicate_line_ratio": by(len(later_ones(lines)), len(lines)),
        "duplicate_line_character_ratio": by(sum(map(len, later_ones(lines))), line_chars),
        "duplicate_paragraph_ratio": by(len(later_ones(paragraphs)), len(paragraphs)),
        "duplicate_paragraph_character_ratio": by(
            sum(len(line) for paragraph in later_ones(paragraphs) for line in paragraph), line_chars
        ),
        "distinct_word_ratio": by(len(set(words)), len(words)),
    }
    ends = piece_ends(text)
    for length in (2, 3, 4):
        result[f"top_{length}_gram_ratio"] = by(top_covered(words, runs_of(words, ends, length)), word_chars)
    for length in (5, 6, 7, 8, 9, 10):
        runs = runs_of(words, ends, length)
        result[f"duplicate_{length}_gram_ratio"] = by(duplicate_covered(words, runs), word_chars)
    return result
