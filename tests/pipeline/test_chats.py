"""Chats from tokens with masks to rows: none cut, none without a trained token, every bit where its token is."""

import json
import shutil
from collections import Counter

import numpy as np
import pytest
from gristmill_testing.chat_marks import count_marks, marks, shorten_ids
from gristmill_testing.chats import answers, chat_steps, chat_tokenizer, write_chats
from tokenizers import Tokenizer

from gristmill.core.errors import UsageError
from gristmill.core.recipe import Source
from gristmill.pipeline.jobs.export import export
from gristmill.pipeline.jobs.mix_datasets import mix
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.shards.dataset import open_dataset
from gristmill.shards.verify import verify
from gristmill.steps import MapBatches, Pack, Read, Shuffle, Split, Tokenize
from gristmill.stream import Collate, Stream

ROW = 256


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def data(tmp_path):
    """8 files of 15 chats, of which some are longer than a row."""
    for number in range(8):
        write_chats(tmp_path / f"in/part-{number}.jsonl", 15, number)
    return tmp_path / "in"


@pytest.fixture
def tiny_units(mill):
    mill.layout = UnitLayout(unit_bytes=10_000, min_group_bytes=5_000)


def recipe_of(mill, data, tokenizer, *steps, **settings):
    return mill.recipe({"chats": Read(read=f"{data}/*.jsonl")}, [*chat_steps(tokenizer), *steps], **settings)


def texts_in(data):
    return [json.loads(line)["text"] for path in sorted(data.glob("*")) for line in path.read_bytes().splitlines()]


def expected_chats(tokenizer, data):
    """(ids, mask) of every chat, by the reference's own library."""
    reference = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    encoded = [(*reference.encode(text, add_special_tokens=False).ids, 0) for text in texts_in(data)]
    return [(ids, tuple(marks(ids))) for ids in encoded]


def chats_in(dataset):
    """(ids, mask) of every conversation in the rows."""
    for row in dataset:
        assert row["loss_mask"].dtype == np.bool_
        ends = np.cumsum(row["lengths"])
        assert not row["loss_mask"][ends[-1] :].any()
        for length, end in zip(row["lengths"], ends, strict=True):
            ids, mask = (row[name][end - length : end] for name in ("input_ids", "loss_mask"))
            yield tuple(ids.tolist()), tuple(mask.tolist())


def test_one_chat_a_row_without_packing(mill, data, tokenizer, tiny_units):
    manifest = mill.run(recipe_of(mill, data, tokenizer)).manifest
    dataset = open_dataset(mill.output)
    expected = expected_chats(tokenizer, data)
    assert list(chats_in(dataset)) == expected
    assert manifest.kind == "chats"
    assert manifest.schema.to_arrow().names == ["input_ids", "lengths", "loss_mask", "origins"]
    assert sum(shard.trained_tokens for _, _, shard in manifest.shards()) == sum(sum(mask) for _, mask in expected)
    assert [text for text, is_trained in dataset.spans(3) if is_trained] == answers(texts_in(data)[3])
    assert "".join(text for text, _ in dataset.spans(3)) == dataset.decode(3) == texts_in(data)[3] + "<|endoftext|>"


@pytest.mark.parametrize("strategy", ["best_fit", "pad"])
def test_whole_chats_are_in_rows_once_and_long_ones_are_dropped(mill, data, tokenizer, tiny_units, strategy):
    result = mill.run(recipe_of(mill, data, tokenizer, Pack(row_length=ROW, strategy=strategy)))
    expected = expected_chats(tokenizer, data)
    short = [chat for chat in expected if len(chat[0]) <= ROW]
    assert Counter(chats_in(open_dataset(mill.output))) == Counter(short)
    account = result.books["chats"][-1]
    assert account.dropped == {"too_long": len(expected) - len(short)}
    assert account.counters["trained_tokens"] == sum(sum(mask) for _, mask in short)
    assert account.counters["dropped_tokens"] == sum(len(ids) for ids, _ in expected if len(ids) > ROW) > 0
    assert account.counters["split_documents"] == 0
    counted = sum(shard.trained_tokens for _, _, shard in result.manifest.shards())
    assert counted == account.counters["trained_tokens"]


def test_a_chat_that_truncation_leaves_without_an_answer_is_dropped(mill, data, tokenizer, tiny_units):
    row_length = 32
    result = mill.run(recipe_of(mill, data, tokenizer, Pack(row_length=row_length, long_documents="truncate")))
    cut = [(ids[:row_length], mask[:row_length]) for ids, mask in expected_chats(tokenizer, data)]
    kept = [chat for chat in cut if any(chat[1])]
    assert Counter(chats_in(open_dataset(mill.output))) == Counter(kept)
    account = result.books["chats"][-1]
    assert account.dropped == {"no_trained_tokens": len(cut) - len(kept)}
    lengths = [len(ids) for ids, _ in expected_chats(tokenizer, data)]
    measures = account.counters
    assert measures["dropped_tokens"] == sum(
        length for length, (_, mask) in zip(lengths, cut, strict=True) if not any(mask)
    )
    assert measures["row_tokens"] == sum(len(ids) for ids, _ in kept)
    assert measures["tokens"] == sum(lengths)


def test_leftovers_of_units_fill_each_others_rows(mill, data, tokenizer, tiny_units):
    result = mill.run(recipe_of(mill, data, tokenizer, Pack(row_length=2000)))
    measures = result.books["chats"][-1].counters
    assert measures["row_tokens"] / (measures["rows"] * 2000) > 0.8
    assert Counter(chats_in(open_dataset(mill.output))) == Counter(expected_chats(tokenizer, data))


@pytest.mark.parametrize("pack", [None, Pack(row_length=ROW)], ids=["none", "best_fit"])
def test_the_same_bytes(mill, data, tokenizer, tiny_units, pack):
    def files(slice_bytes, **options):
        steps = [Split(validation=0.2, by="origin"), *([pack] if pack else [])]
        return mill.fresh_files(recipe_of(mill, data, tokenizer, *steps, slice_bytes=slice_bytes), **options)

    expected = files(1 << 26)
    assert files(1) == expected
    assert files(5_000, backend="threads", workers=3) == expected
    if pack:
        assert files(1, backend="processes", workers=2) == expected


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (Pack(row_length=ROW, strategy="concat"), "strategy concat"),
        (Pack(row_length=ROW, long_documents="split"), "long_documents: split"),
    ],
)
def test_what_would_cut_a_chat_is_refused_by_the_plan(mill, data, tokenizer, pack, message):
    with pytest.raises(UsageError, match=message):
        mill.run(recipe_of(mill, data, tokenizer, pack))
    assert not mill.output.exists()


def test_chats_and_documents_do_not_become_one_dataset(mill, data, tokenizer):
    read = Read(read=f"{data}/*.jsonl")
    sources = {
        "chats": Source(read, chat_steps(tokenizer)),
        "web": Source(read, [Tokenize(tokenizer=str(tokenizer), special_tokens_in_text="token")]),
    }
    with pytest.raises(UsageError, match="source chats has chats"):
        mill.run(mill.recipe(sources, [Pack(row_length=ROW)]))


@pytest.mark.parametrize("pack", [None, Pack(row_length=ROW)], ids=["none", "best_fit"])
def test_a_mask_that_does_not_fit_its_ids_is_refused(mill, data, tokenizer, pack):
    steps = [MapBatches(call=shorten_ids), *([pack] if pack else [])]
    with pytest.raises(UsageError, match="does not have one entry"):
        mill.run(recipe_of(mill, data, tokenizer, *steps))


def test_a_column_of_that_name_with_another_type_is_refused(mill, data, tokenizer):
    steps = [
        Tokenize(tokenizer=str(tokenizer), engine="tokenizers"),
        MapBatches(call=count_marks, columns={"loss_mask": "list<int64>"}),
    ]
    with pytest.raises(UsageError, match="list<bool>"):
        mill.run(mill.recipe({"chats": Read(read=f"{data}/*.jsonl")}, steps))


def test_rows_of_another_length_without_tokenizing_again(mill, data, tokenizer, tmp_path):
    mill.run(recipe_of(mill, data, tokenizer, Split(validation=0.2, by="origin")))
    tokens = tmp_path / "tokens"
    shutil.move(mill.output, tokens)
    before = open_dataset(tokens)
    for steps in ([Pack(row_length=ROW)], [Shuffle(), Pack(row_length=100_000)], []):
        manifest = mill.run(mill.recipe({"chats": Read(read=str(tokens))}, steps), overwrite=True).manifest
        assert manifest.kind == "chats"
        after = open_dataset(mill.output)
        longest = steps[-1].row_length if steps else 1 << 30
        for split in ("train", "validation"):
            kept = [chat for chat in chats_in(before.split(split)) if len(chat[0]) <= longest]
            assert Counter(chats_in(after.split(split))) == Counter(kept)


def test_tokens_and_chats_are_not_read_as_one_source(mill, data, tokenizer, tmp_path):
    for name, steps in {"chats": chat_steps(tokenizer), "tokens": chat_steps(tokenizer)[:1]}.items():
        mill.run(mill.recipe({"chats": Read(read=f"{data}/*.jsonl")}, steps))
        shutil.move(mill.output, tmp_path / name)
    with pytest.raises(UsageError, match="one source holds"):
        mill.run(mill.recipe({"all": Read(read=[str(tmp_path / "chats"), str(tmp_path / "tokens")])}, []))


def test_others_can_read_it(mill, data, tokenizer, tiny_units):
    import datasets
    import polars as pl

    mill.run(recipe_of(mill, data, tokenizer, Pack(row_length=ROW)))
    dataset = open_dataset(mill.output)
    loaded = datasets.load_from_disk(str(mill.output))["train"]
    assert loaded.num_rows == len(dataset)
    assert [row["loss_mask"] for row in loaded] == [row["loss_mask"].tolist() for row in dataset]
    [_, _, shard] = next(dataset.manifest.shards())
    assert pl.read_ipc_stream(mill.output / shard.path)["loss_mask"][0].to_list() == dataset[0]["loss_mask"].tolist()


@pytest.mark.parametrize("pack", [None, Pack(row_length=ROW)], ids=["none", "best_fit"])
def test_labels_of_a_stream(mill, data, tokenizer, pack):
    mill.run(recipe_of(mill, data, tokenizer, *([pack] if pack else [])))
    dataset = open_dataset(mill.output)
    stream = Stream(mill.output, shuffle=False, epochs=1, collate=Collate(fields=("input_ids", "labels")))
    batch = stream.rows(0, len(dataset))
    for number, row in enumerate(dataset):
        labels = np.where(row["loss_mask"], row["input_ids"].astype(np.int64), -100)
        assert batch["labels"][number, : len(labels)].tolist() == labels.tolist()
        assert (batch["labels"][number, len(labels) :] == -100).all()


def test_a_mix_counts_what_is_trained(mill, data, tokenizer, tmp_path):
    mill.run(recipe_of(mill, data, tokenizer, Pack(row_length=ROW)))
    size = int(1.5 * sum(shard.tokens for _, _, shard in open_dataset(mill.output).manifest.shards()))
    mix({"a": (mill.output, 1.0)}, tmp_path / "mixed", size=size, max_epochs=2)
    mixed = open_dataset(tmp_path / "mixed")
    assert verify(tmp_path / "mixed")
    assert mixed.manifest.kind == "chats"
    counted = sum(shard.trained_tokens for _, _, shard in mixed.manifest.shards())
    assert counted == sum(int(row["loss_mask"].sum()) for row in mixed)


@pytest.mark.parametrize("to", ["jsonl", "parquet"])
@pytest.mark.parametrize("pack", [None, Pack(row_length=ROW)], ids=["none", "best_fit"])
def test_exported_rows_have_what_trainers_take(mill, data, tokenizer, tmp_path, to, pack):
    import datasets

    mill.run(recipe_of(mill, data, tokenizer, *([pack] if pack else [])))
    exported = export(mill.output, to=to, path=tmp_path / "x/chats", backend="serial", progress=False)
    files = [str(path) for path in exported.files]
    loaded = datasets.load_dataset(
        {"jsonl": "json"}.get(to, to), data_files=files, split="train", cache_dir=str(tmp_path / "cache")
    )
    rows = list(open_dataset(mill.output))
    assert loaded.column_names == ["input_ids", "labels", "position_ids", "seq_lengths"]
    assert loaded.num_rows == len(rows)
    for found, row in zip(loaded, rows, strict=True):
        sizes = row["lengths"].tolist()
        ids, mask = (row[name][: sum(sizes)].tolist() for name in ("input_ids", "loss_mask"))
        assert found["input_ids"] == ids
        assert found["labels"] == [token if is_trained else -100 for token, is_trained in zip(ids, mask, strict=True)]
        assert found["position_ids"] == [place for size in sizes for place in range(size)]
        assert found["seq_lengths"] == sizes


def test_formats_without_a_place_for_masks_refuse_chats(mill, data, tokenizer, tmp_path):
    mill.run(recipe_of(mill, data, tokenizer, Pack(row_length=ROW)))
    for to in ("megatron", "nanogpt", "llmc"):
        with pytest.raises(UsageError, match="loss_mask"):
            export(mill.output, to=to, path=tmp_path / "x/chats", backend="serial", progress=False)
