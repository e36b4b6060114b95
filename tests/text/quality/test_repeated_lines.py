"""Lines that repeat earlier ones."""

import pyarrow as pa

from gristmill.text.quality.counting import RequiredPasses, TextCounter


def test_lines_that_differ_in_their_gaps_alone_have_hashes_of_their_own():
    lines = [f"a{one}b{two}c" for one in (" ", "  ", "\t", " \t", "\t ") for two in (" ", "  ", "\t")] + [
        "的是",
        "的 是",
    ]
    counting = TextCounter(RequiredPasses(lines=True))
    counting.count(pa.array(["\n".join(lines * 2)], pa.large_string()))
    hashes = counting._scratch.line_hashes[: 2 * len(lines)].tolist()
    assert len(set(hashes)) == len(lines)
    assert hashes[: len(lines)] == hashes[len(lines) :]
