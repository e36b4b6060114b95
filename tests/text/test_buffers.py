"""Texts as arrays for kernels."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from gristmill.text.buffers import get_text_buffers

TEXTS = ["one", None, "", "zwölf"]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string()])
@pytest.mark.parametrize("rows", [slice(0, 4), slice(1, 4), slice(1, 2), slice(2, 3), slice(0, 0)])
def test_the_arrays_hold_the_texts_and_cannot_be_written(kind, rows):
    column = pa.array(TEXTS, kind)[rows]
    data, offsets = get_text_buffers(column)
    found = [bytes(data[start:stop]).decode() for start, stop in pairwise(offsets)]
    assert found == [text or "" for text in TEXTS[rows]]
    assert (data.dtype, offsets.dtype) == (np.uint8, np.int64)
    assert not data.flags.writeable
    assert not offsets.flags.writeable
