"""Every state loads into a stream that is built alike, and its phases are taken again."""

import json

import pytest
from gristmill_testing.streams import write_packed
from gristmill_testing.token_datasets import write_tokens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.stream import Stream

weights = st.floats(0.001, 1) | st.just(0) | st.integers(1, 9)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("states")
    long_and_short = {("train", "c"): [[[[1] * 12]] * 9], ("train", "d"): [[[[2] * 5]] * 4]}
    return {
        "one": write_packed(folder / "one", {"a": [7]}),
        "two": write_packed(folder / "two", {"a": [7], "b": [5], "none": [0]}, mixture={"a": 0.9, "b": 0.1}, seed=1),
        "uneven": write_tokens(folder / "uneven", long_and_short, row_length=12),
    }


@st.composite
def streams(draw, folders):
    """The arguments of a stream, and how to name its weights."""
    data = draw(st.sampled_from([*folders, "all"]))
    sources = {"one": ["a"], "two": ["a", "b"], "uneven": ["c", "d"], "all": list(folders)}[data]
    given = folders[data] if data != "all" else folders
    options = {
        "weights_in": draw(st.sampled_from(["rows", "tokens"])),
        "seed": draw(st.integers(0, 3)),
        "shuffle": draw(st.booleans()),
    }
    if data == "two":
        options["sources"] = sources
    chosen = st.fixed_dictionaries(dict.fromkeys(sources, weights)).filter(lambda chosen: any(chosen.values()))
    starts = draw(st.sets(st.integers(1, 50), max_size=2))
    mixture = [(row, draw(chosen)) for row in (0, *sorted(starts))]
    if data != "all" and draw(st.booleans()):
        mixture = None
    return given, {**options, "mixture": mixture}, chosen


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_every_state_loads_and_its_phases_are_taken_again(folders, data):
    given, options, chosen = data.draw(streams(folders))
    row = data.draw(st.integers(0, 80), "row")
    stream = Stream(given, **options)
    state = json.loads(json.dumps(stream.state_dict(row=row)))
    expected = stream.rows(0, 90)["input_ids"].tolist()
    for mixture in (options["mixture"], state["phases"]):
        again = Stream(given, **{**options, "mixture": mixture})
        again.load_state_dict(state)
        assert again.rows(0, 90)["input_ids"].tolist() == expected
        assert json.loads(json.dumps(again.state_dict())) == state
    past = [phase for phase in state["phases"] if phase[0] < row]
    if past:
        changed = Stream(given, **{**options, "mixture": [*past, (row, data.draw(chosen, "new weights"))]})
        changed.load_state_dict(state)
        assert changed.rows(0, row)["input_ids"].tolist() == expected[:row]


def test_phases_of_a_state_are_of_sources_that_are(folders):
    state = Stream(folders["two"]).state_dict(row=5)
    assert [(row, sum(counts.values()), kind) for row, counts, kind in state["phases"]] == [(0, 65536, "counts")]
    with pytest.raises(UsageError, match="a source of the mixture"):
        Stream(folders["uneven"], mixture=state["phases"])


def test_sources_without_rows_are_left_out_of_the_default_mixture(tmp_path):
    weights = {"web": 0.5, "none": 0.3, "code": 0.2}
    folder = write_packed(tmp_path / "out", {"web": [20], "code": [20], "none": [0], "extra": [3]}, mixture=weights)
    stream = Stream(folder)
    assert stream.left_out == {"none": "no rows in train", "extra": "no weight in the dataset's mixture"}
    batch = stream.rows(0, 70)
    assert [int((batch.sources == stream.sources.index(name)).sum()) for name in ("web", "code")] == [50, 20]
    assert "without none: no rows in train" in repr(stream)
    assert stream.accounting.report().left_out == stream.left_out
    assert "none left out (no rows in train)" in stream.accounting.log_line()
    for mixture in (dict(weights, extra=0), [(0, dict(weights, extra=0))]):
        with pytest.raises(UsageError, match="none has a weight but no rows"):
            Stream(folder, mixture=mixture)
    assert Stream(folder, mixture={"web": 1, "code": 1, "none": 0, "extra": 1}).left_out == {}
    with pytest.raises(UsageError, match="no weight for a source with rows"):
        Stream(folder, sources=["none", "extra"])
    # As one of several datasets it has the share of its own that it was given.
    other = write_packed(tmp_path / "other", {"x": [10]})
    batch = Stream({"mixed": (folder, 0.7), "other": (other, 0.3)}).rows(0, 100)
    assert (batch.sources == 3).sum() == 30


def test_a_source_without_shards_is_named(tmp_path):
    folder = write_packed(tmp_path / "out", {"web": [20], "code": [20]}, mixture={"web": 0.5, "code": 0.2, "gone": 0.3})
    assert Stream(folder).left_out == {"gone": "no rows in train"}
    assert "without gone: no rows in train" in repr(Stream(folder))
    assert Stream(folder, sources=["web", "code"]).left_out == {}
    assert Stream(folder, mixture={"web": 1, "code": 1}).left_out == {}


def test_mixtures_of_several_datasets_without_weights_are_refused(folders):
    with pytest.raises(UsageError, match="two has its own mixture"):
        Stream({"one": folders["one"], "two": folders["two"]})
    assert len(Stream({"two": folders["two"]}).sources) == 2
    assert Stream({"one": (folders["one"], 1), "two": (folders["two"], 1)}).left_out == {"two/none": "no rows in train"}
