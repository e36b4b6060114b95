"""The viewer in a terminal: the same rows by keys, and nothing in the data that the terminal would obey."""

import json
import re
from itertools import pairwise

from gristmill_testing.reports import EVIL
from gristmill_testing.screens import run_gristmill
from gristmill_testing.scripts import run
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.pipeline.inspecting.viewing import open_collections
from gristmill.report.view.describe import encode_line, make_lines, measure, wrap
from gristmill.report.view.terminal import HELP, Screen, split_keys
from gristmill.shards.dataset import open_dataset


def show(screen):
    return "\n".join("".join(text for text, _ in line) for line in screen.draw())


def type_in(screen, text):
    for key in text:
        screen.press(key)
    screen.press("enter")


def test_keys(mixed_rows):
    dataset = open_dataset(mixed_rows)
    screen = Screen(open_collections([mixed_rows]), 90, 20)
    assert len(screen.draw()) == 20
    assert show(screen).splitlines()[1].startswith("row 0")
    type_in(screen, "g7")
    assert show(screen).splitlines()[1].startswith("row 7")
    screen.press("right")
    assert show(screen).splitlines()[1].startswith("row 8")
    screen.press("left")
    screen.press("left")
    assert show(screen).splitlines()[1].startswith("row 6")
    # Lines scroll over the borders of rows and back to where they were.
    before = show(screen)
    for key in ("down", " ", "up", "page-up"):
        screen.press(key)
    assert show(screen) == before
    screen.press("G")
    assert show(screen).splitlines()[1].startswith(f"row {len(dataset) - 1}")
    screen.press("home")
    texts = [dataset.decode(number) for number in range(len(dataset))]
    hits = [number for number, text in enumerate(texts) if "books text number 4" in text.lower()]
    type_in(screen, "/BOOKS text number 4")
    for number in hits:
        assert show(screen).splitlines()[1].startswith(f"row {number}")
        assert any(style == "mark" for line in screen.draw()[1:-1] for _, style in line)
        screen.press("n")
    assert "not found" in show(screen)
    type_in(screen, "fsplit=validation")
    assert f"1 of {len(dataset.split('validation'))}" in show(screen)
    type_in(screen, "fsorce=books")
    assert 'did you mean "source"?' in screen.message
    type_in(screen, "fscore=nonsense:1:2")
    assert "score" in screen.message
    type_in(screen, "f")
    type_in(screen, "s2, 3")
    assert "1 of 3" in show(screen)
    assert "of the stream" in show(screen)
    type_in(screen, "/re:(")
    assert "regular expression" in screen.message
    screen.press("/")
    screen.press("x")
    screen.press("backspace")
    screen.press("escape")
    screen.press("/")
    for width, height in ((30, 8), (12, 5), (2, 2), (1, 1)):
        screen.resize(width, height)
        assert len(screen.draw()) == height
        assert all(sum(measure(char) for text, _ in line for char in text) <= max(2, width) for line in screen.draw())
    screen.press("escape")
    assert len(screen.draw()) == 1
    screen.press("q")
    assert screen.is_closed


def test_a_hit_far_down_in_a_row_is_on_the_screen(tmp_path):
    text = "".join(f"line {number}\n" for number in range(300))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text + end}) + "\n" for end in ("", "the needle")))
    screen = Screen(open_collections([tmp_path / "a.jsonl"]), 60, 12)
    type_in(screen, "/needle")
    assert "the needle" in show(screen)
    screen.press("home")
    assert show(screen).splitlines()[1].startswith("row 0")


def test_all_collections(web):
    screen = Screen(open_collections([web]), 100, 30)
    seen = []
    for _ in range(3):
        seen.append(show(screen).splitlines()[0])
        screen.press("tab")
    assert ["quarantined" in title for title in seen] == [False, True, False]
    assert "dropped" in seen[2]
    assert show(screen).splitlines()[0] == seen[0]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.text(max_size=40), st.sampled_from(["plain", "token"]))), st.integers(2, 30))
def test_lines_hold_the_text_and_fit(segments, width):
    lines = wrap(segments, width)
    for line in lines:
        text = "".join(text for text, _ in line)
        assert sum(map(measure, text)) <= width
        codes = re.sub(r"\x1b\[[0-9;]*m", "", encode_line(line, width))
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", codes)
    plain = [(text, style) for text, style in segments if text.isalnum()]
    assert "".join(text for line in wrap(plain, width) for text, _ in line) == "".join(text for text, _ in plain)


def test_keys_are_listed_in_80_columns_and_explained(mixed_rows):
    assert sum(map(measure, HELP)) <= 80
    screen = Screen(open_collections([mixed_rows]), 80, 20)
    before = show(screen)
    screen.press("?")
    for key in ("q ", "/ ", "f ", "s ", "tab ", "g "):
        assert any(line.startswith(key) for line in show(screen).splitlines())
    screen.press("q")
    assert (show(screen), screen.is_closed) == (before, False)


@given(st.lists(st.text("abc", min_size=1, max_size=9), max_size=20), st.integers(9, 30))
def test_words_are_not_cut_at_the_edge(words, width):
    lines = ["".join(text for text, _ in line) for line in wrap([(" ".join(words), "plain")], width)]
    assert " ".join(lines).split() == words


@given(st.text(max_size=30), st.text(min_size=1, max_size=3), st.lists(st.integers(0, 30), max_size=4))
def test_marks_change_no_text(text, query, cuts):
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    tokens = [[1, text[a:b], 1, ""] for a, b in pairwise(borders)]
    row = {"number": 0, "documents": [{"origin": "", "num_tokens": 1, "tokens": tokens}]}
    lines = make_lines(row, 500, re.compile(re.escape(query)))
    unmarked = make_lines(row, 500)
    assert ["".join(t for t, _ in line) for line in lines] == ["".join(t for t, _ in line) for line in unmarked]


def test_keys_of_a_terminal():
    assert list(split_keys("\x1b[A\x1b[6~a\x1b[Zé\x7f")) == [
        "up",
        "page-down",
        "a",
        "escape",
        "[",
        "Z",
        "é",
        "backspace",
    ]


def test_a_real_terminal(tmp_path):
    """In an emulator: what a person sees, the keys that a keyboard sends, and the page left as it was."""
    title = "\x1b]0;hacked\x07\x1b[2J\x1b[31m"
    records = [{"text": f"document {n} {title if n == 3 else ''}" + "word " * 30} for n in range(50)]
    records[20] = {"text": EVIL + " needle 中文"}
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with run_gristmill("view", "--tty", "a.jsonl", folder=tmp_path, columns=80, rows=20) as screen:
        screen.wait_for("files · 1 of 50", "document 0 word", "q quit")
        assert not screen.has_cursor
        screen.type("\x1b[C\x1b[C\x1b[C")
        assert r"\x1b]0;hacked\x07\x1b[2J" in screen.wait_for("files · 4 of 50", "document 3")
        screen.type("/needle\r")
        text = screen.wait_for("files · 21 of 50", "中")
        assert "window.hacked" in text
        screen.type("g40\r")
        screen.wait_for("files · 41 of 50")
        screen.type("\x1b[B" * 5)
        screen.wait_for("files · 42 of 50")
        screen.type("q")
        screen.read_to_end()
        assert screen.process.returncode == 0
        assert screen.has_cursor


def test_without_a_terminal(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    result = run("-m", "gristmill", "view", "--tty", "a.jsonl", cwd=tmp_path)
    assert result.returncode == 2
    assert "needs a terminal" in result.stderr
