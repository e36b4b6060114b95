"""Exports of samples: the same files as `write` makes, whatever the dataset is stored as."""

import io

import datasets
import numpy as np
import pytest
from gristmill_testing.pictures import photo
from PIL import Image
from webdataset import autodecode, tariterators

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import UsageError

FORMATS = ("webdataset", "parquet", "arrow", "jsonl")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One folder of images with captions, written in every format."""
    root = tmp_path_factory.mktemp("samples")
    for number in range(9):
        path = root / "in" / ("cats" if number % 3 else "dogs") / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photo(number))
        path.with_suffix(".txt").write_text(f"picture {number}")
        path.with_suffix(".json").write_text(f'{{"n": {number}, "boxes": [[1, 2]]}}')
    for form in FORMATS:
        recipe = gm.Recipe(
            sources={"a": steps.Read(read=str(root / "in"))}, steps=[steps.Write(format=form)], output=str(root / form)
        )
        gm.run(recipe, backend="serial", progress=False)
    return root


def export(folder, to, path):
    result = gm.export(folder, to=to, path=str(path / "x"), backend="serial", progress=False)
    assert result.rows == {"train": 9}
    return result.files[0]


@pytest.mark.parametrize("to", ["webdataset", "parquet", "jsonl"])
@pytest.mark.parametrize("stored", ["webdataset", "parquet", "arrow"])
def test_an_export_has_the_bytes_of_write(made, tmp_path, stored, to):
    exported = export(made / stored, to, tmp_path)
    [written] = (made / to / "train" / "a").iterdir()
    if to == "webdataset" and stored != "webdataset":
        # Only tars note which texts were members: others have them as columns, which are in `.json`.
        assert_same_samples(exported, written)
    else:
        assert exported.read_bytes() == written.read_bytes()


def assert_same_samples(exported, written):
    first, second = (
        [
            dict(autodecode.Decoder([autodecode.basichandlers])(sample))
            for sample in tariterators.group_by_keys(tariterators.tar_file_expander([{"url": "", "stream": stream}]))
        ]
        for stream in (io.BytesIO(exported.read_bytes()), io.BytesIO(written.read_bytes()))
    )
    assert [sample["jpg"] for sample in first] == [sample["jpg"] for sample in second]
    assert [sample["__key__"] for sample in first] == [sample["__key__"] for sample in second]
    assert [(sample["json"]["txt"], sample["json"]["label"]) for sample in first] == [
        (sample["txt"], sample["label.txt"]) for sample in second
    ]


def test_datasets_shows_the_pictures_of_an_export(made, tmp_path):
    path = export(made / "webdataset", "parquet", tmp_path)
    loaded = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert isinstance(loaded.features["image"], datasets.Image)
    record = gm.open_dataset(made / "arrow")[3]
    (tmp_path / "x.jpg").write_bytes(record["image"])
    assert np.array_equal(np.asarray(loaded[3]["image"]), np.asarray(Image.open(tmp_path / "x.jpg")))


@pytest.mark.parametrize(("stored", "to"), [("webdataset", "megatron"), ("arrow", "numpy"), ("jsonl", "parquet")])
def test_what_cannot_hold_samples_is_refused(made, tmp_path, stored, to):
    with pytest.raises(UsageError, match=r"tokens|base64"):
        export(made / stored, to, tmp_path)
    assert not list(tmp_path.iterdir())
