"""Prompts for reinforcement learning, read back as verl, TRL and NeMo-RL read them."""

import json

import datasets
import pyarrow.parquet as pq
import pytest

from gristmill.core.errors import UsageError
from gristmill.core.recipe import Recipe
from gristmill.pipeline.jobs.export import export
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.steps import Read, Render, Split, Write

QUESTIONS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n), "level": n % 3} for n in range(40)]
FIELDS = {"prompt": "question", "response": "answer"}


@pytest.fixture
def prompts(tmp_path):
    """Makes a dataset of prompts."""

    def make(rows, form="parquet", steps=(), **keys):
        (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        recipe = Recipe(
            sources={"sums": Read(read=str(tmp_path / "in.jsonl"))},
            steps=[Render(template="chatml", until="prompt", **keys), *steps, Write(format=form)],
            output=str(tmp_path / "out"),
        )
        run_recipe(recipe, RunOptions(backend="serial", progress=False, overwrite=True))
        return tmp_path / "out"

    return make


def load(kind, paths):
    loaded = datasets.load_dataset(kind, data_files=[str(path) for path in paths], cache_dir=None)["train"]
    return loaded.to_list()


@pytest.mark.every_case
@pytest.mark.parametrize("form", ["parquet", "jsonl", "arrow"])
def test_verl(prompts, tmp_path, form):
    """As `RLHFDataset` and the reward managers of verl read a row."""
    folder = prompts(QUESTIONS, form, [Split(validation=0.2)], fields=FIELDS)
    exported = export(folder, to="verl", path=tmp_path / "rl", progress=False)
    assert {path.name for path in exported.files} == {"rl_train-00000.parquet", "rl_validation-00000.parquet"}
    by_split = {
        split: load("parquet", [path for path in exported.files if split in path.name])
        for split in ("train", "validation")
    }
    assert sum(map(len, by_split.values())) == 40
    assert by_split["validation"]
    expected = {row["question"]: row for row in QUESTIONS}
    for split, rows in by_split.items():
        for number, row in enumerate(rows):
            assert list(row) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
            [message] = row["prompt"]
            record = expected.pop(message["content"])
            assert message["role"] == "user"
            assert row["reward_model"] == {"style": "rule", "ground_truth": record["answer"]}
            assert row["data_source"] == "sums"
            assert row["extra_info"]["level"] == record["level"]
            assert (row["extra_info"]["split"], row["extra_info"]["index"]) == (split, number)
    assert not expected


def test_what_records_say_themselves_goes_before(prompts, tmp_path):
    """Rows in the form of verl come out as they went in, with messages of a system, too."""
    rows = [
        {
            "data_source": "mine",
            "prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": f"{n} + 1"}],
            "ability": "math",
            "reward_model": {"style": "model", "ground_truth": str(n + 1)},
            "extra_info": {"index": 100 + n, "split": "test", "difficulty": n},
        }
        for n in range(20)
    ]
    exported = export(prompts(rows), to="verl", path=tmp_path / "rl", progress=False)
    again = load("parquet", exported.files)
    for row in again:
        row["extra_info"].pop("other_fields", None)
        assert row["extra_info"].pop("completion") is None
    assert again == rows


def test_trl(prompts, tmp_path):
    """TRL's trainers that sample: conversational prompts without completions; all else is for reward functions."""
    data_utils = pytest.importorskip("trl.data_utils")
    folder = prompts(QUESTIONS, fields=FIELDS)
    rows = load("parquet", export(folder, to="trl-prompts", path=tmp_path / "rl", progress=False).files)
    assert [set(row) - {"other_fields"} for row in rows] == [{"prompt", "ground_truth", "level"}] * 40
    for row, record in zip(rows, QUESTIONS, strict=True):
        assert data_utils.is_conversational(row)
        assert row["prompt"] == [{"role": "user", "content": record["question"]}]
        assert (row["ground_truth"], row["level"]) == (record["answer"], record["level"])


def test_nemo_rl(prompts, tmp_path):
    """As `ResponseDataset` reads JSON lines: one text in, one text out."""
    folder = prompts(QUESTIONS, fields=FIELDS)
    rows = load("json", export(folder, to="nemo-rl", path=tmp_path / "rl", progress=False).files)
    assert [(row["input"], row["output"], row["level"]) for row in rows] == [
        (record["question"], record["answer"], record["level"]) for record in QUESTIONS
    ]


def test_nemo_rl_refuses_prompts_of_several_messages(prompts, tmp_path):
    chat = {"messages": [{"role": role, "content": role} for role in ("system", "user", "assistant")]}
    with pytest.raises(UsageError, match="2 messages"):
        export(prompts([chat] * 20), to="nemo-rl", path=tmp_path / "rl", progress=False)
    with pytest.raises(UsageError, match="ground_truth"):
        export(prompts([{"prompt": "Why?"}] * 20), to="nemo-rl", path=tmp_path / "rl", progress=False)


@pytest.mark.parametrize("to", ["verl", "trl-prompts", "nemo-rl"])
def test_other_datasets_are_refused(to, tmp_path, prompts):
    folder = prompts(QUESTIONS, keep="messages", fields=FIELDS)
    with pytest.raises(UsageError, match="no column prompt"):
        export(folder, to=to, path=tmp_path / "rl", progress=False)


def test_a_column_ground_truth_goes_before_the_answer(prompts, tmp_path):
    rows = [{**row, "ground_truth": {"value": row["level"]}} for row in QUESTIONS]
    exported = export(prompts(rows, fields=FIELDS), to="verl", path=tmp_path / "rl", progress=False)
    table = pq.read_table(exported.files[0]).to_pylist()
    assert [json.loads(row["reward_model"]["ground_truth"]) for row in table] == [
        {"value": row["level"]} for row in QUESTIONS
    ]
    assert [row["extra_info"]["completion"] for row in table] == [row["answer"] for row in QUESTIONS]
