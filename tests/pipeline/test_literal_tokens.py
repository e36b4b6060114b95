"""Records of token ids as a source: through filters, deduplication, split, pack, export and stream like our own."""

import json
import shutil
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.core.errors import UsageError
from gristmill.core.recipe import Source
from gristmill.pipeline.inspecting.trace import trace
from gristmill.pipeline.jobs.export import export
from gristmill.pipeline.planning.plan import make_plan
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Deduplicate, Filter, Length, Map, Mix, Pack, Read, Split, Tokenize
from gristmill.stream import Collate, Stream
from gristmill.text.tokenizers.engine import load_engine
from gristmill.text.tokenizers.files import find_tokenizer
from gristmill.text.tokenizers.train import save_tokenizer, train_bpe

ROW = 32


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Rollouts of 200 prompts in three formats, and the tokenizer that made their ids."""
    folder = tmp_path_factory.mktemp("literal")
    save_tokenizer(train_bpe(["mill grist flour stone"] * 3, vocab_size=280), folder / "tokenizer")
    engine = load_engine(find_tokenizer(str(folder / "tokenizer")))
    rng = np.random.default_rng(0)
    rows = []
    for number in range(200):
        words = " ".join(rng.choice(["mill", "grist", "flour", "stone"], int(rng.integers(2, 12))))
        ids = engine.encode([f"{number % 150} {words}"])[0].tolist()
        cut = int(rng.integers(0, len(ids)))
        logprobs = np.round(-rng.random(len(ids) - cut), 3).tolist()
        rows.append(
            {
                "prompt_token_ids": ids[:cut],
                "completion_token_ids": ids[cut:],
                "logprobs": logprobs,
                "sampled_mask": [int(value) for value in rng.random(len(ids) - cut) < 0.8],
                "weights": [1, 0.5] * (len(ids) // 2) + [1] * (len(ids) % 2),
                "reward": number / 200,
            }
        )
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, folder / "rollouts.parquet", row_group_size=64)
    with pa.OSFile(str(folder / "rollouts.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    folder.joinpath("rows.json").write_text(json.dumps(rows))
    return folder


def rollouts(world, form="jsonl", **keys):
    defaults = {
        "ids": ["prompt_token_ids", "completion_token_ids"],
        "mask": "sampled_mask",
        "token_columns": ["logprobs"],
        "tokenizer": str(world / "tokenizer"),
    }
    return Read(read=f"{world}/rollouts.{form}", **defaults | keys)


def documents_in(dataset, *names):
    """The documents of all rows, each with its values in these columns."""
    for row in dataset:
        ends = np.cumsum(row["lengths"])
        for end, length in zip(ends, row["lengths"], strict=True):
            yield tuple(tuple(row[name][end - length : end].tolist()) for name in names)


def as_written(world):
    rows = json.loads((world / "rows.json").read_text())
    for row in rows:
        zeros = [0] * len(row["prompt_token_ids"])
        ids = row["prompt_token_ids"] + row["completion_token_ids"]
        yield tuple(ids), tuple(map(bool, zeros + row["sampled_mask"])), tuple(zeros + row["logprobs"])


COLUMNS = ("input_ids", "loss_mask", "logprobs")


def close(values):
    """Documents with their log-probabilities as 32-bit floats hold them."""
    return Counter((ids, mask, tuple(np.float32(numbers).tolist())) for ids, mask, numbers in values)


@pytest.mark.every_case
@pytest.mark.parametrize("form", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize("pack", [[], [Pack(row_length=ROW, long_documents="drop")]], ids=["rows", "packed"])
def test_every_number_stays_with_its_token(mill, world, form, pack):
    dataset = mill.run(mill.recipe({"r": rollouts(world, form)}, pack)).dataset()
    expected = close(as_written(world))
    if pack:  # what trains nothing, or is longer than a row, is dropped by pack
        expected = Counter({key: n for key, n in expected.items() if len(key[0]) <= ROW and any(key[1])})
    assert close(documents_in(dataset, *COLUMNS)) == expected
    assert dataset.manifest.tokenizer.content == find_tokenizer(str(world / "tokenizer")).content
    assert dataset.decode(0)


def test_the_bytes_do_not_depend_on_the_workers(mill, world):
    def files(**options):
        return mill.fresh_files(
            mill.recipe({"r": rollouts(world)}, [Deduplicate(kind="exact"), Pack(row_length=ROW)]), **options
        )

    assert files() == files(backend="processes", workers=2)


def is_good(record):
    return record["reward"] >= 0.25


def test_filter_deduplicate_split_and_mix(mill, world):
    """The text of filters and of `deduplicate` is decoded; a column that is read to filter by is in no row."""
    sources = {
        "good": Source(rollouts(world, columns=["reward"]), [Filter(call=is_good), Length(min_chars=12)]),
        "all": rollouts(world, "parquet"),
    }
    steps = [
        Deduplicate(kind="exact", prefer=["good"], max_source_loss=1.0),
        Split(validation=0.2),
        Mix(epochs={"good": 1, "all": 1}),
        Pack(row_length=ROW, long_documents="drop"),
    ]
    result = mill.run(mill.recipe(sources, steps))
    dataset = result.dataset()
    assert dataset.splits == ["train", "validation"]
    assert dataset.schema.names == ["input_ids", "lengths", "loss_mask", "logprobs", "origins"]
    assert close(documents_in(dataset, *COLUMNS)) <= close(as_written(world))
    [filtered] = [account for account in result.manifest.books["good"] if account.step == "filter"]
    assert filtered.records_in == 200
    assert filtered.records_out == 150
    [removed] = [account for account in result.manifest.books["all"] if account.step == "deduplicate"]
    assert removed.records_in > removed.records_out


def test_weights_become_a_column(mill, world):
    read = rollouts(world, mask=None, weights="weights", token_columns=[])
    dataset = mill.run(mill.recipe({"r": read}, [Pack(row_length=ROW, long_documents="drop")])).dataset()
    assert {value for row in dataset for value in row["loss_weights"]} == {0.0, 0.5, 1.0}
    weights = {value for ids, kept in documents_in(dataset, "input_ids", "loss_weights") for value in kept}
    assert weights == {0.5, 1.0}


@pytest.mark.parametrize("pack", [[], [Pack(row_length=ROW, long_documents="drop")]], ids=["rows", "packed"])
def test_a_stream_hands_the_numbers_out_at_the_places_of_their_tokens(mill, world, pack):
    mill.run(mill.recipe({"r": rollouts(world)}, pack))
    stream = Stream(str(mill.output), collate=Collate(token_columns=("logprobs",)), seed=7, epochs=1)
    seen = Counter()
    for batch in (stream.batch_at(row, 4) for row in range(0, len(stream) // 4 * 4, 4)):
        assert batch["logprobs"].shape == batch["input_ids"].shape
        assert batch["logprobs"].dtype == np.float32
        for ids, numbers, filled in zip(batch["input_ids"], batch["logprobs"], batch.tokens, strict=True):
            seen[tuple(ids[:filled].tolist()), tuple(numbers[:filled].tolist())] += 1
            assert not numbers[filled:].any()
    rows = Counter(
        (tuple(row["input_ids"][:size].tolist()), tuple(row["logprobs"][:size].tolist()))
        for row in open_dataset(mill.output)
        for size in [int(row["lengths"].sum())]
    )
    assert seen <= rows
    flat = Stream(
        str(mill.output),
        collate=Collate(fields=("input_ids", "position_ids"), token_columns=["logprobs"], flatten=True),
    ).batch_at(0, 4)
    assert flat["logprobs"].shape == flat["input_ids"].shape
    with pytest.raises(UsageError, match="logprob"):
        Stream(str(mill.output), collate=Collate(token_columns=("logprob",))).batch_at(0, 4)


def test_exports_keep_the_columns_or_say_so(mill, world, tmp_path):
    mill.run(mill.recipe({"r": rollouts(world)}, [Pack(row_length=ROW, long_documents="drop")]))
    result = export(mill.output, to="parquet", path=tmp_path / "all", columns="stored", progress=False)
    assert not result.notes
    table = pq.read_table(result.files[0])
    assert table.column("logprobs").to_pylist()[0] == open_dataset(mill.output)[0]["logprobs"].tolist()
    for to, path in (("jsonl", "j"), ("parquet", "training")):
        result = export(mill.output, to=to, path=tmp_path / path, columns="training", progress=False)
        assert "logprobs" in " ".join(result.notes)


def test_tokens_that_were_not_packed_are_read_again_with_their_columns(mill, world, tmp_path):
    mill.run(mill.recipe({"r": rollouts(world)}, []))
    first = mill.output
    mill.output = tmp_path / "again"
    dataset = mill.run(
        mill.recipe({"r": Read(read=str(first))}, [Pack(row_length=ROW, long_documents="drop")])
    ).dataset()
    expected = Counter({key: n for key, n in close(as_written(world)).items() if len(key[0]) <= ROW and any(key[1])})
    assert close(documents_in(dataset, *COLUMNS)) == expected


def test_a_vocabulary_without_a_tokenizer(mill, world):
    read = rollouts(world, tokenizer=None, vocab_size=100_000)
    result = mill.run(mill.recipe({"r": read}, [Pack(row_length=ROW, long_documents="drop")]))
    assert result.dataset().schema.field("input_ids").type.value_type == pa.uint32()
    assert result.manifest.tokenizer.vocab_size == 100_000
    assert not (mill.output / "tokenizer").exists()
    first = result.dataset()[0]
    assert result.dataset().decode(0).split() == [
        str(number) for number in first["input_ids"][: first["lengths"].sum()]
    ]
    assert all(place.state == "unchanged" for place in trace(result.dataset(), 0).places)
    Stream(str(mill.output)).batch_at(0, 2)
    with pytest.raises(UsageError, match="no tokenizer is named"):
        make_plan(mill.recipe({"r": read}, [Length()]))


def test_the_plan_decodes_a_sample_and_doubts_another_tokenizer(mill, world, tmp_path):
    assert "100.0% of" in str(make_plan(mill.recipe({"r": rollouts(world)}, [])))
    save_tokenizer(train_bpe(["a" * number for number in range(2, 99)] * 3, vocab_size=280), tmp_path / "other")
    doubted = str(make_plan(mill.recipe({"r": rollouts(world, tokenizer=str(tmp_path / "other"))}, [])))
    assert "did another tokenizer make them?" in doubted


def test_a_tokenizer_is_known_by_its_content_not_by_its_path(mill, world, tmp_path):
    shutil.copytree(world / "tokenizer", tmp_path / "copy")
    save_tokenizer(train_bpe(["a b"], vocab_size=280), tmp_path / "other")
    folders = (world / "tokenizer", tmp_path / "copy", tmp_path / "other")
    first, copy, other = (
        make_plan(mill.recipe({"r": rollouts(world, tokenizer=str(folder))}, [], max_quarantine=1.0)).fingerprint
        for folder in folders
    )
    assert first == copy != other


def test_bad_records_are_quarantined_with_a_reason(mill, tmp_path):
    rows = [{"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}] * 400
    rows[7] = {"input_ids": [1, 2], "labels": [1, 2, 3]}
    rows[9] = {"input_ids": [1, 2, 300], "labels": [1, 2, 300]}
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = Read(read=str(tmp_path / "in.jsonl"), ids="input_ids", labels="labels", vocab_size=10)
    dataset = mill.run(mill.recipe({"r": read}, [Pack(row_length=8)])).dataset()
    assert sum(len(row["lengths"]) for row in dataset) == 398
    reasons = [json.loads(line)["reason"] for line in (mill.output / "quarantine/r.jsonl").read_text().splitlines()]
    assert reasons == ["unequal_lengths", "id_outside_vocabulary"]


def test_columns_that_rows_cannot_hold_are_refused(mill, world):
    scored = Map(call=lambda record: {**record, "score": 1.0}, columns={"score": "float64"})
    text = Read(read=f"{world}/text.jsonl")
    (world / "text.jsonl").write_text(json.dumps({"text": "mill"}) + "\n")
    for source in (
        Source(rollouts(world), [scored]),
        Source(text, [Tokenize(tokenizer=str(world / "tokenizer")), scored]),
    ):
        for pack in ([], [Pack(row_length=ROW)]):
            with pytest.raises(UsageError, match="rows of tokens cannot hold"):
                make_plan(mill.recipe({"r": source}, pack))


@pytest.mark.parametrize("form", ["jsonl", "parquet", "arrow"])
def test_records_that_look_like_token_ids_say_which_key_is_missing(mill, world, form):
    with pytest.raises(UsageError, match="text") as caught:
        make_plan(mill.recipe({"r": Read(read=f"{world}/rollouts.{form}")}, [Pack(row_length=ROW)]))
    assert "token_ids" in caught.value.help
    assert "`ids: " in caught.value.help
