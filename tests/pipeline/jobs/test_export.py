"""Rows as tables, what is refused, and what is on the disk before, during and after."""

import itertools
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from gristmill_testing.small_tokenizers import trained
from gristmill_testing.streams import packed_rows, with_manifest, write_packed
from gristmill_testing.token_datasets import write_tokens

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import DamagedDatasetError, GristmillError, UsageError
from gristmill.storage.lock import FolderLock

STORED = {
    "arrow": steps.Write(format="arrow"),
    "parquet": steps.Write(format="parquet"),
    "jsonl.zst": steps.Write(format="jsonl", compression="zstd"),
    "webdataset": steps.Write(format="webdataset"),
}
ROWS = [[[1, 2, 3], [4]], [[5, 6]], [[7], [8], [9]]]


@pytest.fixture
def run(tmp_path):
    def start(dataset, to, **options):
        options = {"backend": "serial", "progress": False, "path": tmp_path / "bin/corpus"} | options
        return gm.export(dataset, to=to, **options)

    return start


@pytest.fixture
def packed(tmp_path):
    return write_tokens(tmp_path / "out", {("train", "web"): [ROWS[:2], ROWS[2:]]}, row_length=4)


@pytest.fixture(params=STORED.values(), ids=STORED)
def documents(tmp_path, request):
    """A dataset of 30 documents in each format, and its records."""
    records = [{"text": f"text {n} é", "n": None if n % 3 == 0 else n, "more": {"deep": n}} for n in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    recipe = gm.Recipe(
        sources={"web": steps.Read(read="a.jsonl", columns=["n"])},
        steps=[request.param],
        output="out",
        folder=str(tmp_path),
    )
    gm.run(recipe, backend="serial", progress=False)
    return tmp_path / "out", records


def lines(paths):
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def test_documents_to_json_lines(documents, run):
    folder, records = documents
    exported = lines(run(folder, "jsonl").files)
    kept = exported[0].keys()
    assert {"text", "n"} <= kept
    assert exported == [{key: record[key] for key in kept} for record in records]


def test_documents_to_parquet(documents, run):
    folder, records = documents
    [path] = run(folder, "parquet").files
    table = pq.read_table(path)
    assert table.column("text").to_pylist() == [record["text"] for record in records]
    assert table.column("n").to_pylist() == [record["n"] for record in records]
    assert table.column("origin").null_count == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves the file open
def test_documents_to_webdataset(documents, run):
    import webdataset

    folder, records = documents
    [path] = run(folder, "webdataset").files
    samples = list(webdataset.WebDataset(str(path), shardshuffle=False).decode())
    assert [sample["txt"] for sample in samples] == [record["text"] for record in records]
    assert [sample["json"]["n"] for sample in samples] == [record["n"] for record in records]
    assert len({sample["__key__"] for sample in samples}) == len(records)


def test_json_stays_as_it_was_read(tmp_path, run):
    line = '{"text": "one",  "x": 1.50, "big": 123456789012345678901234567890}'
    (tmp_path / "a.jsonl").write_text(line)
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(tmp_path / "a.jsonl"))},
        steps=[steps.Write(format="jsonl")],
        output=str(tmp_path / "out"),
    )
    gm.run(recipe, backend="serial", progress=False)
    [path] = run(tmp_path / "out", "jsonl").files
    assert path.read_text() == line + "\n"


def test_tokens_to_parquet(packed, run):
    import datasets

    exported = run(packed, "parquet")
    assert [path.name for path in exported.files] == ["corpus_train-00000.parquet", "corpus_train-00001.parquet"]
    table = pq.ParquetDataset(exported.files).read()
    assert table.column("input_ids").to_pylist() == [[1, 2, 3, 4], [5, 6, 0, 0], [7, 8, 9, 0]]
    assert table.column("lengths").to_pylist() == [[3, 1], [2], [1, 1, 1]]
    assert table.column_names == ["input_ids", "lengths", "origins"]
    loaded = datasets.Dataset.from_parquet([str(path) for path in exported.files], cache_dir=str(packed.parent / "c"))
    assert loaded[2]["input_ids"] == [7, 8, 9, 0]


def test_tokens_to_json_lines(packed, run):
    assert lines(run(packed, "jsonl").files) == [
        {"input_ids": [1, 2, 3, 4], "lengths": [3, 1]},
        {"input_ids": [5, 6, 0, 0], "lengths": [2]},
        {"input_ids": [7, 8, 9, 0], "lengths": [1, 1, 1]},
    ]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves the file open
@pytest.mark.parametrize("loss_masks", [False, True])
def test_tokens_to_webdataset(tmp_path, run, loss_masks):
    import webdataset

    folder = write_tokens(tmp_path / "out", {("train", "w"): [ROWS]}, row_length=4, loss_masks=loss_masks)
    [path] = run(folder, "webdataset").files
    samples = list(webdataset.WebDataset(str(path), shardshuffle=False).decode())
    assert [sample["__key__"] for sample in samples] == ["000000000000", "000000000001", "000000000002"]
    assert [sample["input_ids.npy"].tolist() for sample in samples] == [[1, 2, 3, 4], [5, 6, 0, 0], [7, 8, 9, 0]]
    assert samples[0]["input_ids.npy"].dtype == np.uint16
    assert samples[2]["lengths.npy"].tolist() == [1, 1, 1]
    assert ("loss_mask.npy" in samples[0]) == loss_masks


@pytest.mark.parametrize("to", ["jsonl", "parquet", "webdataset"])
def test_unpacked_tokens_to_tables(tmp_path, run, to):
    folder = write_tokens(tmp_path / "out", {("train", "web"): [[[1, 2], [], [3]]]}, id_type="uint32")
    [path] = run(folder, to).files
    if to == "parquet":
        assert pq.read_table(path).column("input_ids").to_pylist() == [[1, 2], [], [3]]
    elif to == "jsonl":
        assert [row["input_ids"] for row in lines([path])] == [[1, 2], [], [3]]


def slow_training_rows(rows, *, masked):
    """Token by token; `rows` are lists of documents."""
    for documents in rows:
        labels = []
        for document in documents:
            for place, token in enumerate(document):
                is_trained = place > 0 and (not masked or len(labels) % 2 == 1)
                labels.append(token if is_trained else -100)
        yield {
            "input_ids": [token for document in documents for token in document],
            "labels": labels,
            "position_ids": [place for document in documents for place in range(len(document))],
            "seq_lengths": [len(document) for document in documents],
        }


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("row_length", [None, 12])
@pytest.mark.parametrize("to", ["jsonl", "parquet"])
def test_what_trainers_take(tmp_path, run, to, row_length, masked):
    packed = packed_rows(np.random.default_rng(5), 20)
    rows = packed if row_length else [list(itertools.chain(*row)) for row in packed]
    folder = write_tokens(
        tmp_path / "out",
        {("train", "web"): [rows[:9], rows[9:]]},
        row_length=row_length,
        loss_masks=masked,
        rows_a_batch=4,
    )
    exported = run(folder, to, columns="training")
    expected = list(slow_training_rows(packed if row_length else [[row] for row in rows], masked=masked))
    found = lines(exported.files) if to == "jsonl" else pq.ParquetDataset(exported.files).read().to_pylist()
    assert found == expected


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("to", ["parquet", "jsonl"])
@pytest.mark.parametrize("row_length", [12, None])
def test_the_collators_of_transformers_take_rows_as_they_are(tmp_path, run, masked, to, row_length):
    """Packed rows stack; rows of different lengths are padded; what is not trained is ignored by the model's loss."""
    import datasets
    import torch
    from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerFast, default_data_collator

    documents = [[[5, 6, 7], [8, 9]], [[10, 11]], [[12, 13, 14, 15], [16], [17, 18]], [[19] * 12]]
    rows = documents if row_length else [document for row in documents for document in row]
    folder = write_tokens(
        tmp_path / "out", {("train", "web"): [rows]}, row_length=row_length, pad_id=3, loss_masks=masked
    )
    exported = run(folder, to, columns="transformers")
    kind = "json" if to == "jsonl" else to
    loaded = datasets.load_dataset(kind, data_files=[str(path) for path in exported.files], split="train",
                                   cache_dir=str(tmp_path / "cache"))  # fmt: skip
    assert loaded.column_names == ["input_ids", "attention_mask", "labels"]
    expected = list(slow_training_rows(rows if row_length else [[row] for row in rows], masked=masked))
    features = [loaded[index] for index in range(len(loaded))]
    for feature, row in zip(features, expected, strict=True):
        size = len(row["input_ids"])
        padding = (row_length or size) - size
        assert feature["input_ids"] == row["input_ids"] + [3] * padding
        assert feature["labels"] == row["labels"] + [-100] * padding
        assert feature["attention_mask"] == [1] * size + [0] * padding
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=trained(tmp_path / "tokenizer").path, pad_token="<|pad|>")
    batches = [DataCollatorForSeq2Seq(tokenizer)(features)]
    if row_length:
        batches.append(default_data_collator(features))
    for batch in batches:
        longest = max(len(feature["input_ids"]) for feature in features)
        assert {name: tuple(values.shape) for name, values in batch.items()} == dict.fromkeys(
            ["input_ids", "attention_mask", "labels"], (len(features), longest)
        )
        assert all(values.dtype == torch.int64 for values in batch.values())
        for index, feature in enumerate(features):
            size = len(feature["input_ids"])
            assert batch["labels"][index, :size].tolist() == feature["labels"]
            assert (batch["labels"][index, size:] == -100).all()
            assert batch["attention_mask"][index].sum() == sum(feature["attention_mask"])


def test_which_columns_tables_get(tmp_path, packed, run):
    chats = write_tokens(tmp_path / "chats", {("train", "web"): [ROWS]}, row_length=4, loss_masks=True)
    stored = ["input_ids", "lengths"]
    training = ["input_ids", "labels", "position_ids", "seq_lengths"]
    for folder, columns, expected in [
        (packed, None, stored),
        (packed, "training", training),
        (chats, None, training),
        (chats, "stored", [*stored, "loss_mask"]),
    ]:
        assert list(lines(run(folder, "jsonl", columns=columns, overwrite=True).files)[0]) == expected
    alone = write_tokens(tmp_path / "alone", {("train", "web"): [[[1, 2, 3]]]}, loss_masks=True)
    [row] = lines(run(alone, "jsonl", columns="axolotl", overwrite=True).files)
    assert row == {"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1], "labels": [-100, 2, -100]}
    packed_chats = write_packed(tmp_path / "packed", {"web": [3]}, loss_masks=True)
    with_manifest(packed_chats, row_length=12)
    with pytest.raises(UsageError, match="rows of one document"):
        run(packed_chats, "parquet", columns="axolotl")
    with pytest.raises(UsageError, match="columns: training is for tokens"):
        run(packed, "numpy", columns="training")
    with pytest.raises(UsageError, match="columns"):
        run(packed, "parquet", columns="labels")


@pytest.mark.parametrize("to", ["numpy", "parquet", "jsonl", "webdataset"])
def test_the_same_bytes_by_any_workers(tmp_path, to):
    rows = [[[[n, n + 1], [n]]] * 5 for n in range(1, 9)]
    folder = write_tokens(tmp_path / "out", {("train", "web"): rows}, row_length=4)
    written = []
    for name, options in {"one": {"backend": "serial"}, "many": {"workers": 3}}.items():
        exported = gm.export(folder, to=to, path=tmp_path / name / "x", progress=False, **options)
        written.append({path.name: path.read_bytes() for path in exported.files})
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "megatorn"}, "megatron"),
        ({"to": "numpy", "split": "test"}, "split must be one of train"),
        ({"to": "numpy", "source": "wep"}, "web"),
        ({"to": "numpy", "path": "folder/"}, "is a folder"),
        ({"to": "numpy", "path": "."}, "is a folder"),
        ({"to": "numpy", "path": "s3://key:secret@bucket/x"}, r"s3://\*\*\*@bucket/x: a URL may not hold"),
    ],
)
def test_wrong_use_is_refused(packed, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        gm.export(packed, **({"path": "x"} | options))


def test_documents_are_no_tokens(documents, run):
    with pytest.raises(UsageError, match="holds documents"):
        run(documents[0], "megatron")


def test_existing_files_stay_unless_told(packed, tmp_path, run):
    (tmp_path / "bin").mkdir()
    mine = tmp_path / "bin/corpus_train_mask.npy"
    mine.write_text("mine")
    with pytest.raises(UsageError, match=r"corpus_train_mask\.npy"):
        run(packed, "numpy")
    assert [path.name for path in (tmp_path / "bin").iterdir()] == [mine.name]
    assert mine.read_text() == "mine"
    run(packed, "numpy", overwrite=True)
    assert np.load(mine).shape == (3, 3)
    assert len(list((tmp_path / "bin").iterdir())) == 3


def test_a_damaged_shard_is_named_and_leaves_nothing(packed, tmp_path, run):
    shard = packed / "train/web/shard-00001.arrow"
    shard.write_bytes(shard.read_bytes()[:-150])
    for to in ("numpy", "parquet"):
        with pytest.raises(DamagedDatasetError, match="shard-00001"):
            run(packed, to)
        assert list((tmp_path / "bin").iterdir()) == []


def test_a_missing_shard_is_named(packed, run):
    (packed / "train/web/shard-00001.arrow").unlink()
    with pytest.raises(GristmillError, match="shard-00001"):
        run(packed, "numpy")


def test_one_export_at_a_time_in_a_folder(packed, tmp_path, run):
    (tmp_path / "bin").mkdir()
    with FolderLock(tmp_path / "bin"), pytest.raises(GristmillError, match="in use"):
        run(packed, "numpy")
