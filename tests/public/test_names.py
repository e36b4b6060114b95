"""The public names and signatures. A change here is a change for every user: it belongs in the changelog."""

import dataclasses
import importlib
import inspect

import pytest

import gristmill as gm
from gristmill.core.recipe import RunSettings
from gristmill.stream import Samples

NAMES = [
    "EventLog",
    "Failure",
    "Recipe",
    "Source",
    "__version__",
    "dump_recipe",
    "errors",
    "export",
    "load_recipe",
    "mix",
    "open_dataset",
    "parallel_imap",
    "parallel_map",
    "plan",
    "run",
    "steps",
    "train_tokenizer",
    "view",
]
MODULES = {"errors", "steps"}

STEPS = [
    "C4",
    "Cap",
    "Code",
    "Decontaminate",
    "Deduplicate",
    "Filter",
    "Fim",
    "Fineweb",
    "GopherQuality",
    "GopherRepetition",
    "Html",
    "Images",
    "KeepBest",
    "Language",
    "Length",
    "Limit",
    "Map",
    "MapBatches",
    "Mix",
    "Normalize",
    "Pack",
    "Pii",
    "QualityModel",
    "Read",
    "Rename",
    "Render",
    "Repetition",
    "Sample",
    "Scores",
    "Select",
    "Shuffle",
    "Split",
    "Tokenize",
    "Toxicity",
    "Url",
    "Write",
]

ERRORS = {
    "BooksError": RuntimeError,
    "ClusterError": RuntimeError,
    "CorruptStreamError": ValueError,
    "DamagedDatasetError": RuntimeError,
    "DamagedWorkError": RuntimeError,
    "RemoteStoreError": RuntimeError,
    "StoreRefusedError": RuntimeError,
    "EmptyDatasetError": RuntimeError,
    "EndlessStreamError": TypeError,
    "FolderLockedError": RuntimeError,
    "LeaseLostError": RuntimeError,
    "GristmillError": Exception,
    "ItemTimeoutError": TimeoutError,
    "LowUtilisationError": RuntimeError,
    "NoStateError": AttributeError,
    "NotUpToDateError": RuntimeError,
    "OutOfMemoryError": MemoryError,
    "OutOfRangeError": IndexError,
    "ParityError": RuntimeError,
    "QuarantineError": RuntimeError,
    "RemoteError": RuntimeError,
    "SampleError": ValueError,
    "SetupError": RuntimeError,
    "SourceChangedError": RuntimeError,
    "StalledError": RuntimeError,
    "StoppedError": RuntimeError,
    "TooManyBadError": RuntimeError,
    "TooManyDuplicatesError": RuntimeError,
    "TooMuchContaminationError": RuntimeError,
    "UnpicklableError": TypeError,
    "UsageError": ValueError,
    "WorkerDiedError": RuntimeError,
}

PARALLEL_MAP = {
    "fn": inspect.Parameter.empty,
    "items": inspect.Parameter.empty,
    "workers": "auto",
    "backend": "processes",
    "setup": None,
    "timeout": None,
    "retries": 0,
    "on_error": "raise",
    "chunk_size": "auto",
    "ordered": True,
    "max_items_per_worker": None,
    "pin": False,
    "desc": None,
    "progress": None,
    "monitor": False,
}


EMPTY = inspect.Parameter.empty
SIGNATURES = {
    "mix": {
        "inputs": EMPTY,
        "output": EMPTY,
        "size": None,
        "epochs": None,
        "by": "tokens",
        "max_epochs": 1.0,
        "split": "train",
        "seed": 0,
        "interleave": True,
        "workers": "auto",
        "backend": "auto",
        "ray_address": None,
        "progress": None,
    },
    "export": {
        "dataset": EMPTY,
        "to": EMPTY,
        "path": EMPTY,
        "split": None,
        "source": None,
        "vocab_size": None,
        "columns": None,
        "licences": None,
        "row_group_rows": None,
        "weights": None,
        "overwrite": False,
        "workers": "auto",
        "backend": "processes",
        "ray_address": None,
        "progress": None,
    },
    "dump_recipe": {"recipe": EMPTY},
    "load_recipe": {"path": EMPTY, "overrides": ()},
    "open_dataset": {"path": EMPTY},
    "plan": {"recipe": EMPTY, "limit": None, "allow_endpoints": ()},
    "run": {
        "recipe": EMPTY,
        "workers": "auto",
        "backend": "auto",
        "timeout": None,
        "pin": "none",
        "update": False,
        "overwrite": False,
        "keep_work": False,
        "limit": None,
        "progress": None,
        "monitor": False,
        "events": None,
        "take_over": False,
        "allow_endpoints": (),
        "ray_address": None,
        "wait_for_nodes": None,
        "stall_timeout": 900.0,
        "stop_on_stall": False,
        "debug": False,
    },
    "train_tokenizer": {
        "texts": EMPTY,
        "folder": EMPTY,
        "vocab_size": 16384,
        "special_tokens": ("<|endoftext|>",),
        "max_bytes": 1_000_000_000,
        "overwrite": False,
    },
    "view": {"paths": EMPTY, "rows": 5, "port": 0},
    "Source": {"read": EMPTY, "steps": ()},
    "Recipe": {
        "sources": EMPTY,
        "output": EMPTY,
        "steps": (),
        "seed": 0,
        "mixture": None,
        "max_quarantine": 0.01,
        "slice_bytes": "auto",
        "unit_bytes": 64 << 20,
        "identity": "mtime",
        "keep_dropped": None,
        "keep_scores": "file",
        "keep_stages": False,
        "work": None,
        "storage_options": None,
        "allow_empty": False,
        "run": RunSettings(),
        "report": None,
        "folder": None,
        "written": None,
    },
}
RESULT = {
    *(
        "books",
        "change",
        "dataset",
        "manifest",
        "output",
        "reuse",
        "tokens",
        "was_up_to_date",
        "warnings",
        "work_seconds",
    ),
    "store_use",
}
DATASET = {
    "decode",
    "decode_ids",
    "documents",
    "folder",
    "manifest",
    "origins",
    "quarantine",
    "schema",
    "sources",
    "spans",
    "split",
    "splits",
    "verify",
}


TRAINING = {
    "gristmill.order": ["ORDER_VERSION", "Mixture", "Permutation"],
    "gristmill.stream": ["TOKEN_KINDS", "Accounting", "Batch", "Cache", "Collate", "Samples", "Stream"],
    "gristmill.stream.torch": ["TorchDataset", "TorchLoader", "TorchRows"],
    "gristmill.stream.trainers.accelerate": ["AccelerateLoader"],
    "gristmill.stream.trainers.grain": ["GrainSource"],
    "gristmill.stream.trainers.lightning": ["StreamDataModule"],
    "gristmill.stream.trainers.transformers": ["StreamTrainer", "StreamTrainerMixin"],
}
STREAM = {
    "data": EMPTY,
    "mixture": None,
    "weights_in": "rows",
    "split": None,
    "sources": None,
    "seed": 0,
    "shuffle": True,
    "epochs": None,
    "rows": None,
    "tokens": None,
    "rows_per_epoch": None,
    "max_epochs": None,
    "drop_last": False,
    "balance": False,
    "batch_tokens": None,
    "collate": None,
    "samples": Samples(),
    "cache": None,
}


@pytest.mark.parametrize("module", TRAINING)
def test_names_for_training_are_pinned(module):
    assert sorted(importlib.import_module(module).__all__) == sorted(TRAINING[module])


def test_signature_of_a_stream_is_pinned():
    parameters = inspect.signature(importlib.import_module("gristmill.stream").Stream).parameters
    assert {key: parameter.default for key, parameter in parameters.items()} == STREAM


def test_names_are_pinned():
    assert sorted(gm.__all__) == NAMES
    assert dir(gm) == NAMES


@pytest.mark.every_case
@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_what_its_module_defines(name):
    value = getattr(gm, name)
    assert inspect.ismodule(value) == (name in MODULES)
    if callable(value):
        assert value.__name__ == name


def test_star_import_gives_the_public_names():
    namespace = {}
    exec("from gristmill import *", namespace)
    assert set(NAMES) <= set(namespace)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = gm.no_such_name


@pytest.mark.parametrize("name", ["parallel_map", "parallel_imap"])
def test_parallel_map_signature_is_pinned(name):
    parameters = inspect.signature(getattr(gm, name)).parameters
    assert {key: parameter.default for key, parameter in parameters.items()} == PARALLEL_MAP
    positional = [key for key, parameter in parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY]
    assert positional == ["fn", "items"]


@pytest.mark.every_case
@pytest.mark.parametrize("name", SIGNATURES)
def test_signature_is_pinned(name):
    parameters = inspect.signature(getattr(gm, name)).parameters
    assert {key: parameter.default for key, parameter in parameters.items()} == SIGNATURES[name]
    if name in ("plan", "run"):
        positional = [key for key, parameter in parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY]
        assert positional == ["recipe"]


def test_steps_are_pinned():
    assert sorted(gm.steps.__all__) == STEPS
    assert all(getattr(gm.steps, name).__name__ == name for name in STEPS)


def test_what_a_run_gives_is_pinned(tmp_path):
    (tmp_path / "data.jsonl").write_text('{"text": "hello"}\n')
    recipe = gm.Recipe(sources={"web": gm.steps.Read(read="data.jsonl")}, output="out", folder=str(tmp_path))
    assert str(gm.plan(recipe)).startswith(f"plan for {tmp_path / 'out'}")
    result = gm.run(recipe, backend="serial", progress=False, events=tmp_path / "events.jsonl")
    dataset = result.dataset()
    assert {name for name in dir(result) if not name.startswith("_")} == RESULT
    assert {name for name in dir(dataset) if not name.startswith("_")} == DATASET
    assert [record["text"] for record in dataset] == ["hello"]
    assert (tmp_path / "events.jsonl").exists()


@pytest.mark.parametrize("function", ["plan", "run"])
def test_a_path_is_not_a_recipe(function):
    with pytest.raises(gm.errors.UsageError, match="load_recipe"):
        getattr(gm, function)("recipe.yaml")


def test_failure_fields_are_pinned():
    names = [field.name for field in dataclasses.fields(gm.Failure)]
    assert names == ["index", "kind", "error_type", "message", "traceback", "signal", "attempts", "position"]


def test_errors_are_pinned_and_refine_a_builtin():
    found = {
        name: value
        for name, value in vars(gm.errors).items()
        if inspect.isclass(value) and issubclass(value, gm.errors.GristmillError)
    }
    assert sorted(found) == sorted(ERRORS)
    for name, builtin in ERRORS.items():
        assert issubclass(found[name], builtin)
