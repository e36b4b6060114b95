"""`deduplicate: {kind: image}`: what is removed is what a comparison of all pairs would remove."""

import itertools
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from gristmill_testing.pictures import encode, make_photo
from PIL import Image

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.images.codec import HASH_BITS, measure_similarities, sign_image


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("copies")
    for seed in range(8):
        large = Image.fromarray(make_photo(seed, 160, 120))
        (root / f"{seed}-a.png").write_bytes(encode(large, "PNG"))
        if seed % 2:
            (root / f"{seed}-b.jpg").write_bytes(encode(large, "JPEG", quality=80))
            (root / f"{seed}-c.webp").write_bytes(encode(large.resize((80, 60)), "WEBP"))
    shutil.copy(root / "2-a.png", root / "2-copy.png")
    (root / "white.png").write_bytes(encode(np.full((9, 9, 3), 255, np.uint8), "PNG"))
    (root / "black.png").write_bytes(encode(np.zeros((9, 9, 3), np.uint8), "PNG"))
    (root / "broken.png").write_bytes(b"no image")
    return root


def run(output, folder, **options):
    step = steps.Deduplicate(kind="image", max_source_loss=1.0, **options)
    recipe = gm.Recipe(
        sources={"s": steps.Read(read=str(folder))}, steps=[step, steps.Write(format="arrow")], output=str(output)
    )
    gm.run(recipe, workers=1, backend="serial")
    return gm.open_dataset(output)


@pytest.mark.parametrize("partition_bytes", [32 << 20, 200])
def test_as_a_comparison_of_all_pairs(folder, tmp_path, partition_bytes):
    dataset = run(tmp_path / "out", folder, partition_bytes=partition_bytes)
    names = {record["__key__"]: record["image"] for record in dataset}
    kinds = [name[0] for name in names if name[0].isdigit()]
    assert sorted(kinds) == list("01234567")
    assert {"white", "black", "broken"} <= names.keys()
    signatures = {name: sign_image(content) for name, content in names.items() if name != "broken"}
    for first, second in itertools.combinations(signatures.values(), 2):
        assert measure_similarities(first[None], second[None])[0] < 1 - 12 / HASH_BITS
    table = pq.read_table(dataset.folder / dataset.manifest.deduplicated[0].file.path)
    assert table.num_rows == 9
    assert min(table["similarity"].to_pylist()) >= 1 - 12 / HASH_BITS


def test_a_distance_of_0_keeps_what_differs_in_a_bit(folder, tmp_path):
    strict = run(tmp_path / "out", folder, max_distance=0)
    assert len(strict) >= len(run(tmp_path / "loose", folder, max_distance=20))


def test_only_images(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UsageError, match="column of images"):
        run(tmp_path / "out", tmp_path / "a.jsonl")
    with pytest.raises(UsageError, match="max_distance"):
        steps.Deduplicate(kind="image", max_distance=99)
