import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.text.counts import Counts, count_text


@pytest.mark.parametrize(
    ("text", "lines", "words"),
    [(b"", 0, 0), (b"\n", 1, 0), (b"a", 1, 1), (b"a\n", 1, 1), (b"a\n\nb c", 3, 3), (b"a\r\nb\r\n", 2, 2)],
)
def test_count_text(text, lines, words):
    assert count_text(text) == Counts(files=1, lines=lines, words=words, bytes=len(text))


@given(st.lists(st.binary(max_size=50)))
def test_counts_of_whole_lines_add_up(texts):
    lines = [text + b"\n" for text in texts]
    total = sum(map(count_text, lines), Counts())
    whole = count_text(b"".join(lines))
    assert total == Counts(len(texts), whole.lines, whole.words, whole.bytes)


def test_agrees_with_wc(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"The mills of God grind slowly,\n\tyet they grind\n exceeding small.\n")
    counted = subprocess.run(["wc", path], capture_output=True, text=True, check=True).stdout.split()[:3]
    counts = count_text(path.read_bytes())
    assert [counts.lines, counts.words, counts.bytes] == [int(number) for number in counted]
