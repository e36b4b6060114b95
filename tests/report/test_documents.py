"""Documents in several rows: the pieces of each are found again, in their order, whatever packed them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill.report.documents import _join_digests, _mix, _raise_base, join_pieces
from gristmill.steps.pack import STRATEGIES, Pack
from gristmill.steps.pack_rows import plan_rows


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=30),
    st.integers(4, 20),
    st.sampled_from(STRATEGIES),
    st.integers(1, 3),
)
def test_every_document_is_joined_from_its_pieces(lengths, row_length, strategy, num_copies):
    if strategy == "concat":
        num_copies = 1  # a copy right behind the end of a full row would look like its rest
    lengths = np.array(lengths)
    packing = plan_rows(Pack(row_length=row_length, strategy=strategy), lengths)
    rows = np.repeat(np.arange(packing.num_rows), np.diff(packing.row_ends, prepend=0))
    is_last = np.zeros(len(rows), np.bool_)
    is_last[packing.row_ends - 1] = packing.tokens_in_rows() == row_length
    documents, starts, sizes, is_last = (
        np.tile(values, num_copies) for values in (packing.documents, packing.starts, packing.lengths, is_last)
    )
    is_concat = strategy == "concat"
    pieces = join_pieces(documents.astype(np.uint64), sizes == row_length, is_last, is_concat=is_concat)
    assert sorted(pieces.order.tolist()) == list(range(len(documents)))
    found = []
    for group in np.split(pieces.order, pieces.starts[1:]):
        number = documents[group[0]]
        assert (documents[group] == number).all()
        # Without a rest nothing says where a copy ends: then copies are one document.
        num_joined = sizes[group].sum() // lengths[number]
        assert num_joined == 1 or lengths[number] % row_length == 0
        expected = np.arange(0, lengths[number], row_length)
        if not is_concat:
            assert starts[group].tolist() == expected.tolist() * num_joined
        assert sizes[group].sum() == num_joined * lengths[number]
        assert (np.diff(starts[group]) > 0).all() or num_joined > 1
        found += [number] * num_joined
    assert sorted(found) == sorted(list(range(len(lengths))) * num_copies)


@given(st.lists(st.integers(0, 2**32), min_size=1, max_size=40), st.data())
def test_the_hash_of_a_document_does_not_depend_on_its_cuts(tokens, data):
    values = _mix(np.array(tokens, np.uint64))
    whole = (values * _raise_base(np.arange(len(tokens)))).sum(dtype=np.uint64)
    cuts = sorted({0, *data.draw(st.lists(st.integers(1, len(tokens)), max_size=4))} - {len(tokens)})
    parts = np.split(values, cuts[1:])
    digests = np.array([(part * _raise_base(np.arange(len(part)))).sum(dtype=np.uint64) for part in parts])
    sizes = np.array([len(part) for part in parts], np.uint32)
    keys = np.zeros(len(parts), np.uint64)
    pieces = join_pieces(keys, np.zeros(len(parts), np.bool_), np.ones(len(parts), np.bool_), is_concat=True)
    assert _join_digests(digests, sizes, pieces).tolist() == [whole]
