"""Parquet files and folders of `datasets` as streams: rows of tokens or samples, from a disk and from a store."""

import json
import shutil

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gristmill_testing.foreign_files import IDS, TEXTS, upload
from gristmill_testing.pictures import make_photo, photo
from gristmill_testing.small_tokenizers import trained
from gristmill_testing.streams import ids_of, slow_order, write_packed
from torch.utils.data import DataLoader

from gristmill.core.errors import SampleError, SourceChangedError, UsageError
from gristmill.stream import Cache, Samples, Stream
from gristmill.stream.examine import prove
from gristmill.stream.lanes import foreign_tables
from gristmill.stream.torch import TorchDataset
from gristmill.text.tokenizers.engine import load_engine

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
ROWS = [[number, *range(100, 107)] for number in range(60)]


def rows_of(batches):
    return [
        np.asarray(row)[:length].tolist()
        for batch in batches
        for row, length, is_real in zip(batch["input_ids"], batch.tokens.tolist(), batch.row_mask, strict=True)
        if is_real
    ]


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    """Two files of ids and texts, in row groups of 7."""
    folder = tmp_path_factory.mktemp("parquet")
    table = pa.table({"input_ids": pa.array(IDS, pa.list_(pa.int64())), "text": TEXTS})
    pq.write_table(table.slice(0, 40), folder / "a-0.parquet", row_group_size=7)
    pq.write_table(table.slice(40), folder / "a-1.parquet", row_group_size=7)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A DatasetDict as `save_to_disk` writes it: rows of 8 ids in two files, and a validation split."""
    folder = tmp_path_factory.mktemp("saved") / "out"
    features = datasets.Features({"input_ids": datasets.Sequence(datasets.Value("int32"), length=8)})
    train = datasets.Dataset.from_dict({"input_ids": ROWS}, features=features)
    made = datasets.DatasetDict({"train": train, "validation": train.select(range(5)).flatten_indices()})
    made.save_to_disk(folder, num_shards={"train": 2, "validation": 1})
    return folder


def test_rows_of_parquet_have_the_order_of_any_stream(parquet, s3, tmp_path):
    expected = slow_order({"": IDS}, 120, seed=7)
    pattern, cache = str(parquet / "*.parquet"), tmp_path / "cache"
    stream = Stream(pattern, seed=7, epochs=2, cache=cache)
    assert rows_of(stream.batches(7)) == expected
    batches = Stream(pattern, seed=7, epochs=1, shuffle={"blocks": 2}, cache=cache)
    assert sorted(rows_of(batches.batches(4))) == sorted(IDS)
    assert batches.reader.table.blocks.cache.num_fetches == 0  # the first epoch has converted all blocks
    url = upload(parquet, s3, "parquet")
    remote = Stream(f"{url}/a-{{0..1}}.parquet", seed=7, epochs=2, cache=cache)
    assert rows_of(remote.batches(7)) == expected
    assert remote.where(0, 2)[0].shard.endswith(".parquet")


@pytest.mark.parametrize("place", ["local", "store"])
def test_a_folder_of_datasets_resumes_with_other_ranks_and_workers(saved, s3, tmp_path, place):
    data = str(saved) if place == "local" else upload(saved, s3, "saved")
    expected = slow_order({"": ROWS}, 60, seed=7)

    def make():
        return Stream(data, seed=7, epochs=1, cache=Cache(tmp_path / "cache", max_bytes=2000))

    assert make().row_length == 8
    assert ids_of(make().batches(9)) == expected
    assert (
        ids_of(Stream(data, split="validation", shuffle=False, epochs=1, cache=tmp_path / "c").batches(2)) == ROWS[:5]
    )
    state, read = None, []
    ways = ((3, 2, 2), (2, 1, 99)) if place == "local" else ((2, 1, 2), (1, 1, 99))
    method = "fork" if place == "local" else "spawn"
    for world_size, num_workers, num_steps in ways:
        iterators = []
        for rank in range(world_size):
            dataset = TorchDataset(make(), 4, rank=rank, world_size=world_size)
            if state is not None:
                dataset.load_state_dict(json.loads(state))
            loader = DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=method)
            iterators.append((dataset, iter(loader)))
        for _ in range(num_steps):
            step = [next(iterator, None) for _, iterator in iterators]
            if step[0] is None:
                break
            read += ids_of(step)
            state = json.dumps(iterators[0][0].state_after(step[0]))
    assert read == expected


def test_texts_of_parquet_are_tokenized(parquet, tmp_path):
    tokenizer = trained(tmp_path / "tokenizer")
    engine = load_engine(tokenizer)
    options = {"epochs": 1, "shuffle": False, "cache": tmp_path / "cache"}
    stream = Stream(str(parquet / "*.parquet"), samples=Samples(tokenize=tokenizer.path), **options)
    expected = [[*engine.encode([text])[0].tolist(), engine.eos_id] for text in TEXTS]
    assert rows_of(stream.batches(8)) == expected
    samples = Stream(
        str(parquet / "*.parquet"), samples=Samples(transform=lambda record: {"n": record["input_ids"][0]}), **options
    )
    assert [int(n) for batch in samples.batches(6) for n in batch["n"]] == list(range(60))


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return str(path)


def test_what_trainers_keep_beside_ids_is_understood(tmp_path):
    ids = [[1, 2, 3, 4], [5, 6, 7, 0]]
    options = {"shuffle": False, "epochs": 1, "cache": tmp_path / "cache"}
    path = write(
        tmp_path / "a.parquet",
        tokens=ids,
        labels=[[-100, 2, 3, 4], [-100, -100, 7, -100]],
        attention_mask=[[1, 1, 1, 1], [1, 1, 1, 0]],
    )
    batch = Stream(path, samples=Samples(ids="tokens"), **options).rows(0, 2)
    assert batch.tokens.tolist() == [4, 3]
    assert batch["labels"].tolist() == [[-100, 2, 3, 4], [-100, -100, 7, -100]]
    from gristmill.stream import Collate

    path = write(tmp_path / "b.parquet", input_ids=ids, seq_lengths=[[1, 3], [2, 2]], loss_mask=[[1, 0, 1, 1]] * 2)
    batch = Stream(path, collate=Collate(fields=("input_ids", "labels", "position_ids")), **options).rows(0, 2)
    assert batch["position_ids"].tolist() == [[0, 0, 1, 2], [0, 1, 0, 1]]
    assert batch["labels"].tolist() == [[1, -100, 3, 4], [5, -100, 7, 0]]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"input_ids": [[1, -2]]}, "from -2 to 1"),
        ({"input_ids": [[1, None]]}, "nulls"),
        ({"input_ids": [[1, 2]], "labels": [[1, 3]]}, "labels"),
        ({"input_ids": [[1, 2]], "labels": [[1]]}, "other lengths"),
        ({"input_ids": [[1, 2]], "attention_mask": [[0, 1]]}, "attention_mask"),
        ({"input_ids": [[1, 2]], "lengths": [[3]]}, "lengths"),
        ({"input_ids": [[1, 2]], "lengths": [[1, None]]}, "lengths has nulls"),
        ({"input_ids": [[1, 2]], "lengths": [["2"]]}, "not lists of numbers"),
        ({"input_ids": [[1, 2]], "labels": ["a"]}, "not lists of numbers"),
        ({"input_ids": [[1, 2]], "attention_mask": [1]}, "not lists of numbers"),
        ({"input_ids": [[1, 2]], "loss_mask": [[0.5, 1.0]]}, "loss_mask has fractions"),
        ({"input_ids": ["a"]}, "not lists of token ids"),
    ],
)
def test_contradictions_are_named(tmp_path, columns, words):
    path = write(tmp_path / "a.parquet", **columns)
    with pytest.raises(UsageError, match=words):
        Stream(path, cache=tmp_path / "cache").rows(0, 1)


def test_files_that_do_not_fit_are_refused(parquet, saved, tmp_path):
    shutil.copytree(parquet, tmp_path / "parquet")
    pattern = str(tmp_path / "parquet/*.parquet")
    stream = Stream(pattern, cache=tmp_path / "cache", epochs=1)
    write(tmp_path / "parquet/a-0.parquet", input_ids=[[1]], text=["x"])
    with pytest.raises(SourceChangedError, match=r"a-0\.parquet"):
        list(stream.batches(4))
    write(tmp_path / "parquet/a-2.parquet", input_ids=[[1]])
    with pytest.raises(UsageError, match="other columns"):
        Stream(pattern, cache=tmp_path / "cache")
    (tmp_path / "parquet/a-2.parquet").write_bytes(b"PAR1 rubbish")
    with pytest.raises(UsageError, match="cannot be read as Parquet"):
        Stream(pattern, cache=tmp_path / "cache")
    with pytest.raises(UsageError, match="no column words"):
        Stream(str(parquet / "*.parquet"), samples=Samples(ids="words"), cache=tmp_path / "cache")
    with pytest.raises(UsageError, match="balance and batch_tokens need"):
        Stream(str(parquet / "*.parquet"), balance=True, cache=tmp_path / "cache")
    with pytest.raises(UsageError, match="third-party files have none"):
        prove(Stream(str(parquet / "*.parquet"), cache=tmp_path / "cache"), [1], [0], [2])
    content = bytearray((parquet / "a-0.parquet").read_bytes())
    content[4:24] = bytes(20)  # the header of the first page
    (tmp_path / "damaged.parquet").write_bytes(content)
    with pytest.raises(UsageError, match=r"damaged\.parquet cannot be streamed"):
        list(Stream(tmp_path / "damaged.parquet", epochs=1, cache=tmp_path / "cache").batches(4))
    copy = shutil.copytree(saved, tmp_path / "saved")
    next((copy / "train").glob("*.arrow")).unlink()
    with pytest.raises(UsageError, match="does not exist"):
        Stream(copy, cache=tmp_path / "cache")
    state = json.loads((copy / "validation/state.json").read_text())
    (copy / "train/state.json").write_text(json.dumps(state | {"_data_files": [{"filename": "../../x.arrow"}]}))
    with pytest.raises(UsageError, match=r"state\.json: not written by"):
        Stream(copy, cache=tmp_path / "cache")
    (copy / "dataset_dict.json").write_text('{"splits": [".."]}')
    with pytest.raises(UsageError, match=r"dataset_dict\.json: not written by"):
        Stream(copy, cache=tmp_path / "cache")


def test_tables_are_indexed_once_and_mixed_with_datasets_of_ours(saved, tmp_path, monkeypatch):
    ours = write_packed(tmp_path / "ours", {"web": [9, 4]})
    rows = [[number] * 12 for number in range(20)]
    fixed = pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32(), 12))})
    pq.write_table(fixed, tmp_path / "a.parquet", row_group_size=6)
    data = {"ours": (ours, 0.5), "theirs": (str(tmp_path / "a.parquet"), 0.5)}
    stream = Stream(data, rows=40, cache=tmp_path / "cache")
    batch = stream.rows(0, 40)
    assert [stream.sources[number] for number in batch.sources].count("theirs") == 20
    assert sorted(row for row in batch["input_ids"].tolist() if len(set(row)) == 1) == rows
    monkeypatch.setattr(foreign_tables, "_index_parquet", None)
    Stream(data, rows=40, cache=tmp_path / "cache")


@pytest.mark.parametrize("form", ["a.parquet", "saved"])
def test_images_of_datasets_are_decoded(tmp_path, form):
    kind = {"photo": datasets.Image(), "seen": datasets.Image(), "image": datasets.Audio()}
    values = [{"bytes": photo(number, "PNG"), "path": f"{number}.png"} for number in range(4)]
    table = pa.table({name: pa.array(values, datasets.Image().pa_type) for name in kind})
    made = datasets.Dataset(table).cast(datasets.Features(kind))
    made.to_parquet(tmp_path / form) if form.endswith("parquet") else made.save_to_disk(tmp_path / form)
    samples = Stream(str(tmp_path / form), shuffle=False, epochs=1, cache=tmp_path / "cache").samples(np.arange(4))
    for number, sample in enumerate(samples):
        assert np.array_equal(sample["photo"], make_photo(number))
        assert np.array_equal(sample["seen"], make_photo(number))
        assert sample["image"] == photo(number, "PNG")  # a sound, whatever it is called
        assert sample["seen_path"] == f"{number}.png"


def test_an_image_that_is_only_a_path_raises(tmp_path):
    values = [{"bytes": None, "path": "/elsewhere/b.jpg"}]
    pq.write_table(pa.table({"image": pa.array(values, datasets.Image().pa_type)}), tmp_path / "a.parquet")
    with pytest.raises(SampleError, match="only the path '/elsewhere/b"):
        Stream(str(tmp_path / "a.parquet"), epochs=1, cache=tmp_path / "cache").samples(np.arange(1))
