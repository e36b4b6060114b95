import itertools

import numpy as np
import pytest
from gristmill_testing import packing as reference
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.core.token_kinds import TRAINED
from gristmill.steps.pack import LONG_DOCUMENTS, STRATEGIES, Pack
from gristmill.steps.pack_rows import count_trained_tokens, fill_rows, find_unfinished_rows, plan_rows

PACKS = st.builds(
    Pack,
    row_length=st.integers(2, 70),
    strategy=st.sampled_from(STRATEGIES),
    long_documents=st.sampled_from(LONG_DOCUMENTS),
)
LENGTHS = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 200)), max_size=60)


def plan(pack, lengths):
    return plan_rows(pack, np.array(lengths, dtype=np.int64))


def rows_of(packing):
    pieces = list(zip(packing.documents.tolist(), packing.starts.tolist(), packing.lengths.tolist(), strict=True))
    starts = [0, *packing.row_ends.tolist()]
    assert starts == sorted(set(starts))  # no row is empty
    assert starts[-1] == len(pieces)
    return [pieces[start:end] for start, end in itertools.pairwise(starts)]


@settings(deadline=None, max_examples=400)
@given(PACKS, LENGTHS)
@example(Pack(row_length=6), [3, 3, 6, 5, 1, 4, 2, 7])
def test_rows_are_those_of_the_slow_reference(pack, lengths):
    expected = reference.ROWS[pack.strategy](lengths, pack.row_length, pack.long_documents)
    assert rows_of(plan(pack, lengths)) == expected


@settings(deadline=None, max_examples=200)
@given(PACKS, LENGTHS)
def test_every_token_stands_in_one_place_or_is_counted(pack, lengths):
    packing = plan(pack, lengths)
    places = [
        (document, start + index)
        for document, start, length in zip(packing.documents, packing.starts, packing.lengths, strict=True)
        for index in range(length)
    ]
    assert len(set(places)) == len(places) == packing.num_tokens
    assert sum(lengths) == packing.num_tokens + packing.truncated_tokens + packing.dropped_tokens
    assert packing.num_empty == lengths.count(0)
    long = sum(length > pack.row_length for length in lengths)
    assert packing.num_dropped_documents == (long if pack.long_documents == "drop" else 0)
    assert packing.num_truncated_documents == (long if pack.long_documents == "truncate" else 0)
    assert len(set(packing.documents.tolist())) == len(lengths) - packing.num_empty - packing.num_dropped_documents
    if pack.long_documents == "split":
        assert packing.num_tokens == sum(lengths)


@settings(deadline=None, max_examples=200)
@given(PACKS, LENGTHS)
def test_only_concat_cuts_what_a_row_could_hold(pack, lengths):
    packing = plan(pack, lengths)
    num_pieces = np.bincount(packing.documents, minlength=len(lengths))
    assert packing.num_split_documents == np.count_nonzero(num_pieces > 1)
    if pack.strategy != "concat":
        cut = np.flatnonzero(num_pieces > 1)
        assert all(lengths[document] > pack.row_length for document in cut)


@settings(deadline=None, max_examples=200)
@given(PACKS, LENGTHS)
def test_at_most_one_row_is_half_empty(pack, lengths):
    packing = plan(pack, lengths)
    fills = packing.tokens_in_rows()
    assert fills.tolist() == [sum(length for _, _, length in row) for row in rows_of(packing)]
    assert all(0 < fill <= pack.row_length for fill in fills)
    if pack.strategy == "concat":
        assert all(fill == pack.row_length for fill in fills[:-1])
    elif pack.strategy == "best_fit":
        assert sum(fill <= pack.row_length / 2 for fill in fills) <= 1


@settings(deadline=None, max_examples=200)
@given(PACKS, LENGTHS)
def test_rows_worth_packing_again_are_few_and_the_emptiest(pack, lengths):
    packing = plan(pack, lengths)
    fills = packing.tokens_in_rows()
    unfinished = find_unfinished_rows(pack, packing)
    assert unfinished.tolist() == sorted(unfinished)
    if pack.strategy == "pad":
        assert not len(unfinished)
    elif pack.strategy == "concat":
        assert unfinished.tolist() == [row for row, fill in enumerate(fills) if fill < pack.row_length]
    else:
        spacious = [row for row, fill in enumerate(fills) if fill < pack.row_length * 15 / 16]
        assert set(unfinished) <= set(spacious)
        assert len(unfinished) == min(16, len(spacious))
        others = [fills[row] for row in spacious if row not in unfinished]
        assert all(fills[row] <= other for row in unfinished for other in others)


@settings(deadline=None, max_examples=100)
@given(PACKS, LENGTHS, st.sampled_from([np.uint16, np.uint32]), st.data())
def test_rows_hold_the_tokens_of_their_pieces(pack, lengths, dtype, data):
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    borders = sorted(data.draw(st.lists(st.sampled_from(offsets.tolist()), max_size=3), label="borders"))
    ids = np.split(np.arange(offsets[-1], dtype=dtype), borders)
    packing = plan(pack, lengths)
    filled = fill_rows(ids, offsets, packing, pack.row_length, pad_id=65535)
    assert filled.dtype == dtype
    expected = []
    for row in rows_of(packing):
        tokens = [offsets[document] + start + index for document, start, length in row for index in range(length)]
        expected.append(tokens + [65535] * (pack.row_length - len(tokens)))
    assert filled.reshape(-1, pack.row_length).tolist() == expected


CHATS = st.lists(st.lists(st.booleans(), max_size=30), max_size=30)
"""The masks of chats."""


@settings(deadline=None, max_examples=200)
@given(
    st.builds(
        Pack,
        row_length=st.integers(2, 20),
        strategy=st.sampled_from(["best_fit", "pad"]),
        long_documents=st.sampled_from(["drop", "truncate"]),
    ),
    CHATS,
)
def test_chats_without_a_trained_token_in_reach_are_left_out_and_counted(pack, chats):
    lengths = np.array([len(mask) for mask in chats], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    codes = np.array([bit * TRAINED for mask in chats for bit in mask], dtype=np.uint8)
    trained = count_trained_tokens(codes, offsets, lengths, pack.row_length)
    assert trained.tolist() == [sum(mask[: pack.row_length]) for mask in chats]
    packing = plan_rows(pack, lengths, trained)
    in_reach = [mask[: pack.row_length] for mask in chats]
    too_long = [pack.long_documents == "drop" and len(mask) > pack.row_length for mask in chats]
    kept = [n for n, mask in enumerate(in_reach) if any(mask) and not too_long[n]]
    assert sorted(packing.documents.tolist()) == kept
    assert packing.num_dropped_documents == sum(too_long)
    assert packing.num_empty == sum(not mask for mask in chats)
    assert len(chats) == len(kept) + sum(too_long) + packing.num_empty + packing.num_untrained_documents
    assert lengths.sum() == packing.num_tokens + packing.truncated_tokens + packing.dropped_tokens
    rows = fill_rows([codes], offsets, packing, pack.row_length, pad_id=0).reshape(-1, pack.row_length)
    for row, pieces in zip(rows, rows_of(packing), strict=True):
        marks = [bit for document, _, _ in pieces for bit in in_reach[document]]
        assert (row // TRAINED).tolist() == marks + [0] * (pack.row_length - len(marks))


def test_a_row_length_that_is_no_power_of_two():
    # A search tree that is sized by row_length itself sends pieces to the wrong stack here.
    for row_length in (3, 5, 6, 7, 9, 100, 1000, 4097):
        lengths = np.random.default_rng(row_length).integers(1, row_length + 1, 500)
        packing = plan(Pack(row_length=row_length), lengths)
        assert packing.tokens_in_rows().max() <= row_length
        assert packing.num_tokens == lengths.sum()


def test_rows_are_nearly_full():
    lengths = np.random.default_rng(7).lognormal(6, 1.2, 20_000).astype(np.int64)
    packing = plan(Pack(row_length=2048), lengths)
    assert packing.num_tokens / (packing.num_rows * 2048) > 0.999


def test_ids_that_cannot_hold_the_padding_are_refused():
    packing = plan(Pack(row_length=4), [3])
    with pytest.raises(OverflowError):
        fill_rows([np.arange(3, dtype=np.uint16)], np.array([0, 3]), packing, 4, pad_id=70_000)


def test_read_only_ids_as_arrow_gives_them():
    ids = np.arange(3, dtype=np.uint16)
    ids.flags.writeable = False
    packing = plan(Pack(row_length=4), [3])
    assert fill_rows([ids], np.array([0, 3]), packing, 4, pad_id=9).tolist() == [0, 1, 2, 9]


@settings(deadline=None, max_examples=200)
@given(st.sampled_from([2, 3, 8]), st.integers(1, 9), st.sampled_from(LONG_DOCUMENTS), LENGTHS)
def test_aligned_documents_fit_into_their_rows(align, multiple, long_documents, lengths):
    """Packing with `align` is packing documents that are already padded, and no token is lost."""
    pack = Pack(row_length=align * multiple, align=align, long_documents=long_documents)
    packing = plan(pack, lengths)
    for row in rows_of(packing):
        assert sum(-(-length // align) * align for _, _, length in row) <= pack.row_length
    assert packing.num_tokens + packing.truncated_tokens + packing.dropped_tokens == sum(lengths)
    plain = plan(
        Pack(row_length=pack.row_length, long_documents=long_documents), [-(-n // align) * align for n in lengths]
    )
    assert [[document for document, _, _ in row] for row in rows_of(packing)] == [
        [document for document, _, _ in row] for row in rows_of(plain)
    ] or long_documents == "drop"
