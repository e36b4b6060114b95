"""From texts to rows of tokens: nothing lost, the same bytes whatever happens, and readable by others."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from gristmill.core.errors import LowUtilisationError, UsageError
from gristmill.core.recipe import Source
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.shards.dataset import open_dataset
from gristmill.shards.verify import verify
from gristmill.steps import Length, Limit, Pack, Read, Shuffle, Split, Tokenize, Write
from gristmill.text.tokenizers.train import save_tokenizer, train_bpe

ROW = 64
STRATEGIES = [None, *(Pack(row_length=ROW, strategy=strategy) for strategy in ("best_fit", "concat", "pad"))]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("tokenizer")
    texts = [json.loads(line)["text"] for line in (corpus / "web/other.jsonl").read_bytes().splitlines()]
    save_tokenizer(train_bpe(texts, vocab_size=290), folder)
    return folder


@pytest.fixture
def tiny_units(mill):
    mill.layout = UnitLayout(unit_bytes=60_000, min_group_bytes=20_000)


@pytest.fixture
def data(tmp_path):
    """12 files of documents of 1 to 300 words."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(12):
        write(folder / f"part-{number:02d}.jsonl", number)
    return folder


def write(path, number, count=20):
    rng = np.random.default_rng(number)
    words = np.array(["mill", "grist", "flour", "stone", "größe", "粉"])
    lines = [" ".join(rng.choice(words, int(rng.integers(1, 300)))) for _ in range(count)]
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))


def texts_in(data):
    return [json.loads(line)["text"] for path in sorted(data.glob("*")) for line in path.read_bytes().splitlines()]


def origins_in(data):
    for path in sorted(data.glob("*")):
        position = 0
        for line in path.read_bytes().splitlines(keepends=True):
            yield str(path), position
            position += len(line)


def recipe_of(mill, data, tokenizer, pack, *steps, **settings):
    last = [] if pack is None else [pack]
    return mill.recipe(
        {"web": Read(read=f"{data}/*.jsonl")}, [*steps, Tokenize(tokenizer=str(tokenizer)), *last], **settings
    )


def reference_ids(tokenizer, texts):
    """What every document must become, by the reference's own library."""
    reference = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    end = reference.token_to_id("<|endoftext|>")
    return [[*encoding.ids, end] for encoding in reference.encode_batch(texts, add_special_tokens=False)]


def documents_in(dataset):
    """The pieces of documents in all rows."""
    for row in dataset:
        ends = np.cumsum(row["lengths"])
        yield from (
            row["input_ids"][end - length : end].tolist() for length, end in zip(row["lengths"], ends, strict=True)
        )


def test_one_document_a_row_without_packing(mill, data, tokenizer, tiny_units):
    result = mill.run(recipe_of(mill, data, tokenizer, None))
    dataset = open_dataset(mill.output)
    expected = reference_ids(tokenizer, texts_in(data))
    assert [row["input_ids"].tolist() for row in dataset] == expected
    assert [row["lengths"].tolist() for row in dataset] == [[len(ids)] for ids in expected]
    assert dataset.manifest.kind == "tokens"
    assert sum(shard.tokens for _, _, shard in dataset.manifest.shards()) == sum(map(len, expected))
    assert result.books["web"][-1].counters["tokens"] == sum(map(len, expected))


def test_concatenated_rows_are_the_stream_of_all_documents(mill, data, tokenizer):
    mill.run(recipe_of(mill, data, tokenizer, Pack(row_length=ROW, strategy="concat")))
    stream = [token for ids in reference_ids(tokenizer, texts_in(data)) for token in ids]
    assert [token for piece in documents_in(open_dataset(mill.output)) for token in piece] == stream


def test_tails_of_concatenated_units_are_one_more_stream_and_counted(mill, data, tokenizer, tiny_units):
    """Each unit's shard is the stream of its documents up to the last full row; the rests follow in the last shard."""
    result = mill.run(recipe_of(mill, data, tokenizer, Pack(row_length=ROW, strategy="concat")))
    dataset = open_dataset(mill.output)
    *shards, tail = [shard for _, _, shard in dataset.manifest.shards()]
    assert len(shards) > 2
    assert result.books["web"][-1].counters["tail_rows"] == tail.rows
    rows = [list(row["input_ids"][: row["lengths"].sum()]) for row in dataset]
    assert all(len(row) == ROW for row in rows[: -tail.rows])
    documents = dict(zip(origins_in(data), reference_ids(tokenizer, texts_in(data)), strict=True))
    starts = dict(zip(documents, np.cumsum([0, *map(len, documents.values())]), strict=False))
    stream = [token for ids in documents.values() for token in ids]
    first_rows = np.cumsum([0, *(shard.rows for shard in shards)])
    borders = [
        starts[dataset.origins(int(row))[0].path, dataset.origins(int(row))[0].position] for row in first_rows[:-1]
    ]
    tails = []
    for number, (start, end) in enumerate(zip(borders, [*borders[1:], len(stream)], strict=True)):
        unit = [token for row in rows[first_rows[number] : first_rows[number + 1]] for token in row]
        assert stream[start : start + len(unit)] == unit
        assert end - start - len(unit) < ROW
        tails += stream[start + len(unit) : end]
    assert [token for row in rows[-tail.rows :] for token in row] == tails


def test_whole_documents_are_in_best_fit_rows_once(mill, data, tokenizer, tiny_units):
    mill.run(recipe_of(mill, data, tokenizer, Pack(row_length=600)))
    expected = reference_ids(tokenizer, texts_in(data))
    short = Counter(tuple(ids) for ids in expected if len(ids) <= 600)
    found = Counter(map(tuple, documents_in(open_dataset(mill.output))))
    assert short <= found
    assert sum(map(len, found.elements())) == sum(map(len, expected))


@pytest.mark.parametrize("pack", STRATEGIES, ids=lambda pack: pack.strategy if pack else "none")
def test_books_count_every_token(mill, data, tokenizer, tiny_units, pack):
    result = mill.run(recipe_of(mill, data, tokenizer, pack, Split(validation=0.2)))
    num_tokens = sum(map(len, reference_ids(tokenizer, texts_in(data))))
    assert sum(shard.tokens for _, _, shard in result.manifest.shards()) == num_tokens
    if pack is not None:
        measures = result.books["web"][-1].counters
        assert measures["tokens"] == measures["row_tokens"] == num_tokens
        assert measures["padding"] == measures["rows"] * ROW - num_tokens
        assert sum(shard.rows for _, _, shard in result.manifest.shards()) == measures["rows"]


@pytest.mark.parametrize("long", ["truncate", "drop"])
def test_tokens_that_are_left_out_are_counted(mill, data, tokenizer, tiny_units, long):
    result = mill.run(recipe_of(mill, data, tokenizer, Pack(row_length=ROW, long_documents=long)))
    account = result.books["web"][-1]
    lengths = np.array([len(ids) for ids in reference_ids(tokenizer, texts_in(data))])
    if long == "drop":
        assert account.dropped == {"too_long": int((lengths > ROW).sum())}
        assert account.counters["dropped_tokens"] == lengths[lengths > ROW].sum()
    else:
        assert account.counters["truncated_documents"] == (lengths > ROW).sum()
        assert account.counters["row_tokens"] == np.minimum(lengths, ROW).sum()


@pytest.mark.parametrize("strategy", ["best_fit", "concat"])
def test_leftovers_of_units_fill_each_others_rows(mill, data, tokenizer, strategy):
    """As many rows as if all documents were packed at once, or one more."""
    pack = Pack(row_length=2000, strategy=strategy)
    num_rows = {}
    for size in (1 << 20, 5_000):
        mill.layout = UnitLayout(unit_bytes=size, min_group_bytes=size)
        mill.fresh_files(recipe_of(mill, data, tokenizer, pack))
        manifest = open_dataset(mill.output).manifest
        num_rows[len(list(manifest.shards()))] = sum(shard.rows for _, _, shard in manifest.shards())
    few, many = sorted(num_rows)
    assert few <= 2
    assert many >= 8
    assert num_rows[many] <= num_rows[few] + (strategy == "best_fit")


VARIANTS = [
    (30_000, {"backend": "threads", "workers": 5}),
    (1, {"backend": "serial"}),
]


BEST_FIT = Pack(row_length=ROW)


@pytest.mark.parametrize(
    ("pack", "steps"),
    [
        *((pack, [Split(validation=0.2)]) for pack in STRATEGIES),
        (BEST_FIT, [Shuffle()]),
        (BEST_FIT, [Limit(max_records=150), Split(validation=20)]),
    ],
    ids=str,
)
def test_the_same_bytes(mill, data, tokenizer, tiny_units, pack, steps):
    def files(slice_bytes, **options):
        return mill.fresh_files(recipe_of(mill, data, tokenizer, pack, *steps, slice_bytes=slice_bytes), **options)

    expected = files(1 << 26, backend="serial")
    for slice_bytes, options in VARIANTS:
        assert files(slice_bytes, **options) == expected, (slice_bytes, options)


def test_the_same_bytes_in_processes(mill, data, tokenizer, tiny_units):
    recipe = recipe_of(mill, data, tokenizer, Pack(row_length=ROW), Split(validation=0.2))
    assert mill.fresh_files(recipe, backend="processes", workers=2) == mill.fresh_files(recipe)


@pytest.mark.parametrize("pack", STRATEGIES[:2], ids=["none", "best_fit"])
def test_a_unit_of_several_tasks_is_the_same_rows(mill, corpus, tokenizer, pack):
    """Three cells of one file, each a task, joined; the files above are too small to be cut."""

    def files(slice_bytes):
        return mill.fresh_files(recipe_of(mill, corpus / "web", tokenizer, pack, slice_bytes=slice_bytes))

    assert files(1) == files(1 << 26)


@pytest.mark.parametrize("policy", ["text", "reject"])
def test_kept_dropped_records_change_neither_rows_nor_books(mill, tmp_path, tokenizer, policy):
    """Such a run makes a column of texts that are strings."""
    path = tmp_path / "large.jsonl"
    special = '{"text": "größer <|endoftext|> 粉"}\n{"text": "grist <|"}\n'.encode()
    write(path, 5)
    path.write_bytes(b"{bad}\n" + special + path.read_bytes() + special)

    def run(**settings):
        steps = [Tokenize(tokenizer=str(tokenizer), special_tokens_in_text=policy), Pack(row_length=ROW)]
        recipe = mill.recipe({"web": Read(read=str(path))}, steps, max_quarantine=0.5, **settings)
        result = mill.run(recipe, overwrite=True)
        shards = [shard.xxh3 for _, _, shard in open_dataset(mill.output).manifest.shards()]
        return shards, result.books["web"]

    as_strings = run()
    assert run(keep_dropped="all") == as_strings
    [read, tokenize, _] = as_strings[1]
    texts = [record["text"] for line in path.read_bytes().splitlines()[1:] if (record := json.loads(line))]
    assert read.text_bytes == sum(len(text.encode()) for text in texts)
    assert tokenize.counters["special_literals"] == 2
    assert tokenize.dropped == ({"special_token": 2} if policy == "reject" else {})


def test_an_added_file_leaves_other_units_alone(mill, data, tokenizer, tiny_units):
    recipe = recipe_of(mill, data, tokenizer, Pack(row_length=ROW))
    mill.run(recipe)
    before = {shard.xxh3 for _, _, shard in open_dataset(mill.output).manifest.shards()}
    write(data / "part-99.jsonl", 99)
    mill.run(recipe, update=True)
    updated = mill.files(work=False)
    after = {shard.xxh3 for _, _, shard in open_dataset(mill.output).manifest.shards()}
    assert len(before - after) <= 2  # its group and the rows that all have left over
    assert len(before & after) >= 3
    fresh = mill.fresh_files(recipe)
    contents = [{content for path, content in files.items() if "shard" in path} for files in (updated, fresh)]
    assert contents[0] == contents[1]


def test_a_second_run_is_up_to_date(mill, data, tokenizer):
    recipe = recipe_of(mill, data, tokenizer, Pack(row_length=ROW))
    mill.run(recipe)
    assert mill.run(recipe).was_up_to_date


def test_the_tokenizer_goes_along(mill, data, tokenizer):
    mill.run(recipe_of(mill, data, tokenizer, Pack(row_length=ROW)))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (mill.output / "tokenizer" / name).read_bytes() == (tokenizer / name).read_bytes()
    identity = open_dataset(mill.output).manifest.tokenizer
    assert (identity.vocab_size, identity.eos_id) == (290, 0)
    assert identity.engine in ("fastokens", "tokenizers")
    from transformers import AutoTokenizer

    text = "grist for the mill"
    assert (
        AutoTokenizer.from_pretrained(mill.output / "tokenizer").decode(
            reference_ids(tokenizer, [text])[0], skip_special_tokens=True
        )
        == text
    )


def test_another_tokenizer_is_another_dataset(mill, data, tokenizer, tmp_path):
    mill.run(recipe_of(mill, data, tokenizer, None))
    first = open_dataset(mill.output).manifest.dataset_hash
    other = tmp_path / "other"
    save_tokenizer(train_bpe(texts_in(data), vocab_size=280), other)
    mill.run(recipe_of(mill, data, other, None), update=True)
    dataset = open_dataset(mill.output)
    assert dataset.manifest.dataset_hash != first
    assert (dataset.manifest.tokenizer_folder(mill.output) / "tokenizer.json").read_bytes() == (
        other / "tokenizer.json"
    ).read_bytes()
    assert dataset.decode(0) == texts_in(data)[0] + "<|endoftext|>"


def test_rows_know_their_documents(mill, data, tokenizer):
    mill.run(recipe_of(mill, data, tokenizer, Pack(row_length=2000)))
    dataset = open_dataset(mill.output)
    row = dataset[0]
    origins = dataset.origins(0)
    assert len(origins) == len(row["lengths"]) > 1
    text = dataset.decode(0)
    for origin in origins:
        line = Path(origin.path).read_bytes()[origin.position :].split(b"\n")[0]
        assert json.loads(line)["text"] in text


def test_others_can_read_it(mill, data, tokenizer, tiny_units):
    import datasets
    import polars as pl

    mill.run(recipe_of(mill, data, tokenizer, Pack(row_length=ROW), Split(validation=0.2)))
    dataset = open_dataset(mill.output)
    loaded = datasets.load_from_disk(str(mill.output))
    assert loaded["train"].num_rows == len(dataset.split("train"))
    assert loaded["train"][3]["input_ids"] == dataset[3]["input_ids"].tolist()
    [_, _, shard] = next(dataset.manifest.shards())
    path = mill.output / shard.path
    assert pl.read_ipc_stream(path)["input_ids"][0].to_list() == dataset[0]["input_ids"].tolist()
    with pa.memory_map(str(path)) as file:
        assert pa.ipc.open_stream(file).read_all().num_rows == shard.rows


def test_an_id_that_was_changed_is_found(mill, data, tokenizer):
    mill.run(recipe_of(mill, data, tokenizer, Pack(row_length=ROW)))
    shard = mill.output / "train/web/shard-00000.arrow"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert [problem.path for problem in verify(mill.output).problems] == [f"train/web/{shard.name}"]


def test_nothing_left_is_an_empty_dataset(mill, data, tokenizer):
    result = mill.run(recipe_of(mill, data, tokenizer, Pack(row_length=ROW), Length(min_chars=10**6), allow_empty=True))
    assert len(open_dataset(mill.output)) == 0
    assert result.books["web"][-1].counters["rows"] == 0


def test_too_much_padding_stops_the_run(mill, data, tokenizer):
    pack = Pack(row_length=4000, strategy="pad", min_utilisation=0.9)
    with pytest.raises(LowUtilisationError, match=r"source web: \d+\.\d\d% of the places"):
        mill.run(recipe_of(mill, data, tokenizer, pack))
    assert not (mill.output / "manifest.json").exists()


def test_what_cannot_be_packed_or_written(mill, data, tokenizer, tmp_path):
    source = {"web": Read(read=f"{data}/*.jsonl")}
    tokenize, pack = Tokenize(tokenizer=str(tokenizer)), Pack(row_length=ROW)
    other = tmp_path / "other"
    save_tokenizer(train_bpe(["a b"], vocab_size=280), other)
    for steps, message in [
        ([pack], "pack needs token ids"),
        ([tokenize, pack, Length()], "pack must be the last"),
        ([tokenize, Length()], "text"),
        ([tokenize, Write(format="jsonl")], "gristmill export"),
        ([tokenize, tokenize], 'no column "text"'),
        ([Tokenize(tokenizer=str(tmp_path / "nowhere"))], "no tokenizer"),
    ]:
        with pytest.raises(UsageError, match=message):
            mill.run(mill.recipe(source, steps))
    mixed = {
        name: Source(source["web"], [Tokenize(tokenizer=str(where))])
        for name, where in (("a", tokenizer), ("b", other))
    }
    with pytest.raises(UsageError, match="different tokenizers"):
        mill.run(mill.recipe(mixed, []))
    assert not mill.output.exists()


def test_leftovers_that_were_changed_are_made_again(mill, data, tokenizer, tiny_units):
    """They wait in the work folder for an update, where nobody reads them meanwhile."""
    recipe = recipe_of(mill, data, tokenizer, Pack(row_length=2000))
    mill.run(recipe)
    kept = list((mill.output / ".gristmill/work").glob("*leftover*"))
    assert kept
    for path in kept:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    write(data / "part-99.jsonl", 99)
    updated = mill.run(recipe, update=True).manifest.dataset_hash
    mill.fresh_files(recipe)
    assert open_dataset(mill.output).manifest.dataset_hash == updated
