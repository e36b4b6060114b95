"""Batches of preferences against a slow twin that builds each sequence in a loop; their order, resume and refusals."""

import itertools
import json
import random

import numpy as np
import pytest
from gristmill_testing.chat_templates import CHATML
from gristmill_testing.rendering import SPECIALS
from gristmill_testing.small_tokenizers import trained

from gristmill.core.errors import UsageError
from gristmill.core.recipe import Recipe
from gristmill.pipeline.jobs.export import export
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.shards.dataset import open_dataset
from gristmill.shards.verify import verify
from gristmill.steps import Deduplicate, Pack, Read, Render, Tokenize
from gristmill.stream import Collate, PairCollate, Stream
from gristmill.stream.examine import prove

WORDS = ["mill", "grist", "flour", "stone", "größe", "粉"]
PARTS = {"pairs": ("prompt_ids", "chosen_ids", "rejected_ids"), "labels": ("prompt_ids", "completion_ids")}


def write_records(path, count):
    rng = random.Random(1)
    records = []
    for number in range(count):
        question, good, bad = (" ".join(rng.choices(WORDS, k=rng.randrange(1, 9))) for _ in range(3))
        record = {"prompt": f"{number} {question}", "chosen": f"{good} c", "rejected": f"{bad} r"}
        records.append(record | ({"score_chosen": number, "score_rejected": 0.5} if number % 3 else {}))
    records.insert(5, records[4] | {"chosen": "another answer to the same prompt"})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def make_recipe(folder, form, *more, name=None):
    data = folder / "in/pairs.jsonl"
    steps = [
        Render(preferences=form),
        *([Deduplicate(kind="exact", by="prompt")] if form == "pairs" else []),
        Tokenize(tokenizer=str(folder / "tokenizer"), engine="tokenizers"),
        *more,
    ]
    return Recipe(sources={"made": Read(read=str(data))}, steps=steps, output=str(folder / (name or form)))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    trained(folder / "tokenizer", specials=SPECIALS, chat_template=CHATML)
    write_records(folder / "in/pairs.jsonl", 30)
    for form in PARTS:
        run_recipe(make_recipe(folder, form), RunOptions(backend="serial", progress=False))
    return folder


def read_parts(dataset, rows, form):
    return [[dataset[row][name].tolist() for name in PARTS[form]] for row in rows]


def pad(sequences, value, multiple=1):
    width = -(-max(map(len, sequences)) // multiple) * multiple
    return [sequence + [value] * (width - len(sequence)) for sequence in sequences]


def test_rows_are_pairs_of_different_prompts(world):
    dataset = open_dataset(world / "pairs")
    assert len(dataset) == 30  # the second pair of one prompt is a duplicate
    assert dataset.manifest.kind == "preferences"
    assert verify(world / "pairs").problems == []
    prompt, chosen, rejected = dataset.documents(3)
    assert prompt.endswith("<|im_start|>assistant\n")
    assert chosen.endswith(" c<|im_end|>\n")
    assert rejected.endswith(" r<|im_end|>\n")
    record = dataset[4]
    assert record["margin"] == record["score_chosen"] - 0.5
    assert dataset[3]["margin"] is None
    assert sum(shard.tokens for _, _, shard in dataset.manifest.shards()) == sum(
        len(dataset[row]["input_ids"]) for row in range(30)
    )


def test_padded_batches_are_those_of_a_loop(world):
    collate = PairCollate(labels=True, values=("margin",), pad_to_multiple=8, pad_id=9)
    batch = Stream(world / "pairs", shuffle=False, epochs=1, collate=collate).batch(1, 4)
    parts = read_parts(open_dataset(world / "pairs"), range(4, 8), "pairs")
    sequences = [*(p + c for p, c, _ in parts), *(p + r for p, _, r in parts)]
    prompts = [len(p) for p, _, _ in parts] * 2
    masks = [[0] * n + [1] * (len(ids) - n) for n, ids in zip(prompts, sequences, strict=True)]
    labels = [[-100] * n + ids[n:] for n, ids in zip(prompts, sequences, strict=True)]
    assert batch["input_ids"].tolist() == pad(sequences, 9, 8)
    assert batch["attention_mask"].tolist() == pad([[1] * len(ids) for ids in sequences], 0, 8)
    assert batch["completion_mask"].tolist() == pad(masks, 0, 8)
    assert batch["labels"].tolist() == pad(labels, -100, 8)
    margins = [open_dataset(world / "pairs")[row]["margin"] for row in range(4, 8)]
    assert np.array_equal(batch["margin"], np.array([np.nan if m is None else m for m in margins], np.float32), True)


def test_packed_batches_have_every_sequence_once(world):
    batch = Stream(world / "pairs", shuffle=False, epochs=1, collate=PairCollate(form="packed")).batch(0, 3)
    parts = read_parts(open_dataset(world / "pairs"), range(3), "pairs")
    sequences = [*(p + c for p, c, _ in parts), *(p + r for p, _, r in parts)]
    ends = [0, *itertools.accumulate(map(len, sequences))]
    assert batch["input_ids"][0].tolist() == list(itertools.chain(*sequences))
    assert batch["position_ids"][0].tolist() == list(itertools.chain(*(range(len(ids)) for ids in sequences)))
    assert batch["cu_seqlens"].tolist() == ends
    assert batch["max_seqlen"] == max(map(len, sequences))


def test_shared_batches_have_each_prompt_once(world):
    batch = Stream(world / "pairs", shuffle=False, epochs=1, collate=PairCollate(form="shared")).batch(0, 3)
    ids, positions, numbers = [], [], []
    for prompt, chosen, rejected in read_parts(open_dataset(world / "pairs"), range(3), "pairs"):
        ids += prompt + chosen + rejected
        positions += range(len(prompt) + len(chosen))
        positions += range(len(prompt), len(prompt) + len(rejected))
        numbers += [0] * len(prompt) + [1] * len(chosen) + [2] * len(rejected)
    assert batch["input_ids"][0].tolist() == ids
    assert batch["position_ids"][0].tolist() == positions
    assert batch["part_ids"][0].tolist() == numbers
    assert batch["completion_mask"][0].tolist() == [int(number > 0) for number in numbers]


def test_labeled_batches_have_mismatched_completions(world):
    batch = Stream(world / "labels", shuffle=False, epochs=1).batch(0, 5)
    parts = read_parts(open_dataset(world / "labels"), range(5), "labels")
    sequences = [prompt + completion for prompt, completion in parts]
    rolled = [prompt + parts[number - 1][1] for number, (prompt, _) in enumerate(parts)]
    pad_id = int(batch["input_ids"].min())
    for name, expected in (("input_ids", sequences), ("KL_input_ids", rolled)):
        found = batch[name].tolist()
        assert [row[: len(ids)] for row, ids in zip(found, expected, strict=True)] == expected
    assert batch["label"].tolist() == [True, False, True, False, True]
    assert pad_id >= 0
    without = Stream(world / "labels", shuffle=False, epochs=1, collate=PairCollate(kl=False)).batch(0, 5)
    assert not any(name.startswith("KL_") for name in without)


@pytest.mark.parametrize("form", PARTS)
def test_ranks_and_resume_change_nothing(world, form):
    whole = [row for batch in Stream(world / form, seed=3, epochs=2).batches(4) for row in batch.tokens.tolist()]
    begun = Stream(world / form, seed=3, epochs=2)
    first = [next(begun.batches(4)) for _ in range(3)]
    resumed = Stream(world / form, seed=3, epochs=2)
    resumed.load_state_dict(begun.state_dict())
    rest = list(resumed.batches(2))
    assert [row for batch in [*first, *rest] for row in batch.tokens.tolist() if row] == [row for row in whole if row]
    proof = prove(Stream(world / form, seed=3, epochs=1), [2, 1], [0], [2, 3], 2, None)
    assert proof


def test_a_batch_that_is_filled_up_has_empty_rows(world):
    *_, last = Stream(world / "pairs", shuffle=False, epochs=1).batches(8)
    assert last.row_mask.tolist() == [True] * 6 + [False] * 2
    assert last["attention_mask"].sum(axis=1).tolist()[6:8] == [0, 0]


def test_what_does_not_fit_is_refused(world, tmp_path):
    with pytest.raises(UsageError, match="PairCollate"):
        Stream(world / "pairs", epochs=1, collate=Collate())
    with pytest.raises(UsageError, match="preferences"):
        Stream({"a": str(world / "pairs"), "b": str(world / "labels")}, epochs=1)
    with pytest.raises(UsageError, match="batch_tokens"):
        Stream(world / "pairs", epochs=1, batch_tokens=1000)
    with pytest.raises(UsageError):
        Stream(world / "pairs", epochs=1, collate=PairCollate(values=("label",)))
    with pytest.raises(UsageError, match="pack"):
        run_recipe(
            make_recipe(world, "pairs", Pack(row_length=64), name="packed"),
            RunOptions(backend="serial", progress=False),
        )
    with pytest.raises(UsageError, match="preferences"):
        export(world / "pairs", to="numpy", path=tmp_path / "x", backend="serial", progress=False)
    with pytest.raises(UsageError, match="trl"):
        export(world / "pairs", to="parquet", path=tmp_path / "x", columns="training", backend="serial", progress=False)


@pytest.mark.parametrize("to", ["parquet", "jsonl"])
@pytest.mark.parametrize("form", PARTS)
def test_exported_columns_are_those_of_trl(world, form, to, tmp_path):
    import pyarrow.parquet as pq

    export(world / form, to=to, path=tmp_path / "x", backend="serial", progress=False)
    files = sorted(tmp_path.glob("x_train-*"))
    if to == "parquet":
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    else:
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    dataset = open_dataset(world / form)
    values = ["margin", "score_chosen", "score_rejected"] if form == "pairs" else ["label", "score"]
    assert list(rows[0]) == [*PARTS[form], *values]
    for number, row in enumerate(rows):
        stored = dataset[number]
        assert [row[name] for name in PARTS[form]] == [stored[name].tolist() for name in PARTS[form]]
        assert [row[name] for name in values] == [stored[name] for name in values]
