"""Running again: what is up to date, what is used again, what is refused."""

import json
import os
import uuid

import fsspec
import pytest

from gristmill.core.errors import FolderLockedError, GristmillError, NotUpToDateError, SourceChangedError, UsageError
from gristmill.pipeline import run
from gristmill.pipeline.planning import plan
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.stages import runner
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Length, Limit, Map, Read, Sample, Shuffle, Split, Write
from gristmill.storage.lock import FolderLock


@pytest.fixture(autouse=True)
def tiny_units(mill):
    mill.layout = UnitLayout(unit_bytes=4000, min_group_bytes=1500, file_open_bytes=0)


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(30):
        write(folder / f"part-{number:02d}.jsonl", number)
    return folder


def write(path, number, count=8):
    lines = [
        json.dumps({"id": f"{number}-{n}", "text": f"text {n} of {number} " + "x" * (n * 7)}) for n in range(count)
    ]
    bad = ['{"no": "text"}'] if number % 10 == 3 else []
    path.write_text("\n".join(lines + bad) + "\n")


def recipe_of(mill, data, *steps, **settings):
    return mill.recipe({"web": Read(read=f"{data}/*.jsonl")}, steps or [Write(format="jsonl")], **settings)


@pytest.fixture
def tasks_run(monkeypatch):
    """How many tasks each run has."""
    counted = []
    real = runner.run_tasks

    def counting(function, tasks, **options):
        counted.append(len(tasks))
        return real(function, tasks, **options)

    monkeypatch.setattr(runner, "run_tasks", counting)
    return counted


def shards(mill):
    """Fingerprint of the task -> checksums of its shards."""
    found = {}
    for split, _, shard in open_dataset(mill.output).manifest.shards():
        found[(split, *shard.tasks)] = shard.xxh3
    return found


def test_a_second_run_does_nothing(mill, data, tasks_run):
    recipe = recipe_of(mill, data)
    first = mill.run(recipe)
    before = {path: path.stat().st_mtime_ns for path in mill.output.rglob("*")}
    done = sum(tasks_run)
    second = mill.run(recipe, workers=1, backend="threads")
    assert (first.was_up_to_date, second.was_up_to_date) == (False, True)
    assert second.manifest == first.manifest
    assert sum(tasks_run) == done
    assert {path: path.stat().st_mtime_ns for path in mill.output.rglob("*") if path != mill.output} == {
        path: time for path, time in before.items() if path != mill.output
    }


@pytest.mark.parametrize("damage", ["removed", "cut"])
def test_a_dataset_with_a_damaged_shard_is_not_up_to_date(mill, data, damage, tasks_run):
    recipe = recipe_of(mill, data)
    expected = mill.fresh_files(recipe)
    shard = next((mill.output / "train" / "web").glob("shard-00002*"))
    if damage == "removed":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(NotUpToDateError, match=f"{shard.name}.*missing or has another size"):
        mill.run(recipe)
    tasks_run.clear()
    mill.run(recipe, update=True)
    assert sum(tasks_run) == 1
    assert sorted(content for path, content in mill.files().items() if "shard" in path) == sorted(
        content for path, content in expected.items() if "shard" in path
    )


def test_another_mixture_makes_no_work(mill, data, tasks_run):
    mill.run(recipe_of(mill, data))
    tasks_run.clear()
    result = mill.run(recipe_of(mill, data, mixture={"web": 2.0}), update=True)
    assert sum(tasks_run) == 0
    assert result.manifest.mixture == {"web": 2.0}


def test_what_does_not_shape_the_output_may_change(mill, data):
    mill.run(recipe_of(mill, data))
    assert mill.run(recipe_of(mill, data, slice_bytes=1, max_quarantine=0.5)).was_up_to_date


@pytest.mark.parametrize(
    "change",
    [
        {"steps": [Length(min_chars=20), Write(format="jsonl")]},
        {"steps": [Write(format="jsonl", compression="gzip")]},
        {"steps": [Write(format="arrow")]},
        {"settings": {"seed": 1}},
        {"settings": {"mixture": {"web": 2.0}}},
        {"limit": 5},
    ],
    ids=str,
)
def test_another_recipe_is_refused_and_nothing_is_touched(mill, data, change):
    mill.run(recipe_of(mill, data))
    before = mill.files()
    with pytest.raises(NotUpToDateError, match="--update"):
        mill.run(
            recipe_of(mill, data, *change.get("steps", ()), **change.get("settings", {})), limit=change.get("limit")
        )
    assert mill.files() == before


@pytest.mark.parametrize("how", ["update", "overwrite"])
def test_a_full_run_after_a_quick_look(mill, data, how):
    recipe = recipe_of(mill, data)
    expected = mill.fresh_files(recipe)
    mill.fresh_files(recipe, limit=5)
    assert len(open_dataset(mill.output)) == 5
    with pytest.raises(NotUpToDateError):
        mill.run(recipe)
    result = mill.run(recipe, **{how: True})
    assert len(open_dataset(mill.output)) == 240
    assert result.manifest.dataset_hash in expected["manifest.json"].decode()


CHANGES = {
    "added": lambda data: write(data / "part-11b.jsonl", 99),
    "removed": lambda data: (data / "part-17.jsonl").unlink(),
    "changed": lambda data: write(data / "part-05.jsonl", 5, count=9),
    "touched": lambda data: os.utime(data / "part-05.jsonl", ns=(1, 1)),
    "emptied": lambda data: (data / "part-20.jsonl").write_bytes(b""),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "steps",
    [
        [Write(format="jsonl")],
        [Split(validation=0.3), Sample(fraction=0.5), Write(format="parquet")],
        [Shuffle(), Write(format="arrow")],
    ],
    ids=["plain", "split and sample", "shuffle"],
)
def test_an_update_equals_a_fresh_run_and_leaves_other_shards(mill, data, change, steps, tasks_run):
    recipe = recipe_of(mill, data, *steps)
    mill.run(recipe)
    before, all_tasks = shards(mill), tasks_run[0]
    CHANGES[change](data)
    with pytest.raises(NotUpToDateError):
        mill.run(recipe)
    tasks_run.clear()
    updated = mill.run(recipe, update=True)
    after = shards(mill)
    if len(steps) == 1 or "Split" in str(steps[0]):
        assert 0 < tasks_run[0] <= max(3, all_tasks // 3)
        num_built = updated.reuse.num_units - updated.reuse.num_reused
        assert 0 < num_built < updated.reuse.num_reused
        common = before.keys() & after.keys()
        assert len(common) > len(before) // 2
        assert all(before[task] == after[task] for task in common)
    names = mill.files(work=False).keys()
    fresh = mill.fresh_files(recipe)
    assert f'"dataset_hash": "{updated.manifest.dataset_hash}"' in fresh["manifest.json"].decode()
    assert len(fresh) == len(names)


def test_a_changed_step_is_done_again_with_update(mill, data):
    mill.run(recipe_of(mill, data, Length(min_chars=30)))
    changed = recipe_of(mill, data, Length(min_chars=40))
    updated = mill.run(changed, update=True)
    assert (updated.reuse.num_reused, "min_chars was 30, is 40" in updated.change) == (0, True)
    assert updated.reuse.num_units > 1
    assert mill.run(changed).was_up_to_date
    mill.fresh_files(changed)
    assert open_dataset(mill.output).manifest.dataset_hash == updated.manifest.dataset_hash


def test_a_changed_function_is_noticed(mill, data, tmp_path):
    source = tmp_path / "f.py"
    source.write_text("def f(record):\n    return {**record, 'text': 'one'}\n")
    recipe = recipe_of(mill, data, Map(call=f"{source}:f"))
    mill.run(recipe)
    assert mill.run(recipe).was_up_to_date
    source.write_text("def f(record):\n    return {**record, 'text': 'two'}\n")
    with pytest.raises(NotUpToDateError):
        mill.run(recipe)
    mill.run(recipe, update=True)
    assert open_dataset(mill.output)[0]["text"] == "two"


def test_code_that_cannot_be_known_is_run_again(mill, data, caplog):
    call = eval("lambda record: record")
    recipe = recipe_of(mill, data, Map(call=call))
    mill.run(recipe)
    with pytest.raises(NotUpToDateError, match="cannot be known"):
        mill.run(recipe)
    mill.run(recipe, update=True)
    assert "nothing of an earlier run is reused" in caplog.text


def test_overwriting_removes_the_files_of_the_old_dataset_only(mill, data):
    mill.run(recipe_of(mill, data, Split(validation=0.5), Write(format="arrow")))
    (mill.output / "notes.txt").write_text("mine")
    (mill.output / "train" / "mine.txt").write_text("mine too")
    mill.run(recipe_of(mill, data, Write(format="jsonl")), overwrite=True)
    files = mill.files()
    assert files["notes.txt"] == b"mine"
    assert files["train/mine.txt"] == b"mine too"
    assert not [path for path in files if path.endswith("state.json") or path.startswith("validation")]


def test_a_file_of_someone_else_in_the_place_of_a_shard_stays(mill, data):
    recipe = recipe_of(mill, data)
    (mill.output / ".gristmill").mkdir(parents=True)
    (mill.output / ".gristmill/receipts.jsonl").touch()  # a run was here
    (mill.output / "train/web").mkdir(parents=True)
    (mill.output / "train/web/shard-00000.jsonl").write_text("mine")
    run.run_recipe(recipe, run.RunOptions(backend="serial", progress=False))
    assert mill.files()["train/web/shard-00000.jsonl"] == b"mine"


def test_an_output_that_is_not_ours_is_refused(mill, data):
    mill.output.mkdir()
    (mill.output / "thesis.tex").write_text("ten years")
    for options in ({}, {"update": True}, {"overwrite": True}):
        with pytest.raises(UsageError, match="not made by gristmill"):
            mill.run(recipe_of(mill, data), **options)
    assert mill.files() == {"thesis.tex": b"ten years"}


def test_another_tools_manifest_is_not_taken_for_ours(mill, data):
    mill.output.mkdir()
    (mill.output / "manifest.json").write_text('{"name": "a web app"}')
    (mill.output / "index.html").write_text("<html>")
    for options in ({}, {"update": True}, {"overwrite": True}):
        with pytest.raises(GristmillError):
            mill.run(recipe_of(mill, data), **options)
    assert mill.files(work=True) == {"manifest.json": b'{"name": "a web app"}', "index.html": b"<html>"}


def test_two_runs_at_once(mill, data):
    mill.output.mkdir()
    with FolderLock(mill.output), pytest.raises(FolderLockedError, match=str(os.getpid())):
        mill.run(recipe_of(mill, data))
    mill.run(recipe_of(mill, data))


def test_a_source_that_changes_after_the_plan(mill, data, monkeypatch):
    recipe = recipe_of(mill, data)
    real = run.make_plan

    def plan_and_change(*arguments, **options):
        made = real(*arguments, **options)
        write(data / "part-07.jsonl", 7, count=3)
        return made

    monkeypatch.setattr(run, "make_plan", plan_and_change)
    with pytest.raises(SourceChangedError, match=r"part-07\.jsonl"):
        mill.run(recipe)
    monkeypatch.setattr(run, "make_plan", real)
    mill.run(recipe)
    found = mill.files(work=False)
    assert found == mill.fresh_files(recipe)


@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize("num_files", [1, 3])
def test_a_source_that_changes_when_it_is_opened(mill, tmp_path, monkeypatch, place, num_files):
    """A look at its version before would not have seen that."""
    from gristmill.readers.texts import delimited_file

    filesystem, folder = fsspec.url_to_fs(f"{tmp_path}/in" if place == "local" else f"memory://{uuid.uuid4().hex}")
    filesystem.makedirs(folder, exist_ok=True)
    for number in range(num_files):
        filesystem.pipe(f"{folder}/{number}.jsonl", b'{"text": "planned"}\n')
    real_run, real_open = runner.StageRunner.run, delimited_file.open_input

    def change_and_open(path, *arguments):
        filesystem.pipe(f"{folder}/{num_files - 1}.jsonl", b'{"text": "another"}\n{"text": "more"}\n')
        return real_open(path, *arguments)

    def run_stage(*arguments):
        monkeypatch.setattr(delimited_file, "open_input", change_and_open)
        return real_run(*arguments)

    monkeypatch.setattr(runner.StageRunner, "run", run_stage)
    recipe = mill.recipe({"web": Read(read=f"{filesystem.unstrip_protocol(folder)}/*")}, [Write(format="jsonl")])
    with pytest.raises(SourceChangedError, match=f"{num_files - 1}.jsonl has changed"):
        mill.run(recipe)
    assert not (mill.output / "manifest.json").exists()


def test_no_file_matches(mill, data):
    with pytest.raises(UsageError, match=r"\.parquet"):
        mill.run(mill.recipe({"web": Read(read=f"{data}/*.parquet")}, []))
    assert not mill.output.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(mill, data):
    (data / "part-09.jsonl").chmod(0)
    with pytest.raises((GristmillError, OSError), match="part-09"):
        mill.run(recipe_of(mill, data))


def test_a_file_that_cannot_be_read(mill, data, monkeypatch):
    """As above, for root: the file system refuses it."""
    from gristmill.readers.texts import delimited_file as separated

    real = separated.open_input

    def refusing(path, *arguments):
        if "part-09" in path:
            raise PermissionError(13, "Permission denied", path)
        return real(path, *arguments)

    monkeypatch.setattr(separated, "open_input", refusing)
    with pytest.raises(PermissionError, match="part-09"):
        mill.run(recipe_of(mill, data))
    assert not (mill.output / "manifest.json").exists()
    monkeypatch.setattr(separated, "open_input", real)
    mill.run(recipe_of(mill, data))


def test_keep_work_keeps_it_and_the_next_run_is_up_to_date(mill, data):
    recipe = recipe_of(mill, data, Limit(max_records=50), Write(format="arrow"))
    mill.run(recipe, keep_work=True)
    assert len([path for path in mill.files() if path.startswith((".gristmill/work/", ".gristmill/stored/"))]) > 3
    assert mill.run(recipe).was_up_to_date


def test_adding_a_file_changes_no_other_records_split_or_sample(mill, data):
    recipe = recipe_of(mill, data, Sample(fraction=0.6), Split(validation=0.4, by="origin"), Write(format="jsonl"))

    def places():
        dataset = open_dataset(mill.output)
        return {record["id"]: name for name in dataset.splits for record in dataset.split(name)}

    mill.run(recipe)
    before = places()
    write(data / "part-00a.jsonl", 1000)
    mill.run(recipe, update=True)
    after = places()
    assert {key: name for key, name in after.items() if not key.startswith("1000-")} == before


def test_the_plan_is_checked_before_the_folder_is_made(mill, data):
    with pytest.raises(UsageError):
        plan.make_plan(recipe_of(mill, data, Split(validation=0.5, by="nowhere")))
    assert not mill.output.exists()
