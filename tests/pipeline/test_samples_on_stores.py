"""Samples on S3, a real store: the same bytes as from and to a local disk."""

import io
import tarfile

import pytest
from gristmill_testing.pictures import photo

import gristmill as gm
from gristmill import steps
from gristmill.storage.user_cache import choose_copies_folder


@pytest.fixture(autouse=True)
def copies(tmp_path):
    choose_copies_folder(tmp_path / "copies")
    yield
    choose_copies_folder(None)


@pytest.fixture
def inputs(tmp_path, s3):
    """The same files in a folder and in a bucket: images with captions and a table, and tars."""
    root = tmp_path / "in"
    for number in range(8):
        path = root / "photos" / ("cats" if number % 3 else "dogs") / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photo(number))
        path.with_suffix(".txt").write_text(f"picture {number}")
    (root / "photos" / "dogs" / "metadata.csv").write_text("file_name,breed\n000.jpg,poodle\n003.jpg,husky\n")
    (root / "tars").mkdir()
    for number in range(3):
        with tarfile.open(root / "tars" / f"a-{number:03d}.tar", "w") as tar:
            for sample in range(4):
                for extension, content in (("jpg", photo(number + sample)), ("cls", b"7")):
                    info = tarfile.TarInfo(f"{number}{sample}.{extension}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    for path in sorted(root.rglob("*.*")):
        s3.put(path.relative_to(tmp_path).as_posix(), path.read_bytes())
    return root


READS = ["photos", "photos/**/*.jpg", "tars/a-{000..002}.tar", ["tars/a-{000..001}.tar", "tars/a-002.tar"]]
CHAINS = [
    ([], steps.Write(format="webdataset", energon=True)),
    ([steps.Images(resize=16, reencode="webp"), steps.Deduplicate(kind="image")], steps.Write(format="parquet")),
]


@pytest.mark.full
@pytest.mark.parametrize(("read", "chain"), [(READS[0], 0), (READS[1], 0), (READS[2], 0), (READS[3], 1), (READS[0], 1)])
def test_the_same_dataset_from_and_on_a_store(inputs, s3, tmp_path, read, chain):
    more, write = CHAINS[chain]
    patterns = [read] if isinstance(read, str) else read
    made = {}
    for name, root, output in (
        ("local", inputs, tmp_path / "local"),
        ("from", f"{s3.url}/in", tmp_path / "from"),
        ("on", f"{s3.url}/in", f"{s3.url}/out/on"),
    ):
        source = steps.Read(read=[f"{root}/{pattern}" for pattern in patterns])
        recipe = gm.Recipe(sources={"a": source}, steps=[*more, write], output=str(output))
        made[name] = gm.run(recipe, backend="serial", progress=False).dataset()
    local = made["local"]
    for name in ("from", "on"):
        dataset = made[name]
        assert dataset.manifest.dataset_hash == local.manifest.dataset_hash
        assert dataset.verify().problems == []
        assert [shard.xxh3 for _, _, shard in dataset.manifest.shards()] == [
            shard.xxh3 for _, _, shard in local.manifest.shards()
        ]
        assert dataset[5] == local[5]
    if write.energon:
        assert any(key.endswith(".nv-meta/dataset.yaml") for key in s3.list_keys("out/on"))
    exported = [
        gm.export(dataset.folder, to="parquet", path=str(tmp_path / f"x-{name}/x"), backend="serial", progress=False)
        for name, dataset in made.items()
    ]
    assert len({result.files[0].read_bytes() for result in exported}) == 1
