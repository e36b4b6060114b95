"""Streams of samples: one order for every loader, resume with other ranks, errors that are never silent."""

import io
import itertools
import json
import os
import pickle
import tarfile
from collections import Counter
from functools import partial

import numpy as np
import pytest
from gristmill_testing.pictures import make_photo, photo
from torch.utils.data import DataLoader

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import DamagedDatasetError, SampleError, UsageError
from gristmill.stream import Samples, Stream
from gristmill.stream.rows import sample_shards
from gristmill.stream.torch import TorchDataset, TorchLoader, TorchRows

NUM = 23


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The same samples as tars, as Arrow, and as a second source."""
    root = tmp_path_factory.mktemp("samples")
    for number in range(NUM):
        path = root / "in" / ("cats" if number % 2 else "dogs") / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photo(number, "PNG", width=8, height=6))
    for number in range(5):
        path = root / "more" / f"m{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photo(100 + number, "PNG", width=8, height=6))
    for name, folder, form in (
        ("tars", "in", "webdataset"),
        ("arrow", "in", "arrow"),
        ("parquet", "in", "parquet"),
        ("more", "more", "webdataset"),
    ):
        written = steps.Write(format=form, **({"max_shard_samples": 4} if form == "webdataset" else {}))
        recipe = gm.Recipe(
            sources={"s": steps.Read(read=str(root / folder))}, steps=[written], output=str(root / f"out-{name}")
        )
        gm.run(recipe, workers=1, backend="serial")
    return root


def keys_of(batches):
    return [key for batch in batches for key, is_real in zip(batch["__key__"], batch.row_mask, strict=True) if is_real]


def test_every_form_has_the_same_order_and_pixels(made):
    foreign_tars = Stream(made / "out-tars", seed=3, epochs=1)
    order = keys_of(foreign_tars.batches(4))
    assert Counter(order) == {f"{'cats' if n % 2 else 'dogs'}/{n:03d}": 1 for n in range(NUM)}
    foreign = str(made / "out-tars/train/s/shard-{00000..00005}.tar")
    for data in (made / "out-arrow", foreign):
        stream = Stream(data, seed=3, epochs=1)
        assert keys_of(stream.batches(7)) == order
    batch = Stream(made / "out-tars", shuffle=False, epochs=1).rows(0, 3)
    column = Stream(foreign, shuffle=False, epochs=1).rows(0, 3)["png"]
    assert batch["image"].dtype == np.uint8
    assert np.array_equal(batch["image"], column)
    for key, pixels in zip(batch["__key__"], batch["image"], strict=True):
        assert np.array_equal(pixels, make_photo(int(key[-3:]), 8, 6))


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_any_ranks_and_workers_give_the_same_global_batches(made, world_size, workers):
    if workers and world_size != 2:
        pytest.skip("starting workers takes seconds; one grid is enough")
    oracle = keys_of(Stream(made / "out-tars", seed=5, epochs=1).batches(6))
    read = {}
    for rank in range(world_size):
        stream = Stream(made / "out-tars", seed=5, epochs=1)
        dataset = TorchDataset(stream, 6 // world_size, rank=rank, world_size=world_size)
        loader = DataLoader(dataset, batch_size=None, num_workers=workers)
        for step, batch in enumerate(loader):
            read.setdefault(step, []).extend(keys_of([batch]))
    assert [key for step in sorted(read) for key in read[step]] == oracle


def test_a_state_resumes_at_every_row_with_another_batch_size(made):
    oracle = keys_of(Stream(made / "out-tars", seed=5, epochs=2).batches(1))
    for num_batches in range(8):
        first = Stream(made / "out-tars", seed=5, epochs=2)
        begun = keys_of(batch for batch, _ in zip(first.batches(3), range(num_batches), strict=False))
        state = json.loads(json.dumps(first.state_dict()))
        # zip has taken one batch more than it used
        position = state["row"]
        second = Stream(made / "out-tars", seed=5, epochs=2)
        second.load_state_dict(state)
        rest = keys_of(second.batches(5))
        assert oracle[:position][: len(begun)] == begun
        assert rest == oracle[position:]


def test_mixtures_keep_their_shares(made):
    data = {"a": (made / "out-tars", 0.75), "b": (made / "out-more", 0.25)}
    stream = Stream(data, seed=1, rows=40)
    counts = Counter()
    for batch in stream.batches(8):
        counts.update(stream.sources[number] for number in batch.sources)
    assert counts == {"a": 30, "b": 10}


def test_a_mixture_of_other_columns_loses_none(made):
    """A folder has the column `image`, a tar of others `png`; each is decoded, and None stands where there is none."""
    data = {"a": (made / "out-tars", 0.5), "b": (str(made / "out-more/train/s/*.tar"), 0.5)}
    stream = Stream(data, seed=1, rows=8)
    batch = stream.batch(0, 8)
    for row, number in enumerate(batch.sources):
        own, other = ("image", "png") if stream.sources[number] == "a" else ("png", "image")
        assert batch[own][row].shape == (6, 8, 3)
        assert batch[other][row] is None


def test_numbers_and_tensors_are_joined_without_a_loss(made):
    import torch

    def measure(record):
        number = int(record["__key__"][-3:])
        return {
            "mean": np.float32(0.5),
            "is_odd": np.bool_(number % 2),
            "same": torch.tensor([0.5]),
            "mixed": torch.tensor(0.5 if number % 2 else 2),
            "words": np.array(["a", "mill"]),
        }

    stream = Stream(made / "out-tars", seed=3, epochs=1, samples=Samples(transform=measure))
    assert [list(words) for words in next(iter(TorchLoader(stream, 8)))["words"]] == [["a", "mill"]] * 8
    batch = stream.batch(0, 8)
    assert batch["mean"].dtype == np.float32
    assert batch["is_odd"].dtype == bool
    assert batch["same"].shape == (8, 1)
    assert [float(value) for value in batch["mixed"]] == [0.5 if is_odd else 2 for is_odd in batch["is_odd"]]


def fail_at(record, bad):
    if record["__key__"][-3:] in bad:
        raise ValueError(f"cannot use {record['__key__']}")
    return {"x": record["image"].astype(np.float32), "__key__": record["__key__"]}


def test_a_sample_that_fails_raises_and_is_named(made):
    stream = Stream(made / "out-tars", seed=3, epochs=1, samples=Samples(transform=partial(fail_at, bad=("007",))))
    with pytest.raises(SampleError, match="cannot use cats/007") as caught:
        list(stream.batches(4))
    assert "('cats/007', sample 3 of" in caught.value.message
    assert "shard-0000" in caught.value.message
    assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message


@pytest.mark.filterwarnings("ignore:row .* another sample takes its place")
def test_replacements_depend_on_the_row_alone(made):
    transform = partial(fail_at, bad=("003", "007", "010"))
    whole = Stream(made / "out-tars", seed=3, epochs=1, samples=Samples(transform=fail_at and partial(fail_at, bad=())))
    plain = keys_of(whole.batches(5))

    def make():
        return Stream(made / "out-tars", seed=3, epochs=1, samples=Samples(transform=transform, on_error="replace"))

    replaced = keys_of(make().batches(5))
    assert len(replaced) == NUM
    bad = {row for row, key in enumerate(plain) if key[-3:] in ("003", "007", "010")}
    assert {row for row in range(NUM) if plain[row] != replaced[row]} == bad
    assert not any(key[-3:] in ("003", "007", "010") for key in replaced)
    assert [sample["__key__"] for sample in make().samples(np.arange(NUM))] == replaced
    loader = TorchLoader(make(), 2, rank=1, world_size=2, num_threads=2)
    assert keys_of(loader) == [key for row, key in enumerate(replaced) if row % 4 >= 2]


@pytest.mark.filterwarnings("ignore:row .* another sample takes its place")
def test_when_all_fail_nothing_is_returned(made):
    stream = Stream(made / "out-tars", epochs=1, samples=Samples(transform=lambda record: 1 / 0, on_error="replace"))
    with pytest.raises(SampleError, match="division"):
        stream.rows(0, 1)


def test_a_transform_must_return_a_sample(made):
    stream = Stream(made / "out-tars", epochs=1, samples=Samples(transform=len, on_error="replace"))
    with pytest.raises(UsageError, match="returned int"):
        stream.rows(0, 1)
    stream = Stream(made / "out-tars", epochs=1, samples=Samples(transform=lambda record: None))
    with pytest.raises(UsageError, match="skips all"):
        stream.rows(0, 1)


def leave_out_at(record, bad):
    return None if record["__key__"][-3:] in bad else record


def read_with(kind, stream):
    """Read one epoch, and return the keys in the order of the stream."""
    if kind == "rows":
        loader = DataLoader(TorchRows(stream), batch_size=4, num_workers=2, collate_fn=list)
        return [sample["__key__"] for batch in loader for sample in batch]
    if kind == "loader":
        return keys_of(TorchLoader(stream, 4, num_threads=2))
    workers = {"num_workers": 2, "multiprocessing_context": kind}
    return keys_of(DataLoader(TorchDataset(stream, 4, rank=0, world_size=1), batch_size=None, **workers))


@pytest.mark.filterwarnings("ignore:row .* another sample takes its place")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("kind", ["loader", "fork", "spawn", "rows"])
def test_what_is_replaced_and_skipped_is_counted_by_every_loader(made, kind):
    bad = ("003", "007", "010")
    for function, name in ((fail_at, "replaced"), (leave_out_at, "skipped")):
        stream = Stream(
            made / "out-tars",
            seed=3,
            epochs=1,
            samples=Samples(transform=partial(function, bad=bad), on_error="replace"),
        )
        keys = read_with(kind, stream)
        assert len(keys) == NUM
        assert not any(key[-3:] in bad for key in keys)
        report = stream.accounting.report()
        assert getattr(report, name) >= 3
        assert report.replaced + report.skipped == getattr(report, name)
        assert report.rows == NUM
        assert f"{getattr(report, name)} samples {name}" in stream.accounting.log_line()
        assert stream.accounting.as_dict()[f"data/{name}"] == getattr(report, name)


def test_the_first_replaced_sample_is_a_warning_that_names_its_key(made):
    stream = Stream(
        made / "out-tars", epochs=1, samples=Samples(transform=partial(fail_at, bad=("007",)), on_error="replace")
    )
    with pytest.warns(UserWarning, match=r"'cats/007', sample \d+ of .*\.tar.*another sample takes its place"):
        list(stream.batches(NUM))


@pytest.mark.filterwarnings("ignore:row .* another sample takes its place")
@pytest.mark.parametrize(("function", "name"), [(fail_at, "max_replaced"), (leave_out_at, "max_skipped")])
def test_above_a_share_samples_that_others_replace_are_an_error(made, function, name):
    """3 of 23 are bad: 13 %, after some epochs."""

    def make(share):
        transform = partial(function, bad=("003", "007", "010"))
        stream = Stream(
            made / "out-tars", epochs=9, samples=Samples(transform=transform, on_error="replace", **{name: share})
        )
        return list(stream.batches(10))

    assert make(0.3)
    with pytest.raises(SampleError, match=f"{name} is 5.0%"):
        make(0.05)


@pytest.mark.filterwarnings("ignore:row .* another sample takes its place")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_share_is_that_of_all_workers_and_epochs(made):
    """3 of 23 are bad: in an epoch, each of two workers replaces fewer than can be an error."""
    transform = partial(fail_at, bad=("003", "007", "010"))
    stream = Stream(
        made / "out-tars", epochs=9, samples=Samples(transform=transform, on_error="replace", max_replaced=0.05)
    )
    loader = DataLoader(TorchDataset(stream, 4, rank=0, world_size=1), batch_size=None, num_workers=2)
    with pytest.raises(SampleError, match="the workers of this rank have read could not be used"):
        list(itertools.chain.from_iterable(loader for _ in range(9)))


@pytest.mark.parametrize("decode", ["bytes", "pil", len])
def test_decode(made, decode):
    [sample] = Stream(made / "out-tars", shuffle=False, epochs=1, samples=Samples(decode=decode)).samples(np.arange(1))
    content = photo(int(sample["__key__"][-3:]), "PNG", width=8, height=6)
    if decode == "bytes":
        assert sample["image"] == content
    elif decode == "pil":
        assert sample["image"].size == (8, 6)
    else:
        assert sample["image"] == len(content)


def test_ragged_samples_are_lists_and_the_rest_is_blank(made):
    def widen(record):
        return {"x": np.ones(int(record["__key__"][-3:])), "n": int(record["__key__"][-3:]), "name": record["__key__"]}

    stream = Stream(made / "out-tars", seed=3, epochs=1, samples=Samples(transform=widen))
    batch = stream.batch(0, 4)
    assert [len(value) for value in batch["x"]] == batch["n"].tolist()
    last = Stream(made / "out-tars", seed=3, epochs=1).batch(2, 10)
    assert last["image"].shape == (10, 6, 8, 3)
    assert last.row_mask.tolist() == [True] * 3 + [False] * 7
    assert not last["image"][3:].any()
    empty_rank = Stream(made / "out-tars", seed=3, epochs=1).batch(2, 5, rank=1, world_size=2)
    assert empty_rank["image"].shape == (5, 6, 8, 3)
    assert not empty_rank.row_mask.any()


def test_ragged_images_can_be_written(made):
    """Torch warns of arrays that cannot when a DataLoader makes tensors of them."""

    def cut(record):
        return {"x": record["image"][: 1 + int(record["__key__"][-3:]) % 4]}

    batch = Stream(made / "out-tars", seed=3, epochs=1, samples=Samples(transform=cut)).batch(0, 8)
    assert isinstance(batch["x"], list)
    assert all(value.flags.writeable for value in batch["x"])


def test_rows_for_trainers(made):
    rows = TorchRows(Stream(made / "out-tars", seed=3, epochs=1))
    assert rows[5]["image"].shape == (6, 8, 3)
    assert [row["__key__"] for row in rows.__getitems__([0, 1])] == keys_of(
        Stream(made / "out-tars", seed=3, epochs=1).batches(2)
    )[:2]


def test_a_stream_travels(made):
    stream = Stream(made / "out-tars", seed=3, epochs=1)
    again = pickle.loads(pickle.dumps(stream))
    assert keys_of(again.batches(4)) == keys_of(stream.batches(4))


def test_damage_is_named(made, tmp_path):
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(made / "out-tars", folder)
    shard = sorted((folder / "train/s").iterdir())[0]
    data = bytearray(shard.read_bytes())
    data[100:200] = bytes(100)
    shard.write_bytes(data)
    with pytest.raises(DamagedDatasetError, match=shard.name):
        list(Stream(folder, shuffle=False, epochs=1).batches(2))
    shard.write_bytes(bytes(data)[:-512])
    with pytest.raises(DamagedDatasetError, match="bytes"):
        Stream(folder, epochs=1)


def test_what_cannot_be_streamed_is_refused(made, tmp_path):
    with pytest.raises(UsageError, match="at random"):
        Stream(made / "out-parquet")
    with pytest.raises(UsageError, match="tokens"):
        Stream(made / "out-tars", tokens=5)
    with pytest.raises(UsageError, match="on_error"):
        Stream(made / "out-tars", samples=Samples(on_error="skip"))
    cut = tmp_path / "cut.tar"
    cut.write_bytes(next((made / "out-tars/train/s").iterdir()).read_bytes()[:700])
    with pytest.raises(UsageError, match=r"cut short|end mark"):
        Stream(str(cut))
    data = next((made / "out-tars/train/s").iterdir()).read_bytes()
    place = data.index(b"ustar", len(data) // 2) - 257
    cut.write_bytes(data[:place] + bytes(512) + data[place + 512 :])
    with pytest.raises(UsageError, match=r"damaged header|zero bytes"):
        Stream(str(cut))
    with tarfile.open(tmp_path / "unsafe.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("../x.png"))
    with pytest.raises(UsageError, match="outside"):
        Stream(str(tmp_path / "unsafe.tar"))


def test_foreign_tars_are_indexed_once(made, monkeypatch):
    from gristmill.stream.lanes import foreign_tars

    pattern = str(made / "out-tars/train/s/*.tar")
    Stream(pattern, epochs=1)
    monkeypatch.setattr(foreign_tars, "_index_samples", pytest.fail)
    assert len(keys_of(Stream(pattern, epochs=1).batches(4))) == NUM


def test_members_of_foreign_tars_that_are_not_what_they_say(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(6):
            for name, content in (("cls", b"cat"), ("json", b"{" if number == 3 else b"{}")):
                info = tarfile.TarInfo(f"{number}.{name}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    with pytest.raises(SampleError, match=r"\.json cannot be decoded") as caught:
        list(Stream(tmp_path / "a.tar", epochs=1).batches(2))
    assert "on_error='replace'" in caught.value.help
    assert "('3', sample 3 of" in str(caught.value)
    stream = Stream(tmp_path / "a.tar", epochs=1, shuffle=False, samples=Samples(on_error="replace"))
    with pytest.warns(UserWarning, match="another sample takes its place"):
        samples = stream.samples(np.arange(6))
    assert [sample["cls"] for sample in samples] == ["cat"] * 6
    assert [sample["__key__"] for sample in samples][:3] == ["0", "1", "2"]
    assert samples[3]["__key__"] != "3"


@pytest.mark.parametrize("shuffle", [True, False, {"blocks": 3}])
def test_a_folder_of_images_streams_like_its_dataset(made, shuffle):
    """The same keys, labels and pixels as with a recipe, resumed with other ranks."""
    dataset = Stream(made / "out-arrow", epochs=1, shuffle=False)
    expected = {sample["__key__"]: sample for sample in dataset.samples(np.arange(NUM))}
    stream = Stream(made / "in", seed=3, epochs=1, shuffle=shuffle)
    samples = stream.samples(np.arange(NUM))
    for sample in samples:
        original = expected[sample["__key__"]]
        assert set(sample) == {"__key__", "image", "label"}
        assert sample["label"] == original["label"]
        assert np.array_equal(sample["image"], original["image"])
    order = [sample["__key__"] for sample in samples]
    assert set(order) == set(expected)
    first = stream.batch(0, 4, rank=0, world_size=2), stream.batch(0, 4, rank=1, world_size=2)
    rest = Stream(made / "in", seed=3, epochs=1, shuffle=shuffle)
    rest.load_state_dict(stream.state_dict(row=8))
    assert keys_of([*first, *rest.batches(5)]) == order
    assert "label" not in Stream(made / "more", epochs=1).samples(np.arange(1))[0]


def test_folders_of_images_may_name_splits_and_what_describes_images_is_not_lost(tmp_path):
    for name in ("train/cats/1.png", "train/dogs/2.png", "val/cats/3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(photo(1, "PNG", width=4, height=4))
    assert [sample["label"] for sample in Stream(tmp_path, shuffle=False, epochs=1).samples(np.arange(2))] == [
        "cats",
        "dogs",
    ]
    assert len(Stream(tmp_path, split="validation", epochs=1)) == 1
    (tmp_path / "train/cats/1.txt").write_text("a cat")
    with pytest.raises(UsageError, match=r"1\.txt describes the images"):
        Stream(tmp_path)


def test_tars_are_closed_when_python_ends(made, monkeypatch):
    """Python takes modules apart at its end, while tars may still be open."""
    stream = Stream(made / "out-tars", seed=1)
    stream.rows(0, 2)
    tar = stream.reader.table._open.popitem()[1]._ranges
    monkeypatch.setattr(sample_shards, "os", None)
    descriptor = tar._descriptor
    tar.__del__()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    del tar._descriptor  # it is closed
