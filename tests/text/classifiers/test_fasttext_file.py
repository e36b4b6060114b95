"""Files of fastText models: damage is refused."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.text.classifiers.fasttext_model import open_fasttext

MODELS = Path(__file__).parent / "models"


def read(name):
    return np.frombuffer((MODELS / name).read_bytes(), np.uint8)


def score(content, texts, label="hq"):
    return open_fasttext(content, "m.bin", label).score(pa.array(texts, pa.large_string()))


@pytest.mark.parametrize("name", ["softmax.bin", "hs.ftz"])
def test_every_truncated_file_is_refused(name):
    content = read(name)
    for size in [*range(0, 300, 7), *range(300, len(content), 997), len(content) - 1]:
        with pytest.raises(UsageError, match=r"m\.bin"):
            score(content[:size], ["good1"])


@pytest.mark.parametrize("place", [28, 48], ids=["words", "characters"])
def test_runs_that_would_take_for_ever_are_refused(place):
    content = read("softmax.bin").copy()
    content[place : place + 4].view("<i4")[:] = 2**31 - 1
    content.flags.writeable = False
    with pytest.raises(UsageError, match="2147483647 words or characters together"):
        score(content, ["good1"])


@example("hs.ftz", 47229, 70, 2)  # a weight of thousands
@settings(max_examples=80, deadline=None)
@given(st.sampled_from(["softmax.bin", "hs.ftz"]), st.integers(0, 1 << 30), st.integers(0, 255), st.integers(1, 8))
def test_damaged_files_give_an_error_or_a_number(name, place, value, width):
    content = read(name).copy()
    # Two of three damages are among the sizes and the dictionary, where they matter.
    start = place % (200 if place % 3 else len(content))
    content[start : start + width] = value
    content.flags.writeable = False
    try:
        scores = score(content, ["good1 c2 schön bad3", ""])
    except UsageError:
        return
    assert ((scores >= 0) & (scores <= 1)).all()
