"""Splits are kept from every kind of dataset, and steps touch those that they are said to touch."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.core.errors import UsageError
from gristmill.core.recipe import Recipe, Source
from gristmill.pipeline.api import plan
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.recipe.load import parse_recipe
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Deduplicate, Filter, Length, Limit, Mix, Read, Sample, Shuffle, Split, Write

JSONL = Write(format="jsonl")
SPLITS = {"train": 60, "test": 30, "validation_2": 10}
SMALL = {name: [f"{name} {n}" for n in range(count)] for name, count in SPLITS.items()}


def run_to(output, sources, steps):
    recipe = Recipe(sources=sources, steps=steps, output=str(output))
    run_recipe(recipe, RunOptions(backend="serial", progress=False))


def texts_by_split(folder):
    dataset = open_dataset(folder)
    return {name: [record["text"] for record in dataset.split(name)] for name in dataset.splits}


def hub_folder(folder, splits=SMALL):
    for name, texts in splits.items():
        path = folder / f"data/{name}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"text": texts}), path)
    return str(folder)


def dataset_dict(splits=SMALL):
    datasets = pytest.importorskip("datasets")
    return datasets.DatasetDict({name: datasets.Dataset.from_dict({"text": texts}) for name, texts in splits.items()})


def saved(folder, splits=SMALL):
    dataset_dict(splits).save_to_disk(str(folder))
    return str(folder)


def iterable(folder, splits=SMALL):
    datasets = pytest.importorskip("datasets")
    return datasets.IterableDatasetDict(
        {name: dataset.to_iterable_dataset() for name, dataset in dataset_dict(splits).items()}
    )


KINDS = {
    "hub": hub_folder,
    "save_to_disk": saved,
    "DatasetDict": lambda _, splits=SMALL: dataset_dict(splits),
    "IterableDatasetDict": iterable,
}


@pytest.fixture(params=KINDS)
def make(request, tmp_path):
    """A dataset with splits, in each of the ways in which there are some."""
    return lambda splits=SMALL: KINDS[request.param](tmp_path / "data", splits)


def test_every_split_is_kept(make, mill):
    mill.run(mill.recipe({"web": Read(read=make())}, [Length(min_chars=1), JSONL]))
    assert {name: sorted(texts) for name, texts in texts_by_split(mill.output).items()} == {
        name: sorted(texts) for name, texts in SMALL.items()
    }


def test_a_dataset_of_ours_keeps_them_again(mill, tmp_path):
    first = str(tmp_path / "first")
    source = {"web": Read(read=hub_folder(tmp_path / "data"))}
    run_to(first, source, [JSONL])
    mill.run(mill.recipe({"old": Read(read=first)}, [Shuffle(), Write(format="parquet")]))
    assert {name: sorted(texts) for name, texts in texts_by_split(mill.output).items()} == {
        name: sorted(texts) for name, texts in SMALL.items()
    }


def test_a_dataset_without_train_stops_and_asks(make, mill):
    splits = {"train_sft": ["a"], "test_sft": ["b"], "test_gen": ["c"]}
    data = make(splits)
    with pytest.raises(UsageError, match=r"train_sft, test_sft, test_gen|test_gen, test_sft, train_sft") as refused:
        mill.run(mill.recipe({"web": Read(read=data)}, [JSONL]))
    assert "splits: {train: train_sft, validation: test_" in refused.value.help
    assert not mill.output.exists()
    choice = {"train": "train_sft", "validation": "test_sft"}
    result = mill.run(mill.recipe({"web": Read(read=data, splits=choice)}, [JSONL]))
    assert texts_by_split(result.output) == {"train": ["a"], "validation": ["b"]}


def test_all_as_train(make, mill):
    mill.run(mill.recipe({"web": Read(read=make(), splits="all_as_train")}, [JSONL]))
    [(name, texts)] = texts_by_split(mill.output).items()
    assert name == "train"
    assert sorted(texts) == sorted(text for texts in SMALL.values() for text in texts)


def test_the_plan_says_what_becomes_of_splits(mill, tmp_path):
    read = Read(read=hub_folder(tmp_path / "data"), splits={"train": "train", "dev": "test"})
    shown = str(plan(mill.recipe({"web": read}, [])))
    assert "train, test as dev; not read: validation_2" in shown


NAMED = {
    "train.jsonl": "train",
    "more.jsonl": "train",
    "default/test/0000.jsonl": "test",
    "val-00.jsonl": "validation",
    "dev/train.jsonl": "train",
    "valid/x.jsonl": "validation",
}


@pytest.fixture
def named(tmp_path):
    for name in NAMED:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"text": "{name}"}}\n')
    return tmp_path / "in"


def test_names_of_splits_stop_the_plan_with_two_ways_out(mill, named):
    with pytest.raises(UsageError, match=r"the names of files say splits: .* and 2 more") as refused:
        plan(mill.recipe({"web": Read(read=str(named))}, []))
    assert "splits: by_name" in refused.value.help
    assert "splits: all_as_train" in refused.value.help
    mill.run(mill.recipe({"web": Read(read=str(named), splits="by_name")}, [JSONL]))
    assert {name: set(texts) for name, texts in texts_by_split(mill.output).items()} == {
        split: {name for name in NAMED if NAMED[name] == split} for split in ("train", "test", "validation")
    }
    mill.run(mill.recipe({"web": Read(read=str(named), splits="all_as_train")}, [JSONL]), overwrite=True)
    assert {name: set(texts) for name, texts in texts_by_split(mill.output).items()} == {"train": set(NAMED)}


def test_a_name_of_two_splits_is_not_guessed(mill, tmp_path):
    for name in ("a", "train-test"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UsageError, match=r"train-test\.jsonl names train and test"):
        plan(mill.recipe({"web": Read(read=f"{tmp_path}/*.jsonl", splits="by_name")}, []))


def test_files_are_declared_as_splits(mill, named):
    read = {"train": [f"{named}/train.jsonl", f"{named}/more.jsonl"], "validation": f"{named}/val*.jsonl"}
    recipe = mill.recipe({"web": Read(read=read)}, [JSONL])
    assert "splits: train, validation" in str(plan(recipe))
    mill.run(recipe)
    assert {name: set(texts) for name, texts in texts_by_split(mill.output).items()} == {
        "train": {"train.jsonl", "more.jsonl"},
        "validation": {"val-00.jsonl"},
    }
    written = {"output": "x", "sources": {"web": {"read": read}}}
    assert parse_recipe(json.dumps(written)).sources["web"].read == Read(read=read)
    with pytest.raises(UsageError, match="is in two splits, train and validation"):
        plan(mill.recipe({"web": Read(read={"train": f"{named}/*.jsonl", "validation": f"{named}/val*.jsonl"})}, []))
    with pytest.raises(UsageError, match="none is train"):
        parse_recipe("output: x\nsources: {web: {read: {validation: a.jsonl}}}\n")


def test_records_from_python_are_declared_as_splits(mill):
    read = {"train": [{"text": "a"}, {"text": "b"}], "validation": iter([{"text": "c"}])}
    mill.run(mill.recipe({"web": Read(read=read)}, [JSONL]))
    assert texts_by_split(mill.output) == {"train": ["a", "b"], "validation": ["c"]}
    with pytest.raises(UsageError, match="some splits are paths and others records"):
        Read(read={"train": "a.jsonl", "validation": [{"text": "c"}]})
    with pytest.raises(UsageError, match="a dict is not a source of records"):
        Read(read={"text": "a", "id": 1})


def test_a_column_or_file_called_split_makes_no_split(mill, tmp_path):
    (tmp_path / "test.jsonl").write_text('{"text": "a", "split": "test"}\n')
    read = Read(read=f"{tmp_path}/*.jsonl", columns=["split"])
    assert "test.jsonl is training data, whatever its name says" in str(plan(mill.recipe({"web": read}, [])))
    mill.run(mill.recipe({"web": read}, []))
    assert list(texts_by_split(mill.output)) == ["train"]
    assert open_dataset(mill.output)[0]["split"] == "test"


def test_a_column_of_parquet_called_split_is_a_column(mill, tmp_path):
    pq.write_table(pa.table({"text": ["a", "b"], "split": ["test", "x/y"]}), tmp_path / "a.parquet")
    mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/*.parquet", columns=["split"])}, [Shuffle(), JSONL]))
    [(name, _)] = texts_by_split(mill.output).items()
    assert name == "train"
    assert sorted(record["split"] for record in open_dataset(mill.output)) == ["test", "x/y"]


def test_a_lone_test_set_is_not_trained_on_without_a_word(mill):
    dataset = pytest.importorskip("datasets").Dataset.from_dict({"text": ["a"]}, split="test")
    with pytest.raises(UsageError, match="no split train"):
        mill.run(mill.recipe({"web": Read(read=dataset)}, []))
    mill.run(mill.recipe({"web": Read(read=dataset, splits={"train": "test"})}, []))
    assert texts_by_split(mill.output) == {"train": ["a"]}


@pytest.mark.parametrize("split", ["train", "train[:50%]", None])
def test_a_lone_training_set_is_as_before(mill, split):
    dataset = pytest.importorskip("datasets").Dataset.from_dict({"text": ["a"]}, split=split)
    mill.run(mill.recipe({"web": Read(read=dataset)}, []))
    assert texts_by_split(mill.output) == {"train": ["a"]}


@pytest.mark.parametrize("amount", [0.5, 20], ids=["fraction", "number"])
def test_a_split_step_cuts_train_only(mill, tmp_path, amount):
    source = {"web": Read(read=hub_folder(tmp_path / "data"))}
    mill.run(mill.recipe(source, [Split(validation=amount), JSONL]))
    found = texts_by_split(mill.output)
    assert found["test"] == SMALL["test"]
    assert found["validation_2"] == SMALL["validation_2"]
    assert found["validation"]
    assert sorted(found["train"] + found["validation"]) == sorted(SMALL["train"])


def test_a_split_step_whose_target_exists_is_refused(mill, tmp_path):
    source = {"web": Read(read=hub_folder(tmp_path / "data"))}
    for amount in (0.1, 5):
        with pytest.raises(UsageError, match="a split test already"):
            mill.run(mill.recipe(source, [Split(test=amount), JSONL]))
    with pytest.raises(UsageError, match="a split test already"):
        mill.run(mill.recipe(source, [Split(validation=0.1), Shuffle(), Split(test=0.1), JSONL]))


def test_two_split_steps_one_after_the_other(mill, tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(1000)))
    source = {"web": Read(read=f"{tmp_path}/a.jsonl")}
    mill.run(mill.recipe(source, [Split(validation=0.2), Split(test=0.2), JSONL]))
    sizes = {name: len(texts) for name, texts in texts_by_split(mill.output).items()}
    assert 150 < sizes["validation"] < 250
    assert 120 < sizes["test"] < 200  # a fifth of what is left
    assert sum(sizes.values()) == 1000


def test_filters_act_on_all_splits(mill, tmp_path):
    source = {"web": Read(read=hub_folder(tmp_path / "data"))}
    mill.run(mill.recipe(source, [Filter(call=lambda record: record["text"].endswith("7")), JSONL]))
    expected = {name: [text for text in texts if text.endswith("7")] for name, texts in SMALL.items()}
    assert texts_by_split(mill.output) == expected


STEPS = {
    "sample": (Sample(fraction=0.5), range(15, 46)),
    "no sample": (Sample(fraction=0.0), range(1)),
    "limit": (Limit(max_records=7), range(7, 8)),
    "shuffle": (Shuffle(), range(60, 61)),
    "mix": (Mix(weights={"web": 1}, size=20, by="documents"), range(20, 21)),
    "mix with copies": (Mix(weights={"web": 1}, size=90, by="documents", max_epochs=2), range(90, 91)),
}


@pytest.mark.parametrize(("step", "num_train"), STEPS.values(), ids=STEPS)
def test_steps_that_choose_act_on_train(mill, tmp_path, step, num_train):
    source = {"web": Read(read=hub_folder(tmp_path / "data"))}
    mill.run(mill.recipe(source, [step, JSONL]))
    found = texts_by_split(mill.output)
    assert len(found.pop("train", [])) in num_train
    assert {name: sorted(texts) for name, texts in found.items()} == {
        name: sorted(texts) for name, texts in SMALL.items() if name != "train"
    }
    if isinstance(step, Shuffle):
        assert found["test"] == SMALL["test"]


def test_shuffle_reorders_train(mill, tmp_path):
    mill.run(mill.recipe({"web": Read(read=hub_folder(tmp_path / "data"))}, [Shuffle(), JSONL]))
    found = texts_by_split(mill.output)
    assert found["train"] != SMALL["train"]
    assert sorted(found["train"]) == sorted(SMALL["train"])


def test_a_limit_reads_held_out_files_behind_it(mill, tmp_path):
    """Files for training alone are not read when there are enough; those that are held out are."""
    splits = {"a_dev": ["x"], "train": [f"t{n}" for n in range(50)], "z_test": ["y", "z"]}
    mill.run(mill.recipe({"web": Read(read=hub_folder(tmp_path / "data", splits))}, [Limit(max_records=3), JSONL]))
    assert texts_by_split(mill.output) == {"train": ["t0", "t1", "t2"], "a_dev": ["x"], "z_test": ["y", "z"]}


def test_a_limit_behind_a_split_step_loses_nothing_held_out(mill, tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(300)))
    source = {"web": Read(read=f"{tmp_path}/a.jsonl")}
    run_to(tmp_path / "whole", source, [Split(validation=0.3), JSONL])
    mill.run(mill.recipe(source, [Split(validation=0.3), Limit(max_records=5), JSONL]))
    whole, limited = texts_by_split(tmp_path / "whole"), texts_by_split(mill.output)
    assert limited == {"train": whole["train"][:5], "validation": whole["validation"]}


def test_a_quick_look_takes_the_first_of_each_split(mill, tmp_path):
    recipe = mill.recipe({"web": Read(read=hub_folder(tmp_path / "data"))}, [JSONL])
    mill.run(recipe, limit=4)
    assert texts_by_split(mill.output) == {name: texts[:4] for name, texts in SMALL.items()}


def page(n, end=""):
    return " ".join(f"word{n}x{k}" for k in range(60)) + end


@pytest.mark.parametrize("kind", ["exact", "near"])
def test_a_held_out_document_stays_and_its_copy_in_train_goes(mill, tmp_path, kind):
    end = " and a longer end" if kind == "near" else ""
    splits = {
        "train": [page(1, end), page(2), page(3), page(3), page(5, end)],
        "test": [page(1), page(4), page(4)],
        "dev": [page(5), page(1)],
    }
    source = {"web": Read(read=hub_folder(tmp_path / "data", splits))}
    result = mill.run(mill.recipe(source, [Deduplicate(kind=kind, max_source_loss=1.0), JSONL]))
    found = texts_by_split(mill.output)
    assert sorted(found["train"]) == sorted([page(2), page(3)])
    assert found["test"] == splits["test"]  # also copies among what is held out
    assert found["dev"] == splits["dev"]
    assert result.books["web"][1].dropped == (
        {"duplicate": 3} if kind == "exact" else {"duplicate": 1, "near_duplicate": 2}
    )


def test_a_copy_in_the_training_data_of_another_source_goes_too(mill, tmp_path):
    pq.write_table(pa.table({"text": [page(n) for n in range(5)]}), tmp_path / "other.parquet")
    sources = {
        "bench": Read(read=hub_folder(tmp_path / "data", {"train": [page(9)], "test": [page(3)]})),
        "web": Read(read=f"{tmp_path}/other.parquet"),
    }
    mill.run(mill.recipe(sources, [Deduplicate(prefer=["web"], count=True), JSONL]))
    dataset = open_dataset(mill.output)
    counts = {record["text"]: record["duplicate_count"] for record in dataset}
    assert len(dataset) == 6
    assert [record["text"] for record in dataset.split("test")] == [page(3)]
    assert counts[page(3)] == 2


def test_a_source_with_splits_beside_one_without(mill, tmp_path):
    pq.write_table(pa.table({"text": ["plain"]}), tmp_path / "other.parquet")
    sources = {
        "hub": Read(read=hub_folder(tmp_path / "data")),
        "web": Source(Read(read=f"{tmp_path}/other.parquet"), steps=[Length(min_chars=1)]),
    }
    mill.run(mill.recipe(sources, [Shuffle(), JSONL]))
    found = texts_by_split(mill.output)
    assert sorted(found["train"]) == sorted([*SMALL["train"], "plain"])


def test_a_changed_card_is_a_changed_dataset(mill, tmp_path):
    folder = tmp_path / "data"
    for name in "ab":
        path = folder / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"text": name}) + "\n")

    def write_card(train, test):
        data_files = f"[{{split: train, path: {train}.jsonl}}, {{split: test, path: {test}.jsonl}}]"
        (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: x\n  data_files: {data_files}\n---\n")

    recipe = mill.recipe({"web": Read(read=str(folder))}, [JSONL])
    write_card("a", "b")
    mill.run(recipe)
    assert texts_by_split(mill.output) == {"train": ["a"], "test": ["b"]}
    write_card("b", "a")
    mill.run(recipe, update=True)
    assert texts_by_split(mill.output) == {"train": ["b"], "test": ["a"]}
