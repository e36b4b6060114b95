"""A remembered plan equals one that is made anew, and is used only for the same files, recipe, tokenizer and code."""

import base64
import json
import os
import random
import shutil
import subprocess
import threading
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from gristmill_testing.fake_packages import install_package
from gristmill_testing.golden_inputs import write_inputs
from gristmill_testing.small_tokenizers import trained

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.core.records import SourceFile
from gristmill.pipeline.planning.plan import make_plan
from gristmill.pipeline.planning.remembered import columns as columns_module
from gristmill.pipeline.planning.remembered import keys, trials
from gristmill.pipeline.planning.sample import SampleOutcome
from gristmill.storage.user_cache.plan_cache import choose_plan_cache, use_plan_cache

GOLDEN = Path(__file__).parents[3] / "golden"


@pytest.fixture
def looked(monkeypatch):
    """Counts how often a plan looks at records: for columns, and to try steps."""
    counts = {"columns": 0, "trials": 0}

    def count(module, name, kind):
        original = getattr(module, name)

        def counting(*args, **kwargs):
            counts[kind] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, counting)

    count(columns_module, "_look_at_files", "columns")
    count(trials, "try_sample", "trials")
    return counts


def describe(plan):
    """Everything in a plan, schemas with all their metadata."""
    return [
        plan.fingerprint,
        plan.pack,
        plan.write,
        plan.versions,
        plan.shard_schema.serialize().to_pybytes(),
        [
            (
                *(getattr(source, name) for name in source.__slots__ if name not in ("schema", "stage_schemas")),
                source.schema.serialize().to_pybytes(),
                [schema.serialize().to_pybytes() for schema in source.stage_schemas],
            )
            for source in plan.sources
        ],
    ]


def assert_same_plan(recipe, folder, looked):
    """Plan without a cache, with an empty one and with a full one; all three are equal, and the last looks nowhere."""
    choose_plan_cache(None)
    fresh = describe(make_plan(recipe, backend="serial"))
    choose_plan_cache(str(folder))
    assert describe(make_plan(recipe, backend="serial")) == fresh
    before = dict(looked)
    assert describe(make_plan(recipe, backend="serial")) == fresh
    assert looked == before


READS_OUTPUT_OF = {"sources": "functions", "packed": "tokens", "pictures_again": "pictures"}
VALUES = (
    lambda rng: rng.randrange(-5, 10 ** rng.randrange(1, 20)),
    lambda rng: rng.random(),
    lambda rng: rng.choice(["a", "é", "", "2026-01-01"]),
    lambda rng: rng.choice([True, False]),
    lambda rng: None,
    lambda rng: [rng.randrange(9) for _ in range(rng.randrange(3))],
    lambda rng: {"inner": rng.choice([1, "x", 0.5, None])},
    lambda rng: [{"deep": [rng.choice([1, "x"])]}],
)


def make_records(rng):
    fields = {f"field {n}": rng.sample(VALUES, rng.choice([1, 1, 1, 2])) for n in range(rng.randrange(6))}
    return [
        {"text": f"text {n} " * rng.randrange(1, 9)}
        | {name: rng.choice(kinds)(rng) for name, kinds in fields.items() if rng.random() < 0.8}
        for n in range(rng.randrange(1, 30))
    ]


@pytest.mark.parametrize("seed", range(40))
def test_a_remembered_plan_of_random_records_equals_a_fresh_one(seed, project, plan_cache, looked):
    rng = random.Random(seed)
    for number in range(rng.randrange(1, 4)):
        lines = "\n".join(json.dumps(record, ensure_ascii=rng.random() < 0.5) for record in make_records(rng))
        (project / f"{number}.jsonl").write_text(lines, encoding="utf-8")
    read = steps.Read(read="*.jsonl", columns=["field 0"]) if rng.random() < 0.1 else steps.Read(read="*.jsonl")
    chosen = [
        *rng.sample([steps.Length(min_chars=3), steps.Sample(fraction=0.5), steps.GopherQuality()], rng.randrange(3)),
        *rng.sample([steps.Limit(max_records=5), steps.Split(validation=0.2)], rng.randrange(3)),
        steps.Write(format=rng.choice(["jsonl", "parquet", "arrow"])),
    ]
    recipe = gm.Recipe(sources={"web": read}, steps=chosen, output="out", seed=seed)
    try:
        make_plan(recipe, backend="serial")
    except UsageError:  # such as a column that no record has: then there is no plan to remember
        for _ in range(2):
            with pytest.raises(UsageError):
                make_plan(recipe, backend="serial")
        return
    assert_same_plan(recipe, plan_cache, looked)


@pytest.mark.parametrize("name", sorted(path.stem for path in (GOLDEN / "recipes").iterdir()))
def test_remembered_plans_of_the_golden_recipes_equal_fresh_ones(name, golden_folder, plan_cache, looked):
    recipe = gm.load_recipe(golden_folder / f"{name}.yaml")
    if name in READS_OUTPUT_OF:
        needed = gm.load_recipe(golden_folder / f"{READS_OUTPUT_OF[name]}.yaml")
        gm.run(needed, backend="serial", progress=False)
    assert_same_plan(recipe, plan_cache, looked)


@pytest.mark.parametrize("name", ["chats_unpacked", "functions"])
def test_a_remembered_plan_starts_no_worker(name, golden_folder, plan_cache, monkeypatch):
    """Neither for a template of a model, which is checked in a worker, nor for functions of the user."""
    recipe = gm.load_recipe(golden_folder / f"{name}.yaml")
    starts = []
    start = subprocess.Popen.__init__
    monkeypatch.setattr(
        subprocess.Popen, "__init__", lambda *args, **kwargs: (starts.append(1), start(*args, **kwargs))[1]
    )
    make_plan(recipe)
    assert starts
    starts.clear()
    make_plan(recipe)
    assert not starts


@pytest.fixture(scope="module")
def golden_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    write_inputs(folder / "inputs")
    shutil.copy(GOLDEN / "functions.py", folder)
    for path in (GOLDEN / "recipes").iterdir():
        shutil.copy(path, folder)
    return folder


@pytest.fixture
def recipe(project, plan_cache):
    """A recipe with a tokenizer, whose plan is remembered."""
    trained(project / "tokenizer")
    lines = [json.dumps({"text": f"the mill grinds corn {n}", "n": n}) for n in range(4000)]
    (project / "a.jsonl").write_text("\n".join(lines))
    (project / "b.jsonl").write_text("\n".join(lines[:10]))
    tokenize = steps.Tokenize(tokenizer="tokenizer", engine="tokenizers")  # without the proof, which takes a second
    recipe = gm.Recipe(sources={"web": steps.Read(read="*.jsonl")}, steps=[tokenize], output="out")
    make_plan(recipe)
    return recipe


def replace_bytes(path, position, replacement):
    """Change bytes of a file, and neither its size nor its times."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(position)
        file.write(replacement)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_nothing_is_looked_at_twice(recipe, looked):
    make_plan(recipe)
    assert looked == {"columns": 0, "trials": 0}


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl"])
def test_the_beginning_of_every_file_counts(recipe, project, looked, name):
    replace_bytes(project / name, 10, b"THE")
    make_plan(recipe)
    assert looked == {"columns": 1, "trials": 1}


def test_the_times_of_files_count(recipe, project, looked):
    assert (project / "a.jsonl").stat().st_size > keys.HEAD_BYTES + 10
    with (project / "a.jsonl").open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b" ")
    os.utime(project / "a.jsonl", (1, 1))
    make_plan(recipe)
    assert looked == {"columns": 1, "trials": 1}


def test_the_rest_of_a_file_counts_with_its_content(recipe, project, looked):
    """The identity of a file is its size and time, or its content: then every byte counts."""
    fields = {name: getattr(recipe, name) for name in ("sources", "steps", "output")}
    by_content = gm.Recipe(**fields, identity="content")
    make_plan(by_content)
    before = dict(looked)
    replace_bytes(project / "a.jsonl", keys.HEAD_BYTES + 1000, b" ")
    make_plan(recipe)
    assert looked == before
    make_plan(by_content)
    assert looked == {kind: count + 1 for kind, count in before.items()}


def test_an_added_file_counts(recipe, project, looked):
    shutil.copy(project / "b.jsonl", project / "c.jsonl")
    make_plan(recipe)
    assert looked == {"columns": 1, "trials": 1}


def test_the_tokenizer_counts(recipe, project, looked):
    trained(project / "tokenizer", vocab_size=390)
    make_plan(recipe)
    assert looked == {"columns": 0, "trials": 1}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"seed": 1}, {"columns": 0, "trials": 1}),
        ({"max_quarantine": 0.5}, {"columns": 0, "trials": 1}),
        (
            {"steps": [steps.Length(min_chars=1), steps.Tokenize(tokenizer="tokenizer", engine="tokenizers")]},
            {"columns": 0, "trials": 1},
        ),
        (
            {"steps": [steps.Tokenize(tokenizer="tokenizer", engine="tokenizers", add_eos=False)]},
            {"columns": 0, "trials": 1},
        ),
        ({"steps": [steps.Write(format="jsonl")]}, {"columns": 1, "trials": 1}),
        ({"sources": {"web": steps.Read(read="*.jsonl", columns=["n"])}}, {"columns": 1, "trials": 1}),
        ({"sources": {"books": steps.Read(read="*.jsonl")}}, {"columns": 1, "trials": 1}),
        ({"slice_bytes": 1 << 20}, {"columns": 0, "trials": 0}),
    ],
)
def test_the_recipe_counts(recipe, looked, change, expected):
    fields = {name: getattr(recipe, name) for name in ("sources", "steps", "output")}
    make_plan(gm.Recipe(**(fields | change)))
    assert looked == expected


def test_a_limit_changes_no_sample(recipe, looked):
    assert make_plan(recipe, limit=3).is_limited
    assert looked == {"columns": 0, "trials": 0}


def test_an_answer_that_was_changed_by_hand_is_not_used(recipe, plan_cache, looked):
    for path in plan_cache.glob("trial-*"):
        path.write_bytes(path.read_bytes().replace(b'"notes":[]', b'"notes":["?"]'))
    make_plan(recipe)
    assert looked == {"columns": 0, "trials": 1}


@pytest.mark.parametrize(
    "schema", ["?", "AAAA", "", base64.b64encode(pa.schema({"a": pa.int8()}).serialize()).decode()]
)
def test_columns_that_cannot_be_read_are_looked_at_again(recipe, looked, monkeypatch, schema):
    """Such as those that another version of a library has written under the same key."""
    stored = columns_module._StoredColumns(schema, schema, has_all_keys=True)
    monkeypatch.setattr(columns_module, "recall", lambda *_: stored)
    make_plan(recipe)
    assert looked["columns"] == 1


def test_a_sample_that_fails_is_tried_again(project, plan_cache, looked):
    (project / "a.jsonl").write_text('{"text": 1}')
    recipe = gm.Recipe(sources={"web": steps.Read(read="*.jsonl")}, output="out")
    for _ in range(2):
        with pytest.raises(UsageError):
            make_plan(recipe)
    assert looked["columns"] == 2


FUNCTION = "def keep(record):\n    return len(record['text']) > {}\n"


def test_functions_count_with_their_code(project, plan_cache, looked):
    (project / "a.jsonl").write_text('{"text": "one two"}')
    (project / "functions.py").write_text(FUNCTION.format(1))
    function = steps.Filter(call="functions.py:keep")
    recipe = gm.Recipe(sources={"web": steps.Read(read="*.jsonl")}, steps=[function], output="out")
    for content, num_trials in ((1, 1), (1, 1), (22, 2)):
        (project / "functions.py").write_text(FUNCTION.format(content))
        make_plan(recipe, backend="serial")
        assert looked == {"columns": 1, "trials": num_trials}


def test_functions_that_are_tried_in_a_worker_are_remembered(project, plan_cache, looked):
    """A worker sends copies back: of functions that are defined in functions, nothing equals a copy."""
    (project / "a.jsonl").write_text('{"text": "one two"}')
    min_chars = 3

    def keep(record):
        return len(record["text"]) > min_chars

    recipe = gm.Recipe(sources={"web": steps.Read(read="*.jsonl")}, steps=[steps.Filter(call=keep)], output="out")
    plans = [make_plan(recipe, backend="processes") for _ in range(2)]
    assert looked == {"columns": 1, "trials": 1}
    assert [plan.sources[0].stages[0].steps[0].call.resolve() for plan in plans] == [keep, keep]


def test_functions_that_cannot_come_back_from_a_worker(project):
    """One that loads a model when it is first called holds something afterwards that cannot be pickled."""
    (project / "a.jsonl").write_text('{"text": "one two"}')
    loaded = []

    def keep(record):
        loaded.append(threading.Lock())
        return bool(record)

    recipe = gm.Recipe(sources={"web": steps.Read(read="*.jsonl")}, steps=[steps.Filter(call=keep)], output="out")
    assert make_plan(recipe, backend="processes").sources[0].stages[0].steps[0].call.resolve() is keep
    assert not loaded


def test_functions_without_known_code_are_always_tried(project, plan_cache, looked):
    (project / "a.jsonl").write_text('{"text": "one two"}')
    names = {}
    exec("def keep(record):\n    return True", names)  # as at a prompt: there is no file
    recipe = gm.Recipe(
        sources={"web": steps.Read(read="*.jsonl")}, steps=[steps.Filter(call=names["keep"])], output="out"
    )
    for _ in range(2):
        make_plan(recipe, backend="serial")
    assert looked == {"columns": 1, "trials": 2}


class OwnStep(steps.Length, tag="own_step", frozen=True, kw_only=True):
    """A step that is not built in."""


def test_steps_that_are_not_built_in_are_always_tried(project, plan_cache, looked):
    (project / "a.jsonl").write_text('{"text": "one two"}')
    recipe = gm.Recipe(sources={"web": steps.Read(read="*.jsonl")}, steps=[OwnStep(min_chars=1)], output="out")
    for _ in range(2):
        make_plan(recipe, backend="serial")
    assert looked == {"columns": 1, "trials": 2}


def test_files_of_a_plugin_are_always_looked_at(project, plan_cache, looked, site):
    module = "def read(path):\n    yield {'text': 'one two'}\n"
    install_package(site, "fake-recs", {"gristmill.readers": {"recs": "fake_recs:read"}}, {"fake_recs.py": module})
    (project / "a.recs").write_text("one two")
    recipe = gm.Recipe(sources={"web": steps.Read(read="*.recs", format="recs")}, output="out")
    for _ in range(2):
        make_plan(recipe, backend="serial")
    assert looked == {"columns": 2, "trials": 2}


def test_records_from_python_are_not_remembered(project, plan_cache, looked):
    recipe = gm.Recipe(sources={"web": steps.Read(read=[{"text": "one two"}])}, output="out")
    for _ in range(2):
        make_plan(recipe, backend="serial")
    assert looked == {"columns": 2, "trials": 2}


def test_a_crash_in_the_sample_is_not_remembered(project, plan_cache, monkeypatch):
    (project / "a.jsonl").write_text('{"text": "one two"}')
    monkeypatch.setattr(trials, "try_sample", lambda sample, **_: (SampleOutcome(sample.steps), ["it ends its worker"]))
    recipe = gm.Recipe(sources={"web": steps.Read(read="*.jsonl")}, output="out")
    for _ in range(2):
        assert make_plan(recipe, backend="serial").sources[0].notes == ("it ends its worker",)
    assert list(plan_cache.glob("trial-*")) == []


def test_many_files_are_sampled_again(project, plan_cache, looked, monkeypatch):
    monkeypatch.setattr(keys, "MAX_FILES", 1)
    for name in "ab":
        (project / f"{name}.jsonl").write_text('{"text": "one two"}')
    recipe = gm.Recipe(sources={"web": steps.Read(read="*.jsonl")}, output="out")
    for _ in range(2):
        make_plan(recipe, backend="serial")
    assert looked == {"columns": 2, "trials": 2}


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_tables_are_remembered(project, plan_cache, looked, suffix):
    table = pa.table({"text": ["one", "two"], "score": [0.5, 1.5]})
    write = pq.write_table if suffix == "parquet" else pyarrow.csv.write_csv
    write(table, project / f"a.{suffix}")
    recipe = gm.Recipe(sources={"web": steps.Read(read=f"*.{suffix}")}, output="out")
    assert_same_plan(recipe, plan_cache, looked)


def test_a_run_gives_the_same_bytes(recipe, project):
    outputs = []
    for output in ("one", "two"):
        fields = {name: getattr(recipe, name) for name in ("sources", "steps")}
        outputs.append(gm.run(gm.Recipe(**fields, output=output), backend="serial", progress=False))
        choose_plan_cache(None)
    assert outputs[0].manifest.dataset_hash == outputs[1].manifest.dataset_hash


def test_objects_of_stores_are_known_by_their_versions(plan_cache):
    """Their beginnings are not read: nobody answers at this address. Versions of other servers are not trusted."""
    with use_plan_cache():
        object_file = SourceFile("s3://nobody/a.jsonl", "a.jsonl", 10, "etag", 1)
        hashes = {
            keys.hash_files(steps.Read(read=file.path), [file])
            for file in (
                object_file,
                msgspec.structs.replace(object_file, version="other"),
                msgspec.structs.replace(object_file, num_bytes=11),
            )
        }
        assert len(hashes - {None}) == 3
        unversioned = msgspec.structs.replace(object_file, version="")
        served = msgspec.structs.replace(object_file, path="https://nobody/a.jsonl")
        assert [keys.hash_files(steps.Read(read=file.path), [file]) for file in (unversioned, served)] == [None, None]
