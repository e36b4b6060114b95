"""The compiled loops over tokens of chats, against slow twins."""

import unicodedata
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.token_kinds import TRAINED
from gristmill.steps.tokenize.chat_kernel import code_tokens, find_composable_texts, find_trained_rows
from gristmill.text.buffers import get_text_buffers

# By id: two tokens of one byte, one of three, an added one, and a lone mark.
LENGTHS = np.array([1, 1, 3, 5, 1], dtype=np.int32)
IS_ADDED = np.array([False, False, False, True, False])


def read_only(values, dtype):
    array = np.array(values, dtype=dtype)
    array.flags.writeable = False
    return array


@settings(max_examples=200, deadline=None)
@given(data=st.data(), begins_text=st.booleans(), begins_behind_added=st.booleans())
def test_codes_are_those_of_a_loop_over_tokens(data, begins_text, begins_behind_added):
    rows = data.draw(st.lists(st.lists(st.integers(0, 4), max_size=12), max_size=4))
    ids, offsets, sizes, changes, change_offsets, expected, unplaced = [], [0], [], [], [0], [], []
    for row in rows:
        marked, starts, position = begins_text, [], 0
        for number in row:
            starts.append(position)
            position += int(LENGTHS[number]) - (marked and not IS_ADDED[number])
            marked = begins_behind_added if IS_ADDED[number] else False
        borders = sorted(data.draw(st.sets(st.integers(0, position + 1), max_size=6)))
        own = [(border, data.draw(st.integers(0, 31))) for border in borders]
        expected += [next((code for border, code in own[::-1] if border <= start), 0) for start in starts]
        size = position + data.draw(st.integers(0, 1))
        unplaced.append(size != position)
        sizes.append(size)
        ids += row
        offsets.append(len(ids))
        changes += [number for change in own for number in change]
        change_offsets.append(len(changes))
    codes, is_unplaced = np.zeros(len(ids), dtype=np.uint8), np.zeros(len(rows), dtype=bool)
    code_tokens(
        *(read_only(ids, np.uint32), read_only(offsets, np.int64), LENGTHS, IS_ADDED),
        *(begins_text, begins_behind_added, read_only(sizes, np.int64), read_only(changes, np.int64)),
        *(np.array(change_offsets, dtype=np.int64), codes, is_unplaced),
    )
    assert codes.tolist() == expected
    assert is_unplaced.tolist() == unplaced
    is_trained = np.zeros(len(rows), dtype=bool)
    find_trained_rows(codes, read_only(offsets, np.int64), is_trained)
    assert is_trained.tolist() == [any(code & TRAINED for code in expected[a:b]) for a, b in pairwise(offsets)]


def test_nfc_changes_no_text_that_is_called_stable():
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    may_compose = np.ones(len(characters), dtype=bool)
    find_composable_texts(*get_text_buffers(pa.array(characters, pa.large_string())), may_compose)
    stable = [character for character, may in zip(characters, may_compose.tolist(), strict=True) if not may]
    assert len(stable) > 40_000
    # A text of such characters is in NFC if none is changed, is sorted among marks, or is the second one of a pair.
    seconds = {chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}
    for character in characters:
        parts = unicodedata.decomposition(character).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            seconds.add(chr(int(parts[1], 16)))
    assert seconds.isdisjoint(stable)
    assert not any(map(unicodedata.combining, stable))
    assert all(unicodedata.normalize("NFC", character) == character for character in stable)


def test_a_text_is_as_stable_as_its_characters():
    texts = [
        "",
        "plain",
        "Grüße, 中文。한글 „so“ 👍 Привет",
        "中e\u0301",
        "한\u11a8",
        "か\u3099",
        "\u2126",
        "a\u0344",
        "ελ",
    ]
    may_compose = np.ones(len(texts), dtype=bool)
    find_composable_texts(*get_text_buffers(pa.array(texts, pa.large_string())), may_compose)
    assert may_compose.tolist() == [False] * 3 + [True] * 6
