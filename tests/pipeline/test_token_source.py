"""A dataset of tokens that is not packed as a source: packed anew without being tokenized or filtered again."""

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.core.recipe import Recipe, Source
from gristmill.pipeline.inspecting.trace import trace
from gristmill.pipeline.jobs.training_jobs import train_tokenizer
from gristmill.pipeline.planning.plan import make_plan
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages import slice_reader, slice_run
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Filter, Length, Limit, Pack, Read, Rename, Sample, Shuffle, Split, Tokenize, Write
from gristmill.text.tokenizers.train import save_tokenizer, train_bpe

ROW = 64
CONCAT = Pack(row_length=ROW, strategy="concat")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Documents in `in`, the tokens of them in `tokens`; in `large` 8 MB of other tokens, in 3 cells."""
    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    words = np.array(["mill", "grist", "flour", "stone", "größe", "粉"])
    (folder / "in").mkdir()
    for number in range(6):
        texts = [" ".join(rng.choice(words, int(rng.integers(1, 200)))) for _ in range(20)]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / "in" / f"part-{number}.jsonl").write_text(lines)
    (folder / "large.jsonl").write_text(
        "".join(json.dumps({"text": f"{n} " + "mill " * 500}) + "\n" for n in range(4000))
    )
    save_tokenizer(train_bpe(words.tolist() * 3, vocab_size=280), folder / "tokenizer")
    tokens_of(folder, "in/*.jsonl", "tokens", Split(validation=0.2, test=0.1))
    tokens_of(folder, "large.jsonl", "large", Split(validation=0.1))
    return folder


def tokens_of(folder, read, output, *steps, tokenizer="tokenizer"):
    steps = [*steps, Tokenize(tokenizer=str(folder / tokenizer))]
    recipe = Recipe(sources={"web": Read(read=read)}, steps=steps, output=output, folder=str(folder))
    return run_recipe(recipe, RunOptions(backend="serial", progress=False))


def from_text(world, *steps):
    return Source(Read(read=f"{world}/in/*.jsonl"), [*steps, Tokenize(tokenizer=str(world / "tokenizer"))])


def from_tokens(world, **keys):
    return Read(read=str(world / "tokens"), **keys)


def documents_in(dataset):
    """The pieces of documents in all rows."""
    for row in dataset:
        ends = np.cumsum(row["lengths"])
        yield from (
            tuple(row["input_ids"][end - length : end].tolist())
            for length, end in zip(row["lengths"], ends, strict=True)
        )


def rows_by_split(dataset):
    return {
        split: [(row["input_ids"].tolist(), row["lengths"].tolist()) for row in dataset.split(split)]
        for split in dataset.splits
    }


def run(mill, source, *steps, **settings):
    return mill.run(mill.recipe({"web": source}, steps, **settings)).dataset()


@pytest.mark.parametrize("pack", [None, CONCAT, Pack(row_length=600), Pack(row_length=ROW, strategy="pad")], ids=str)
def test_the_rows_of_packing_in_one_go(mill, world, tmp_path, pack):
    """Here all documents of a split are one unit in the same order, whichever way they come."""
    steps = [] if pack is None else [pack]
    in_one_go = Recipe(
        sources={"web": from_text(world, Split(validation=0.2, test=0.1))}, steps=steps, output=str(tmp_path / "whole")
    )
    whole = run_recipe(in_one_go, RunOptions(backend="serial", progress=False)).dataset()
    again = run(mill, from_tokens(world), *steps)
    assert again.manifest.kind == "tokens"
    assert again.manifest.row_length == (pack.row_length if pack else None)
    assert list(again.manifest.splits) == ["train", "test", "validation"]
    assert rows_by_split(again) == rows_by_split(whole)
    assert again.manifest.books["web"][0].records_in == 120


def test_every_token_of_a_split_stays_in_it(mill, world):
    before = open_dataset(world / "large")
    after = run(mill, Read(read=str(world / "large")), Shuffle(), Pack(row_length=1000))
    for split in ("train", "validation"):
        tokens = [Counter(t for ids in documents_in(d.split(split)) for t in ids) for d in (before, after)]
        assert tokens[0] == tokens[1]


def test_one_split(mill, world):
    dataset = run(mill, from_tokens(world, splits={"validation": "validation"}), CONCAT)
    expected = list(documents_in(open_dataset(world / "tokens").split("validation")))
    assert dataset.splits == ["validation"]
    assert sum(map(len, documents_in(dataset))) == sum(map(len, expected))


def test_a_split_step_cuts_train(mill, world):
    with pytest.raises(UsageError, match="a split validation already"):
        run(mill, from_tokens(world), Split(validation=0.5, by="origin"))
    dataset = run(mill, from_tokens(world, splits="all_as_train"), Split(validation=0.5, by="origin"))
    assert dataset.splits == ["train", "validation"]
    assert len(dataset) == 120
    assert 30 < len(dataset.split("validation")) < 90
    dataset = run_recipe(
        mill.recipe({"web": from_tokens(world, splits="all_as_train")}, [Split(test=7, by="origin"), CONCAT]),
        RunOptions(backend="serial", progress=False, overwrite=True),
    ).dataset()
    origins = {
        (o.path, o.position) for n in range(len(dataset.split("test"))) for o in dataset.split("test").origins(n)
    }
    assert len(origins) == 7


def is_short(record):
    return len(record["input_ids"]) < 50


@pytest.mark.parametrize(
    ("step", "is_right"),
    [
        (Sample(fraction=0.5), lambda ids: 30 < len(ids) < 90),
        (Limit(max_records=30), lambda ids: len(ids) == 30),
        (Filter(call=is_short), lambda ids: 0 < len(ids) < 60 and max(map(len, ids)) < 50),
    ],
    ids=["sample", "limit", "filter"],
)
def test_steps_that_need_no_text(mill, world, step, is_right):
    before = Counter(documents_in(open_dataset(world / "tokens")))
    after = list(documents_in(run(mill, from_tokens(world, splits="all_as_train"), step)))
    assert Counter(after) <= before
    assert is_right(after)


@pytest.mark.parametrize("steps", [[CONCAT], [Shuffle(), Pack(row_length=600)], []], ids=str)
def test_the_same_bytes(mill, world, steps):
    def files(slice_bytes, **options):
        recipe = mill.recipe({"web": Read(read=str(world / "large"))}, steps, slice_bytes=slice_bytes)
        return mill.fresh_files(recipe, **options)

    expected = files(1 << 26)
    for slice_bytes, options in [
        (1, {"backend": "serial"}),
        (5 << 20, {"backend": "threads", "workers": 2}),
        (1, {"backend": "processes", "workers": 2}),
        (1 << 26, {"backend": "processes", "workers": 1}),
    ]:
        assert files(slice_bytes, **options) == expected, (slice_bytes, options)


def test_a_run_that_was_stopped_goes_on(mill, world, monkeypatch):
    recipe = mill.recipe({"web": Read(read=str(world / "large"))}, [CONCAT], slice_bytes=1)
    expected = mill.fresh_files(recipe)
    shutil.rmtree(mill.output)
    whole = slice_run.run_join

    def stops(task, context):
        raise KeyboardInterrupt

    monkeypatch.setattr(slice_run, "run_join", stops)
    with pytest.raises(KeyboardInterrupt):
        mill.run(recipe)
    monkeypatch.setattr(slice_run, "run_join", whole)
    monkeypatch.setattr(slice_reader, "open_reader", None)  # all that had to be read is done
    mill.run(recipe)
    assert mill.files(work=False) == expected


def test_up_to_date_until_another_token_pads(mill, world, tmp_path):
    """Which shows in no shard of the dataset that is read, but in those that are made of it."""
    tokens_of(world, "in/*.jsonl", tmp_path / "tokens")
    recipe = mill.recipe({"web": Read(read=str(tmp_path / "tokens"))}, [CONCAT], identity="content")
    mill.run(recipe)
    assert mill.run(recipe).was_up_to_date
    config = world / "tokenizer/tokenizer_config.json"
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_bytes((world / "tokenizer/tokenizer.json").read_bytes())
    (other / config.name).write_text(json.dumps(json.loads(config.read_text()) | {"pad_token": "a"}))
    before = make_plan(recipe).fingerprint
    shard = next((tmp_path / "tokens/train").rglob("*.arrow")).read_bytes()
    shutil.rmtree(tmp_path / "tokens")
    tokens_of(world, "in/*.jsonl", tmp_path / "tokens", tokenizer=other)
    assert next((tmp_path / "tokens/train").rglob("*.arrow")).read_bytes() == shard
    assert make_plan(recipe).fingerprint != before


def test_the_tokenizer_goes_along(mill, world):
    dataset = run(mill, from_tokens(world), CONCAT)
    source = open_dataset(world / "tokens")
    assert dataset.manifest.tokenizer == source.manifest.tokenizer
    for file in dataset.manifest.tokenizer.files:
        assert (mill.output / file.path).read_bytes() == (world / file.path).read_bytes()
    first = json.loads((world / "in/part-0.jsonl").read_text().splitlines()[0])["text"]
    assert first in "".join(map(dataset.decode, range(len(dataset))))


def test_tokens_and_texts_of_one_tokenizer_are_mixed(mill, world):
    sources = {"old": from_tokens(world), "new": from_text(world)}
    for ordered in (sources, dict(reversed(sources.items()))):
        dataset = mill.run(mill.recipe(ordered, [CONCAT]), overwrite=True).dataset()
        assert set(dataset.manifest.splits["train"]) == {"old", "new"}
        assert set(dataset.manifest.splits["validation"]) == {"old"}
        counted = Counter(t for ids in documents_in(dataset) for t in ids)
        once = Counter(t for ids in documents_in(open_dataset(world / "tokens")) for t in ids)
        assert counted == once + once


def test_another_tokenizer_is_refused(mill, world, tmp_path):
    save_tokenizer(train_bpe(["a b"], vocab_size=270), tmp_path / "other")
    tokens_of(world, "in/*.jsonl", tmp_path / "tokens", tokenizer=tmp_path / "other")
    read = Read(read=str(tmp_path / "tokens"))
    with pytest.raises(UsageError, match="different tokenizers"):
        mill.run(mill.recipe({"a": read, "b": from_tokens(world)}, [CONCAT]))
    with pytest.raises(UsageError, match="different tokenizers"):
        mill.run(mill.recipe({"a": read, "b": from_text(world)}, [CONCAT]))
    with pytest.raises(UsageError, match="different tokenizers"):
        run(mill, Read(read=[str(tmp_path / "tokens"), str(world / "tokens")]), CONCAT)


def test_several_datasets_are_one_source(mill, world):
    dataset = run(mill, Read(read=[str(world / "tokens"), str(world / "large")]))
    assert len(dataset) == 120 + 4000


def test_trace_leads_to_the_row_of_the_dataset(mill, world):
    dataset = run(mill, from_tokens(world), Shuffle(), Pack(row_length=600))
    source = open_dataset(world / "tokens")
    found = trace(dataset, 3)
    assert len(found.places) == len(dataset[3]["lengths"])
    for place in found.places:
        assert place.state == "unchanged"
        assert place.position_kind == "row"
        split = Path(place.origin.path).relative_to(world / "tokens").parts[0]
        text = source.split(split).decode(place.origin.position)
        assert place.original == {"text": text}
        assert text in found.record["text"] or len(text) > 600


def test_what_cannot_be_done_with_tokens(mill, world, tmp_path):
    packed = tmp_path / "packed"
    recipe = Recipe(sources={"web": from_tokens(world)}, steps=[CONCAT], output=str(packed))
    run_recipe(recipe, RunOptions(backend="serial", progress=False))
    documents = tmp_path / "documents"
    recipe = Recipe(sources={"web": Read(read=f"{world}/in/*.jsonl")}, steps=[], output=str(documents))
    run_recipe(recipe, RunOptions(backend="serial", progress=False))
    tokens = str(world / "tokens")
    for read, steps, message in [
        (Read(read=str(packed)), [CONCAT], "packed already"),
        (Read(read=tokens, columns=["url"]), [CONCAT], "^columns:"),
        (Read(read=tokens, text="body"), [CONCAT], "^text:"),
        (Read(read=tokens, max_record_bytes=9), [CONCAT], "^max_record_bytes:"),
        (Read(read=tokens), [Length()], 'no column "text"'),
        (Read(read=tokens), [Tokenize(tokenizer=str(world / "tokenizer"))], 'no column "text"'),
        (Read(read=tokens), [Rename(columns={"input_ids": "ids"})], "input_ids"),
        (Read(read=tokens), [Write(format="jsonl")], "written as arrow"),
        (Read(read=tokens, splits="trian"), [], "did you mean"),
        (Read(read=[tokens, str(documents)]), [], "one source holds"),
    ]:
        with pytest.raises(UsageError, match=message):
            run(mill, read, *steps)
    with pytest.raises(UsageError, match='no column "text"') as caught:
        run(mill, Read(read=tokens, splits="train"), Split(validation=0.1))
    assert "by: origin" in caught.value.help
    with pytest.raises(UsageError, match='no column "text"'):
        train_tokenizer(Read(read=tokens, format="gristmill"), tmp_path / "t", vocab_size=300, max_bytes=9)
    assert not mill.output.exists()


def test_a_damaged_tokenizer_is_found_before_the_run(mill, world, tmp_path):
    tokens_of(world, "in/*.jsonl", tmp_path / "tokens")
    file = tmp_path / "tokens/tokenizer/tokenizer.json"
    file.write_bytes(file.read_bytes()[:-1] + b" ")
    with pytest.raises(DamagedDatasetError, match=r"tokenizer\.json"):
        run(mill, Read(read=str(tmp_path / "tokens")), CONCAT)
    assert not mill.output.exists()


def test_the_plan_says_what_becomes_of_the_splits(mill, world):
    kept = str(make_plan(mill.recipe({"web": from_tokens(world)}, [CONCAT])))
    assert "splits: train, test, validation" in kept
