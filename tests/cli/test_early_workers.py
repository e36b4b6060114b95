"""Workers that start before a run is imported: only if the recipe names enough local input, and never in doubt."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from gristmill_testing.small_tokenizers import trained

from gristmill.cli.running.early_workers import BYTES_A_WORKER, MIN_BYTES, start_workers_early
from gristmill.engine.pool.worker_pool import WorkerPool
from gristmill.images.codec import list_formats
from gristmill.pipeline.planning.placement.in_process import MAX_IN_PROCESS_BYTES
from gristmill.runtime import loaded_content
from gristmill.shards.dataset import open_dataset
from gristmill.steps.read import CELL_BYTES
from gristmill.text.tokenizers import clear_engine_cache


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "empty" / "folder").mkdir(parents=True)
    for name in ("a.jsonl", "b.jsonl"):
        with (tmp_path / "data" / name).open("wb") as file:
            file.truncate(MIN_BYTES)  # sparse: nobody reads it
    return tmp_path


def count_started(folder, recipe, *, workers=2, backend="auto", overrides=()):
    path = folder / "recipe.yaml"
    path.write_text(recipe)
    with start_workers_early(str(path), overrides, workers=workers, backend=backend, pin="none") as pool:
        return pool.num_unused


READS = ["data/*.jsonl", "[data/a.jsonl, data/b.jsonl]", '"data/{a,b}.jsonl"', '"**/*.jsonl"', "data", '"dat*"', "."]


@pytest.mark.parametrize("read", READS)
def test_a_worker_is_started_for_each_part_of_the_input(folder, read):
    assert count_started(folder, f"output: out\nsources: {{web: {{read: {read}}}}}") == 2


def test_no_more_workers_are_started_than_asked_for_or_needed(folder):
    recipe = "output: out\nsources: {web: {read: data/*.jsonl}}"
    assert count_started(folder, recipe, workers=1) == 1
    assert count_started(folder, recipe, workers=7) == 2 * MIN_BYTES // BYTES_A_WORKER


def test_no_worker_is_started_for_a_run_that_may_stay_in_this_process(folder):
    assert (BYTES_A_WORKER, MIN_BYTES) == (CELL_BYTES, MAX_IN_PROCESS_BYTES)
    assert count_started(folder, "output: out\nsources: {web: {read: data/a.jsonl}}") == 0


def test_only_some_files_of_a_large_folder_are_looked_at(folder, monkeypatch):
    looked_at = []
    real_stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda path, **options: looked_at.append(path) or real_stat(path, **options))
    for number in range(40):
        path = folder / "many" / f"class-{number % 4}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(MIN_BYTES)
    looked_at.clear()
    assert count_started(folder, "output: out\nsources: {web: {read: many}}") == 2
    assert len({path for path in looked_at if path.suffix == ".bin"}) <= 2


@pytest.mark.parametrize(
    "recipe",
    [
        "output: out\nsources: {web: {read: missing.jsonl}}",
        "output: out\nsources: {web: {read: s3://bucket/a.jsonl}}",
        "output: out\nsources: {web: [data/a.jsonl]}",
        "output: data\nsources: {web: {read: data/*.jsonl}}",
        "sources: {web: {read: data/*.jsonl}}",
        'output: out\nsources: {web: {read: "{0..99999999}"}}',
        'output: out\nsources: {web: {read: "data/**.jsonl"}}',  # which pathlib refuses
        "output: out\nsources: {web: {read: empty}}",
        'output: out\nsources: {web: {read: ["data/a\\0b.jsonl", "data/a\\0*.jsonl"]}}',
        "output: [",
        "3",
        "",
    ],
)
def test_in_doubt_no_worker_is_started(folder, recipe):
    assert count_started(folder, recipe) == 0


def test_a_recipe_from_a_pipe_is_left_to_the_run():
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe, open(writing, "wb") as text:
        text.write(b"output: out")
        text.flush()
        with start_workers_early(f"/dev/fd/{reading}", (), workers=2, backend="auto", pin="none") as pool:
            assert pool.num_unused == 0
        text.close()
        assert pipe.read() == b"output: out"


def test_a_run_in_this_process_starts_none(folder):
    assert count_started(folder, "output: out\nsources: {web: {read: data/*.jsonl}}", backend="serial") == 0


@pytest.mark.parametrize(
    ("steps", "forms"),
    [
        ("[{tokenize: {tokenizer: tokenizer}}]", [("tokenizers", True), ("fastokens", True)]),
        ("[{tokenize: {tokenizer: tokenizer, engine: tokenizers}}]", [("tokenizers", True)]),
        ("[{render: {}}, {tokenize: {tokenizer: tokenizer}}]", [("tokenizers", False), ("fastokens", False)]),
        ("[{tokenize: {tokenizer: some/model}}, length, {tokenize: null}]", []),
    ],
)
def test_the_tokenizer_of_a_recipe_is_loaded_ahead(folder, monkeypatch, steps, forms):
    """As a stage will ask for it. One from the Hub is left to the plan."""
    jobs = []
    monkeypatch.setattr(WorkerPool, "start_ahead", lambda self, num_workers, job, **options: jobs.append(job))
    files = trained(folder / "tokenizer")
    count_started(folder, f"output: out\nsources: {{web: {{read: data/*.jsonl}}}}\nsteps: {steps}")
    clear_engine_cache()
    for call in (call for calls in jobs[0].setup.args[2:] for call in calls):
        module, function, arguments = call
        getattr(import_module(module), function)(**arguments)
    kept = {key[1][:2] for key in loaded_content._kinds[loaded_content.TOKENIZER] if key[0] == files.content}
    clear_engine_cache()
    assert kept == set(forms)


def test_the_formats_of_images_are_loaded_ahead(folder, monkeypatch):
    jobs = []
    monkeypatch.setattr(WorkerPool, "start_ahead", lambda self, num_workers, job, **options: jobs.append(job))
    count_started(folder, "output: out\nsources: {web: {read: data}}\nsteps: [{images: {resize: 256}}]")
    assert ("gristmill.images.codec", "list_formats", {}) in jobs[0].setup.args[3]
    assert "JPEG" in list_formats()


def test_the_first_look_imports_nothing_that_a_run_needs():
    code = "import gristmill.cli.running.run, sys; print(*({'numpy', 'pyarrow'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.strip() == ""


@pytest.mark.skipif(sys.platform != "linux", reason="workers fork on Linux only")
def test_forked_workers_make_the_same_dataset_as_one_process(gristmill, tmp_path):
    """They have loaded the tokenizer before the run asks for it."""
    trained(tmp_path / "tokenizer")
    with (tmp_path / "a.jsonl").open("w") as file:
        for number in range(MIN_BYTES // 4000):
            file.write(json.dumps({"text": f"{number} turns of the stone, and the corn is flour. " * 90}) + "\n")
    steps = "steps: [{tokenize: {tokenizer: tokenizer}}, {pack: {row_length: 512}}]"
    (tmp_path / "recipe.yaml").write_text(f"output: out\nsources: {{web: {{read: a.jsonl}}}}\n{steps}")
    gristmill("run", tmp_path / "recipe.yaml", "--workers", 2)
    gristmill("run", tmp_path / "recipe.yaml", "--backend", "serial", "--set", "output=serial")
    assert (
        open_dataset(tmp_path / "out").manifest.dataset_hash == open_dataset(tmp_path / "serial").manifest.dataset_hash
    )
