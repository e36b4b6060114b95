"""Where `fim` cuts documents: the same places as slow, obvious code, in the shares that were asked for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN, documents
from gristmill.core.seeds import hash_origins
from gristmill.steps import Fim
from gristmill.steps.fim import FAMILIES


def slow(step, batch, seed):
    """The cut of each document, one by one, with whole numbers of Python."""
    cuts = []
    for row, text in enumerate(batch.column("text").to_pylist()):
        origin = batch.column(ORIGIN).slice(row, 1)

        def draw(purpose, origin=origin):
            return int(hash_origins(seed, purpose, origin)[0])

        if draw("fim") >= step.rate * 2**64:
            cuts.append([])
            continue
        places = sorted((draw(purpose) >> 32) * (len(text) + 1) >> 32 for purpose in ("fim/first", "fim/second"))
        cuts.append([*places, int(draw("fim/spm") < step.spm * 2**64)])
    return cuts


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(st.text("aé粉🌾\n", max_size=9), max_size=30),
    rate=st.sampled_from([0.0, 0.3, 1.0]),
    spm=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 5),
)
def test_the_same_places_as_obvious_code(texts, rate, spm, seed):
    step, batch = Fim(rate=rate, spm=spm), documents(texts)
    result = step.apply(batch, seed)
    cuts = result.batch.column("fim").to_pylist()
    assert cuts == slow(step, batch, seed)
    assert all(0 <= cut[0] <= cut[1] <= len(text) for cut, text in zip(cuts, texts, strict=True) if cut)
    assert result.counters == {
        "psm": sum(bool(cut) and not cut[2] for cut in cuts),
        "spm": sum(bool(cut) and cut[2] == 1 for cut in cuts),
    }


def test_shares_and_places_are_even():
    cuts = Fim(rate=0.5, spm=0.25).apply(documents(["abcd"] * 20_000), 7).batch.column("fim").to_pylist()
    chosen = [cut for cut in cuts if cut]
    assert 9_700 < len(chosen) < 10_300
    assert 0.23 < sum(cut[2] for cut in chosen) / len(chosen) < 0.27
    whole = sum(cut[:2] == [0, 4] for cut in chosen) / len(chosen)  # two of 25 pairs of places
    assert 0.07 < whole < 0.09


@pytest.mark.parametrize("keys", [{"rate": 1.1}, {"spm": -0.1}, {"tokens": {}}, {"tokens": {"prefix": "a"}}])
def test_values_that_make_no_sense(keys):
    with pytest.raises(UsageError):
        Fim(**keys)


def test_the_tokens_of_a_family_or_named_ones():
    for names in FAMILIES.values():
        added = {"<s>": 0} | {name: 100 + number for number, name in enumerate(names)}
        assert Fim().find_tokens(added, "mine") == tuple(range(100, 100 + len(names)))
    named = Fim(tokens={"prefix": "<p>", "suffix": "<s>", "middle": "<m>"})
    assert named.find_tokens({"<m>": 1, "<p>": 2, "<s>": 3}, "mine") == (2, 3, 1)
    for step, added in ((Fim(), {"<s>": 0}), (named, {"<p>": 2})):
        with pytest.raises(UsageError, match="mine"):
            step.find_tokens(added, "mine")
