"""Numbers of every library are taken for what they are, and what only looks like one is refused, everywhere."""

import math
from decimal import Decimal

import numpy as np
import pytest
import torch
from gristmill_testing.streams import write_packed
from hypothesis import given, settings
from hypothesis import strategies as st

import gristmill as gm
from gristmill.core.errors import UsageError
from gristmill.order import Mixture, Permutation
from gristmill.stream import Collate, Stream
from gristmill.stream.torch import TorchDataset, TorchLoader, TorchRows

# What takes a whole number: name -> a call with it. 3 is right for all of them.
WHOLE = {
    "Permutation n": lambda s, n: Permutation(n, 1)(0),
    "Permutation key": lambda s, n: Permutation(9, n)(0),
    "Permutation()": lambda s, n: Permutation(9, 1)(n),
    "Mixture phase": lambda s, n: Mixture([(0, {"a": 1}), (n, {"b": 1})])([0, 1, 2, 3])[0].tolist(),
    "Mixture()": lambda s, n: Mixture({"a": 1, "b": 1})([n])[1].tolist(),
    "Mixture.then": lambda s, n: Mixture({"a": 1}).then(n, {"b": 1})([2, 3])[0].tolist(),
    "Mixture.draws_before": lambda s, n: Mixture({"a": 1, "b": 1}).draws_before(n),
    "Stream seed": lambda s, n: Stream(s.folder, seed=n).rows(0, 4)["input_ids"].tolist(),
    "Stream rows": lambda s, n: len(Stream(s.folder, rows=n)),
    "Stream tokens": lambda s, n: len(Stream(s.folder, tokens=n)),
    "Stream phase": lambda s, n: (
        Stream(s.folder, mixture=[(0, {"a": 1, "b": 0}), (n, {"a": 0, "b": 1})]).rows(0, 5).sources.tolist()
    ),
    "rows start": lambda s, n: s.rows(n, 4)["input_ids"].tolist(),
    "rows stop": lambda s, n: s.rows(1, n)["input_ids"].tolist(),
    "batch step": lambda s, n: s.batch(n, 2)["input_ids"].tolist(),
    "batch size": lambda s, n: s.batch(1, n)["input_ids"].tolist(),
    "batch rank": lambda s, n: s.batch(0, 2, n, 4)["input_ids"].tolist(),
    "batch world": lambda s, n: s.batch(0, 2, 1, n)["input_ids"].tolist(),
    "batches size": lambda s, n: next(Stream(s.folder).batches(n))["input_ids"].tolist(),
    "batches rank": lambda s, n: next(Stream(s.folder).batches(2, n, 4))["input_ids"].tolist(),
    "batches world": lambda s, n: next(Stream(s.folder).batches(2, 1, n))["input_ids"].tolist(),
    "num_steps size": lambda s, n: Stream(s.folder, rows=9).num_steps(n),
    "num_steps world": lambda s, n: Stream(s.folder, rows=9).num_steps(2, n),
    "where step": lambda s, n: [row.row for row in s.where(n, 2)],
    "where size": lambda s, n: [row.row for row in s.where(0, n)],
    "where world": lambda s, n: [row.row for row in s.where(0, 2, n)],
    "Collate pad_to_multiple": lambda s, n: Collate(pad_to_multiple=n),
    "Collate pad_id": lambda s, n: Collate(pad_id=n),
    "Collate cu_seqlens_size": lambda s, n: Collate(cu_seqlens_size=n),
    "TorchLoader size": lambda s, n: next(iter(TorchLoader(Stream(s.folder), n)))["input_ids"].tolist(),
    "TorchLoader rank": lambda s, n: TorchLoader(s, 2, rank=n, world_size=4).rank,
    "TorchLoader world": lambda s, n: TorchLoader(s, 2, rank=1, world_size=n).world_size,
    "TorchLoader threads": lambda s, n: TorchLoader(s, 2, num_threads=n)._num_threads,
    "TorchLoader prefetch": lambda s, n: TorchLoader(s, 2, prefetch=n)._prefetch,
    "TorchDataset size": lambda s, n: next(iter(TorchDataset(Stream(s.folder), n)))["input_ids"].tolist(),
    "TorchDataset rank": lambda s, n: TorchDataset(s, 2, rank=n, world_size=4).rank,
    "TorchDataset world": lambda s, n: TorchDataset(s, 2, rank=1, world_size=n).world_size,
    "TorchRows": lambda s, n: TorchRows(Stream(s.folder, rows=9))[n]["input_ids"].tolist(),
    "TorchRows several": lambda s, n: len(TorchRows(Stream(s.folder, rows=9)).__getitems__([n, 1])),
    "mix size": lambda s, n: gm.mix({"a": (s.folder, 1)}, s.fresh(), size=n, by="rows")[0].taken,
    "mix seed": lambda s, n: gm.mix({"a": (s.folder, 1)}, s.fresh(), size=2, by="rows", seed=n)[0].taken,
}
# What may be None, which means: find it, or leave it.
OPTIONAL = {"Stream rows", "Stream tokens", "Collate pad_id", "Collate cu_seqlens_size"}
TAKE_LISTS = {"Permutation()", "Mixture()", "TorchRows several"}
REAL = {
    "Mixture weight": lambda s, x: Mixture({"a": x, "b": 1})([0, 1])[0].tolist(),
    "Stream weight": lambda s, x: Stream(s.folder, mixture={"a": x, "b": 1}).rows(0, 5).sources.tolist(),
    "Stream folder weight": lambda s, x: Stream({"x": (s.folder, x), "y": (s.folder, 1)}).sources,
    "Stream epochs": lambda s, x: len(Stream(s.folder, epochs=x)),
    "Stream max_epochs": lambda s, x: len(Stream(s.folder, rows=2, max_epochs=x)),
    "mix weight": lambda s, x: gm.mix({"a": (s.folder, x)}, s.fresh(), size=2, by="rows")[0].taken,
    "mix max_epochs": lambda s, x: gm.mix({"a": (s.folder, 1)}, s.fresh(), size=2, by="rows", max_epochs=x)[0].taken,
}
FLAGS = {
    "Stream shuffle": lambda s, x: Stream(s.folder, shuffle=x),
    "Stream drop_last": lambda s, x: Stream(s.folder, drop_last=x),
    "Collate learn_first_token": lambda s, x: Collate(learn_first_token=x),
}

not_whole = st.one_of(
    st.floats(),
    st.booleans(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.just(None),
    st.sampled_from([np.float32(3), np.bool_(True), np.float64("nan"), Decimal(3), 3 + 0j, [3], (3,), {}, "3"]),
    st.integers(max_value=-(2**64) - 1),
    st.integers(min_value=2**64 + 1),
)
not_real = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, np.float32("inf"), "0.5", True, np.bool_(True), [1], 1j]),
    st.floats(max_value=-1e-9),
    st.text(max_size=3),
    st.binary(max_size=3),
)


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    stream = Stream(write_packed(folder / "out", {"a": [20], "b": [20]}))
    stream.folder = folder / "out"
    number = iter(range(10**6))
    stream.fresh = lambda: folder / f"mixed-{next(number)}"
    return stream


@pytest.mark.parametrize("name", WHOLE)
def test_integers_of_any_library_are_the_same(stream, name):
    call = WHOLE[name]
    expected = call(stream, 3)
    for kind in (np.int8, np.uint8, np.int32, np.uint64, np.int64, torch.tensor):
        assert call(stream, kind(3)) == expected


@pytest.mark.parametrize("name", WHOLE)
@settings(max_examples=25, deadline=None)
@given(wrong=not_whole)
def test_what_is_no_whole_number_is_refused(stream, name, wrong):
    if wrong is None and (name in OPTIONAL):
        return
    if isinstance(wrong, list | tuple) and name in TAKE_LISTS:
        return
    with pytest.raises(UsageError):
        WHOLE[name](stream, wrong)


@pytest.mark.parametrize("name", REAL)
def test_numbers_of_any_library_are_the_same(stream, name):
    expected = REAL[name](stream, 1)
    for kind in (float, np.float32, np.float64, np.int16):
        assert REAL[name](stream, kind(1)) == expected


@pytest.mark.parametrize("name", REAL)
@settings(max_examples=25, deadline=None)
@given(wrong=not_real)
def test_what_is_no_number_is_refused(stream, name, wrong):
    with pytest.raises(UsageError):
        REAL[name](stream, wrong)


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("wrong", ["False", 0, 1.0, None, np.bool_(True)])
def test_what_is_neither_true_nor_false_is_refused(stream, name, wrong):
    with pytest.raises(UsageError, match="True or False"):
        FLAGS[name](stream, wrong)


@pytest.mark.parametrize("wrong", [5, None, ["out"], ("out", 1), {"x": ("out",)}, {"x": 3}, b"\xff"])
def test_what_is_no_folder_is_refused(wrong):
    with pytest.raises(UsageError):
        Stream(wrong)


@pytest.mark.parametrize(
    "wrong", [5, "web", [5], [(0,)], [(0, 1)], [(0, {"a": 1}, "rows")], [("0", {"a": 1, "b": 1})], {"a": {}, "b": 1}]
)
def test_what_is_no_mixture_is_refused(stream, wrong):
    with pytest.raises(UsageError):
        Stream(stream.folder, mixture=wrong)


@pytest.mark.parametrize("wrong", [{"sources": 5}, {"sources": "a"}, {"collate": 5}, {"split": 5}, {"mixture": 5}])
def test_other_arguments_of_the_wrong_kind_are_refused(stream, wrong):
    with pytest.raises(UsageError):
        Stream(stream.folder, **wrong)
