"""Selected rows are those of Arrow's filter, whatever the runs and the columns."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.records import select_rows

TEXTS = st.lists(st.text(max_size=5), max_size=40)


@settings(max_examples=60)
@given(TEXTS, st.integers(0, 8), st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=8), st.booleans())
def test_selects_what_arrow_selects(texts, start, runs, has_null):
    batch = pa.record_batch(
        {
            "text": pa.array([*texts[:-1], None] if has_null and texts else texts, pa.large_string()),
            "record": pa.array([text.encode() for text in texts], pa.large_binary()),
            "number": pa.array(range(len(texts)), pa.int64()),
            "words": pa.array([[text] for text in texts], pa.list_(pa.string())),
        }
    ).slice(start)
    is_kept = np.array([kept for kept, size in runs for _ in range(size)], bool)[: batch.num_rows]
    is_kept = np.append(is_kept, np.ones(batch.num_rows - len(is_kept), bool))
    selected = select_rows(batch, is_kept)
    selected.validate(full=True)
    expected = batch if is_kept.all() else batch.filter(pa.array(is_kept))
    assert selected.equals(expected)
    assert selected[:1].nbytes == expected[:1].nbytes  # samples of dropped records say it
    assert selected.schema == batch.schema
