"""How benchmark items look in training data: in markup, escapes and listings, changed, and in parts."""

import html
import json
import re
import textwrap
from urllib.parse import quote


def each_nth_word(number, change):
    """A kind that changes every nth word."""

    def apply(text):
        pieces = re.split(r"(\s+)", text)
        words = 0
        for place in range(0, len(pieces), 2):
            words += bool(pieces[place])
            if pieces[place] and words % number == 0:
                pieces[place] = change(pieces[place])
        return "".join(pieces)

    return apply


def on_each_line(write, width=70):
    """A kind that writes each line with its number; prose is wrapped first."""

    def apply(text):
        lines = text.splitlines() if text.count("\n") > 3 else textwrap.wrap(text, width)
        return "\n".join(write(number, line) for number, line in enumerate(lines, 1))

    return apply


def half(start, stop):
    """A kind that leaves a part of the words, with what is between them."""

    def apply(text):
        if text.isascii():
            pieces = re.split(r"(\s+)", text.strip())
        else:  # scripts without spaces
            pieces = re.split(r"()", text.strip())
        words = len(pieces) // 2 + 1
        return "".join(pieces[2 * round(start * words) : 2 * round(stop * words)])

    return apply


def numeric_entities(form):
    return lambda text: "".join(form.format(ord(character)) for character in text)


def in_words(mark):
    return lambda text: re.sub(r"(\w)(\w)", rf"\1{mark}\2", text)


VERBATIM = {
    "verbatim": lambda text: text,
    "capitals": str.upper,
    "one line": lambda text: " ".join(text.split()),
    "curly quotes": lambda text: text.replace("'", "\u2019").replace('"', "\u201d").replace("-", "\u2013"),
}
TAGS = {
    "<br> at each 10th word": each_nth_word(10, lambda word: f"{word}<br>"),
    "<br/> at each 4th word": each_nth_word(4, lambda word: f"{word}<br/>"),
    "one <em>": lambda text: re.sub(r"(\S+\s+\S+\s+\S+\s+\S+\s+\S+\s+)(\S+)", r"\1<em>\2</em>", text, count=1),
    "<b> at each 3rd word": each_nth_word(3, lambda word: f"<b>{word}</b>"),
    "tags in words": each_nth_word(5, lambda word: f'{word[:1]}<span class="w x">{word[1:]}</span>'),
    "<p> with attributes": lambda text: re.sub(
        r"([.?!])\s+", r'\1</p>\n<p style="margin: 0 auto; color: red" id="q">', f"<p>{text}</p>"
    ),
    "links": each_nth_word(6, lambda word: f'<a href="https://example.org/wiki/{word[:3]}" title="to it">{word}</a>'),
    "comments": each_nth_word(6, lambda word: f"{word}<!-- a note > of it -->"),
    "table cells": lambda text: "<table><tr><td>" + "</td><td>".join(text.split(" ")) + "</td></tr></table>",
    "escaped tags": lambda text: html.escape(each_nth_word(4, lambda word: f"<b>{word}</b>")(text)),
}
ENTITIES = {
    "html.escape": html.escape,
    "&nbsp; for spaces": lambda text: html.escape(text).replace(" ", "&nbsp;"),
    "punctuation as entities": lambda text: re.sub(r"[^\w\s]", lambda match: f"&#{ord(match[0])};", text),
    "each character, decimal": numeric_entities("&#{};"),
    "each character, hexadecimal": numeric_entities("&#x{:x};"),
    "each 3rd word, hexadecimal": each_nth_word(3, numeric_entities("&#x{:X};")),
    "escaped twice": lambda text: html.escape(html.escape(text)).replace(" ", "&amp;nbsp;"),
    "&shy; in words": in_words("&shy;"),
}
ESCAPES = {
    "JSON": json.dumps,
    "JSON in JSON": lambda text: json.dumps(json.dumps({"q": text})),
    "JSON, one line for each sentence": lambda text: json.dumps(re.sub(r"([.?!])\s+", r"\1\n", text)),
    "HTML in JSON": lambda text: (
        json.dumps(f"<p>{html.escape(text)}</p>").replace("<", "\\u003c").replace(">", "\\u003e")
    ),
    "\\u for each character": lambda text: "".join(f"\\u{ord(character):04x}" for character in text),
    "bytes of Python": lambda text: repr(text.encode())[2:-1],
    "octal": lambda text: "".join(rf"\{byte:03o}" for byte in text.encode()),
    "octal spaces": lambda text: text.replace(" ", r"\040").replace("\n", r"\012"),
    "URL": quote,
    "form data": lambda text: quote(text, safe=" ").replace(" ", "+"),
}
MARKDOWN = {
    "link at each 12th word": each_nth_word(12, lambda word: f"[{word}](https://example.org/a_b/{word[:4]}?q=1)"),
    "link at each 4th word": each_nth_word(4, lambda word: f'[{word}](../a/b.md#part "A title of it")'),
    "reference links": each_nth_word(5, lambda word: f"[{word}][ref-{len(word)}]"),
    "images": each_nth_word(6, lambda word: f"{word} ![an image](/img/a.png)"),
    "bold at each 3rd word": each_nth_word(3, lambda word: f"**{word}**"),
    "bold inside words": each_nth_word(4, lambda word: f"**{word[:1]}**{word[1:]}"),
    "code and italics": each_nth_word(2, lambda word: f"_`{word}`_"),
    "footnotes": each_nth_word(5, lambda word: f"{word}[^1]"),
    "citations": each_nth_word(5, lambda word: f"{word}[12]"),
    "backslashes": lambda text: re.sub(r"([^\w\s])", r"\\\1", text),
    "quoted": on_each_line(lambda number, line: f"> {line}", 40),
}
LATEX = {
    "\\text for each word": each_nth_word(1, lambda word: f"\\text{{{word}}}"),
    "\\textbf at each 3rd word": each_nth_word(3, lambda word: f"\\textbf{{{word}}}"),
    "numbers in $": lambda text: re.sub(r"\b\d+\b", r"$\\mathbf{\g<0>}$", text),
    "items": on_each_line(lambda number, line: f"\\item {line} \\\\", 40),
    "LaTeX in JSON": lambda text: json.dumps(each_nth_word(3, lambda word: f"\\emph{{{word}}}")(text)),
}
LISTINGS = {
    "numbers": on_each_line(lambda number, line: f"{number:4} {line}"),
    "numbers and colons": on_each_line(lambda number, line: f"{number}: {line}", 40),
    "numbers and bars": on_each_line(lambda number, line: f"{number + 7:3} | {line}", 30),
    "numbers with zeros": on_each_line(lambda number, line: f"{number:03}  {line}", 30),
    "numbers in lines of their own": on_each_line(lambda number, line: f"{number}\n{line}", 40),
    "numbered list in HTML": on_each_line(
        lambda number, line: f"<tr><td>{number}</td><td>{html.escape(line)}</td></tr>", 30
    ),
    "numbers by tens": on_each_line(lambda number, line: f"{10 * number} {line}", 30),
    "cells of a notebook": on_each_line(lambda number, line: f"In [{number + 8}]: {line}", 30),
    "numbers at the right": on_each_line(lambda number, line: f"{line:50} {number + 97}", 30),
    "comments with numbers at the right": on_each_line(lambda number, line: f"{line}  // L{number}", 30),
    "L and colons": on_each_line(lambda number, line: f"L{number}: {line}", 30),
    "lines of a file": on_each_line(lambda number, line: f"src/file_2.py:{number + 5}: {line}", 30),
    "lines and columns": on_each_line(lambda number, line: f"file.py:{number}:{len(line) % 7}: {line}", 30),
    "times": on_each_line(lambda number, line: f"[00:{number * 7 // 60:02}:{number * 7 % 60:02}] {line}", 30),
    "a log": on_each_line(lambda number, line: f"[INFO] my.module: {line}", 30),
    "a prompt": on_each_line(lambda number, line: f"me@host:~/work$ {line}", 30),
    "x of y": on_each_line(lambda number, line: f"(Line {number} of 40) {line}", 30),
    "Chinese numbers": on_each_line(lambda number, line: f"第{number}行\uff1a{line}", 30),
    "comments of code": on_each_line(lambda number, line: f"    # {line}", 40),
    "a diff": on_each_line(lambda number, line: f"+{line}", 40),
}
INVISIBLE = {
    "zero-width spaces in words": in_words("\u200b"),
    "soft hyphens": in_words("\u00ad"),
    "joiners around words": lambda text: re.sub(r"(\w+)", "\u2060\\1\ufeff", text),
    "full width": lambda text: "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in text),
}
CHANGES = {
    "each 20th word changed": each_nth_word(20, lambda word: "other"),
    "each 12th word changed": each_nth_word(12, lambda word: "other"),
    "each 15th word left out": each_nth_word(15, lambda word: ""),
    "two words inserted at each 12th": each_nth_word(12, lambda word: f"{word} (see above)"),
}
PARTS = {"first half": half(0, 0.5), "second half": half(0.5, 1), "middle half": half(0.25, 0.75)}

KINDS = VERBATIM | TAGS | ENTITIES | ESCAPES | MARKDOWN | LATEX | LISTINGS | INVISIBLE | CHANGES | PARTS
