"""Records from Python: lists, generators, datasets. Spooled once, then a source like any other."""

import base64
import datetime as dt
import json
import math
import os
import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gristmill as gm
from gristmill.core.errors import DamagedWorkError, NotUpToDateError, UsageError
from gristmill.core.recipe import Recipe, Source
from gristmill.pipeline import execution
from gristmill.pipeline.inspecting.trace import trace
from gristmill.pipeline.planning.plan import make_plan
from gristmill.pipeline.publishing import publish
from gristmill.pipeline.stages import runner
from gristmill.recipe.dump import dump_recipe
from gristmill.recipe.load import parse_recipe
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Length, Map, Read, Shuffle, Write

RECORDS = [{"text": f"text {n}", "n": n, "more": {"tags": ["a", n]}} for n in range(300)]
JSONL = [Write(format="jsonl")]


def generator(records=RECORDS):
    yield from records


def sources(given, **keys):
    return {"py": Read(read=given, **keys)}


@pytest.mark.parametrize("make", [list, generator, iter, tuple, lambda records: map(dict, records)])
def test_any_iterable_of_dicts(mill, make):
    result = mill.run(mill.recipe(sources(make(RECORDS)), JSONL))
    assert list(result.dataset()) == RECORDS
    [file] = result.manifest.files.values()
    assert (file.source, file.relative) == ("py", "records.jsonl")
    assert result.manifest.recipe["sources"]["py"]["read"].endswith("from Python>")
    assert not list(mill.output.rglob("records*"))
    traced = trace(result.dataset(), 5)
    assert ([place.state for place in traced.places], traced.record["n"]) == (["missing"], 5)


def test_through_the_public_face(tmp_path):
    recipe = gm.Recipe(
        sources={"py": gm.Source(Read(read=generator(), text="more.name", columns=["n"]))}, output=str(tmp_path / "out")
    )
    with pytest.raises(UsageError, match="name"):
        gm.run(recipe, backend="serial", progress=False)
    recipe = gm.Recipe(sources={"py": Source(Read(read=generator(), columns=["n"]))}, output=str(tmp_path / "out"))
    result = gm.run(recipe, workers=2, progress=False)
    assert [(record["text"], record["n"]) for record in result.dataset()] == [(f"text {n}", n) for n in range(300)]


def test_a_plan_consumes_nothing_and_writes_nothing(mill):
    given = generator()
    recipe = mill.recipe(sources(given), JSONL)
    for _ in range(2):
        shown = str(gm.plan(recipe))
        assert "records from Python" in shown
    assert not mill.output.exists()
    assert list(mill.run(recipe).dataset()) == RECORDS
    assert next(given, None) is None


def test_mistakes_show_before_a_generator_is_spent(mill):
    given = generator()
    with pytest.raises(UsageError, match="did you mean"):
        mill.run(mill.recipe(sources(given, text="txt"), JSONL))
    assert list(given) == RECORDS[100:]  # what was looked at is held by the source


def test_a_spent_generator_is_refused(mill):
    recipe = mill.recipe(sources(generator()), JSONL)
    mill.run(recipe)
    with pytest.raises(UsageError, match="already been read to its end"):
        mill.run(recipe)
    spent = generator()
    list(spent)
    with pytest.raises(UsageError, match="already been read to its end"):
        mill.run(mill.recipe(sources(spent), JSONL))


def test_equal_records_are_up_to_date(mill):
    mill.run(mill.recipe(sources(RECORDS), JSONL))
    before = mill.files()
    assert mill.run(mill.recipe(sources([dict(record) for record in RECORDS]), JSONL)).was_up_to_date
    assert mill.run(mill.recipe(sources(generator()), JSONL)).was_up_to_date
    with pytest.raises(NotUpToDateError):
        mill.run(mill.recipe(sources(RECORDS[1:]), JSONL))
    assert mill.files() == before
    result = mill.run(mill.recipe(sources(RECORDS[1:]), JSONL), update=True)
    assert list(result.dataset()) == RECORDS[1:]
    result = mill.run(mill.recipe(sources(generator(RECORDS[2:])), JSONL), overwrite=True)
    assert list(result.dataset()) == RECORDS[2:]


def test_a_stopped_run_goes_on_with_a_new_generator(mill, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(publish, "publish", stop)
        with pytest.raises(KeyboardInterrupt):
            mill.run(mill.recipe(sources(generator()), JSONL))
    assert not (mill.output / "manifest.json").exists()
    monkeypatch.setattr(runner, "run_tasks", lambda *_, **__: pytest.fail("this was done before"))
    assert list(mill.run(mill.recipe(sources(generator()), JSONL)).dataset()) == RECORDS


def test_kept_work_holds_the_records(mill):
    mill.run(mill.recipe(sources(RECORDS), JSONL), keep_work=True)
    [spooled] = mill.output.rglob("records.jsonl")
    assert [json.loads(line) for line in spooled.read_text().splitlines()] == RECORDS


@pytest.mark.parametrize("steps", [[], [Shuffle(), Length(min_chars=7)]], ids=["plain", "shuffled"])
def test_the_same_bytes_for_any_workers(mill, small_units, steps):
    records = [{"text": f"text {n} " * 100, "n": n} for n in range(15_000)]  # several cells and units
    size = 4 << 20
    expected = mill.fresh_files(mill.recipe(sources(records), [*steps, *JSONL]))
    for options in ({"backend": "processes", "workers": 1}, {"backend": "processes", "workers": 2}):
        found = mill.fresh_files(
            mill.recipe(sources(generator(records)), [*steps, *JSONL], slice_bytes=size), **options
        )
        assert found.keys() == expected.keys()
        # These hold the recipe, with a list or a generator in it.
        with_recipe = {"manifest.json", "report.json", "report.html"}
        assert [path for path in found if found[path] != expected[path] and path not in with_recipe] == []
        hashes = [json.loads(files["manifest.json"])["dataset_hash"] for files in (found, expected)]
        assert hashes[0] == hashes[1]


class Strange:
    pass


HANDLED = {
    "numpy int": (np.int32(7), 7),
    "numpy float": (np.float32(0.5), 0.5),
    "numpy bool": (np.True_, True),
    "numpy text": (np.str_("a"), "a"),
    "numpy array": (np.arange(3), [0, 1, 2]),
    "tuple": ((1, (2, 3)), [1, [2, 3]]),
    "date": (dt.date(2024, 2, 29), "2024-02-29"),
    "datetime": (dt.datetime(2024, 2, 29, 1, 2, tzinfo=dt.UTC), "2024-02-29T01:02:00+00:00"),
    "datetime64": (np.datetime64("2024-02-29T01:02:03"), "2024-02-29T01:02:03"),
    "large number": (2**63, 2**63),
    "bytes": (b"raw", "cmF3"),
    "nan": (math.nan, None),
    "inf": ([1.0, math.inf], [1.0, None]),
    "numpy nan": (np.float64("nan"), None),
}
REFUSED = {
    "set": ({1}, "set"),
    "object": (Strange(), "Strange"),
    "uuid": (uuid.UUID(int=7), "UUID"),
    "key": ({7: 1}, "7"),
}


@pytest.mark.parametrize("name", HANDLED)
def test_values_that_json_can_hold_after_all(mill, name):
    value, expected = HANDLED[name]
    result = mill.run(mill.recipe(sources([{"text": "a", "value": value}]), JSONL))
    assert list(open_dataset(mill.output)) == [{"text": "a", "value": expected}]
    counted = result.manifest.books["py"][0].counters
    assert counted["nan_as_null"] == ("nan" in name or "inf" in name)


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_it_cannot_are_set_aside_with_the_reason(mill, name):
    value, word = REFUSED[name]
    result = mill.run(mill.recipe(sources([{"text": "a"}, {"text": "b", "value": value}, {"text": "c"}]), JSONL))
    assert [record["text"] for record in result.dataset()] == ["a", "c"]
    [entry] = result.dataset().quarantine()
    assert (entry["reason"], entry["step"]) == ("not_json", "read")
    assert word in entry["error"]
    assert "'b'" in entry["record"]


def test_other_bad_records(mill):
    records = [{"text": "a"}, b"text", 7, None, {"text": None}, {}, {"text": 5}, {"text": "\ud800"}, ["b"]]
    result = mill.run(mill.recipe(sources(records), JSONL))
    assert result.books["py"][0].records_in == 9
    assert [entry["reason"] for entry in result.dataset().quarantine()] == [
        "not_an_object", "not_an_object", "not_an_object", "null_text", "missing_text", "text_not_a_string",
        "lone_surrogate", "not_an_object",
    ]  # fmt: skip


def as_json(value):
    """What JSON has of a value."""
    if isinstance(value, dict):
        return {key: as_json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_json(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(values=st.lists(VALUES, min_size=1, max_size=10))
def test_every_record_comes_out_or_is_set_aside(tmp_path_factory, values):
    output = tmp_path_factory.mktemp("run") / "out"
    records = [{"text": "a"}, *({"text": "b", "value": value} for value in values)]
    recipe = Recipe(sources=sources(records), steps=JSONL, output=str(output), max_quarantine=1.0)
    result = gm.run(recipe, backend="serial", progress=False)
    kept = list(result.dataset())
    assert len(kept) + len(list(result.dataset().quarantine())) == len(records)
    expected = [as_json(record) for record in records]
    assert all(record in expected for record in kept)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (5, "neither"),
        (None, "neither"),
        (b"data", "neither"),
        (generator, "call it"),
        ({"text": "a"}, "list"),
        ({"text": ["a", "b"]}, "list"),
        ([], "no files"),
        ("", "no files"),
        (["a.jsonl", {"text": "a"}], "not both"),
    ],
)
def test_what_is_no_source(wrong, word):
    with pytest.raises(UsageError, match=word):
        Read(read=wrong)


def test_what_only_the_plan_can_see(mill):
    for wrong, word in [([1, 2], "dicts"), (iter([b"a"]), "dicts")]:
        with pytest.raises(UsageError, match=word):
            mill.run(mill.recipe(sources(wrong), JSONL))
    with pytest.raises(UsageError, match="split"):
        mill.run(mill.recipe(sources(RECORDS, splits="train"), JSONL))
    with pytest.raises(UsageError, match="for files"):
        Read(read=RECORDS, format="jsonl")
    with pytest.raises(UsageError, match="Read"):
        Recipe(sources={"py": Source(RECORDS)}, output="out")
    with pytest.raises(UsageError, match="Read"):
        Recipe(sources={"py": RECORDS}, output="out")
    assert not mill.output.exists()


def test_a_generator_that_raises(mill):
    def breaks():
        yield from RECORDS[:150]
        raise RuntimeError("the connection is gone")

    with pytest.raises(RuntimeError, match="gone") as caught:
        mill.run(mill.recipe(sources(breaks()), JSONL))
    assert "in source py" in caught.value.__notes__
    assert not (mill.output / "manifest.json").exists()
    assert list(mill.run(mill.recipe(sources(generator()), JSONL)).dataset()) == RECORDS


def test_paths_are_still_paths(mill, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    assert Read(read=tmp_path / "a.jsonl") == Read(read=str(tmp_path / "a.jsonl"))
    assert len(mill.run(mill.recipe(sources([tmp_path / "a.jsonl"]), JSONL)).dataset()) == 1


def test_no_records(mill):
    assert len(mill.run(mill.recipe(sources(iter([])), JSONL, allow_empty=True)).dataset()) == 0


def test_a_recipe_file_cannot_hold_them():
    with pytest.raises(UsageError, match="Python object"):
        dump_recipe(Recipe(sources=sources(RECORDS), output="out"))
    for written in ("[{text: a}]", "[1]", "{a: 1}", "7"):
        with pytest.raises(UsageError, match="read"):
            parse_recipe(f"output: out\nsources: {{py: {{read: {written}}}}}\n")


@pytest.fixture
def datasets():
    module = pytest.importorskip("datasets")
    module.disable_progress_bars()
    return module


def as_records(dataset):
    return [(record["text"], record["n"], record["more"]) for record in dataset]


ROWS = [{"text": f"text {n}", "n": n, "more": {"tags": [n]}} for n in range(250)]


@pytest.mark.parametrize("change", ["none", "shuffle", "select", "sliced", "formatted", "saved"])
@pytest.mark.parametrize("format", ["arrow", "jsonl"])
def test_datasets(mill, datasets, tmp_path, change, format):
    dataset = datasets.Dataset.from_list(ROWS)
    if change == "shuffle":
        dataset = dataset.shuffle(seed=1)
    elif change == "select":
        dataset = dataset.select([5, 3, 3, 1])
    elif change == "sliced":
        dataset = dataset.select(range(100, 233))
    elif change == "formatted":
        dataset = dataset.with_format("numpy", columns=["n"])
    elif change == "saved":
        dataset.save_to_disk(tmp_path / "saved")
        dataset = datasets.load_from_disk(tmp_path / "saved")
    expected = as_records(dataset.with_format(None))
    recipe = mill.recipe(sources(dataset, columns=["n", "more"]), [Write(format=format)])
    assert "records from Python" in str(gm.plan(recipe))
    result = mill.run(recipe)
    assert as_records(result.dataset()) == expected
    assert result.dataset().origins(3)[0].position == 3
    again = mill.run(mill.recipe(sources(dataset, columns=["n", "more"]), [Write(format=format)]))
    assert again.was_up_to_date


def test_dicts_of_datasets(mill, datasets):
    both = datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS), test=datasets.Dataset.from_list(ROWS[:7]))
    result = mill.run(mill.recipe(sources(both), []))
    assert sorted(file.relative for file in result.manifest.files.values()) == ["test.arrow", "train.arrow"]
    assert len(result.dataset()) == 257
    assert len(mill.run(mill.recipe(sources(both, splits={"train": "test"}), []), overwrite=True).dataset()) == 7
    with pytest.raises(UsageError, match="did you mean"):
        make_plan(mill.recipe(sources(both, splits="tests"), []))


def test_streamed_datasets(mill, datasets):
    streamed = datasets.Dataset.from_list(ROWS).to_iterable_dataset()
    step = Map(call=lambda record: {**record, "text": record["text"].upper()})
    result = mill.run(mill.recipe(sources(streamed), [step, *JSONL]))
    assert [record["text"] for record in result.dataset()] == [f"TEXT {n}" for n in range(250)]


def test_a_plan_by_processes_tries_functions_on_records_from_python(tmp_path):
    """They are in memory here, where no worker finds them."""
    step = Map(call=lambda record: {"text": record["text"].upper()})
    recipe = Recipe(sources={"some": Read(read=[{"text": "a"}])}, steps=[step], output=str(tmp_path / "out"))
    assert make_plan(recipe, backend="processes").sources[0].is_sample


@pytest.mark.parametrize("given", [RECORDS, pa.table({"text": [record["text"] for record in RECORDS]})], ids=type)
def test_a_flipped_bit_in_records_that_were_written_is_noticed(mill, monkeypatch, given):
    """The disk keeps the time of the file, so its version tells nothing."""
    run_stages = execution.Execution._run_stages

    def damage_first(run):
        [path] = (mill.output / ".gristmill/records/py").iterdir()
        times = path.stat()
        content = bytearray(path.read_bytes())
        content[content.index(b"text 7") + 5] ^= 1
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return run_stages(run)

    with monkeypatch.context() as patched:
        patched.setattr(execution.Execution, "_run_stages", damage_first)
        with pytest.raises(DamagedWorkError, match="records from Python"):
            mill.run(mill.recipe(sources(given), JSONL))
    mill.run(mill.recipe(sources(given), JSONL))
    assert [record["text"] for record in open_dataset(mill.output)] == [record["text"] for record in RECORDS]
