"""Samples: folders and tars of images in, tars, Arrow and Parquet out, and back again, byte for byte."""

import io
import json
import tarfile
from collections import Counter
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gristmill_testing.pictures import broken_exif, make_photo, photo
from PIL import Image
from webdataset import autodecode, tariterators

import gristmill as gm
from gristmill import steps
from gristmill.cli.main import main
from gristmill.core.errors import NotUpToDateError, SourceChangedError, UsageError
from gristmill.core.recipe import Source
from gristmill.pipeline import execution
from gristmill.pipeline.inspecting.trace import trace
from gristmill.readers import sample_folder
from gristmill.report.write import measure_documents
from gristmill.stream import Samples, Stream


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images in folders of classes, with captions, of several formats."""
    root = tmp_path_factory.mktemp("pictures")
    for number in range(12):
        path = root / ("cats" if number % 3 else "dogs") / f"{number:03d}"
        path.parent.mkdir(exist_ok=True)
        form = ("JPEG", "PNG", "WEBP")[number % 3]
        path.with_suffix({"JPEG": ".jpg", "PNG": ".PNG", "WEBP": ".webp"}[form]).write_bytes(photo(number, form))
        path.with_suffix(".txt").write_text(f"picture {number}")
    return root


def write_tar(path, samples, kind=tarfile.REGTYPE):
    with tarfile.open(path, "w") as tar:
        for key, members in samples:
            for extension, content in members.items():
                info = tarfile.TarInfo(f"{key}.{extension}")
                info.size, info.mtime, info.uid = len(content), 1234, 77
                tar.addfile(info, io.BytesIO(content))


@pytest.fixture(scope="module")
def tar(tmp_path_factory):
    path = tmp_path_factory.mktemp("tars") / "a.tar"
    samples = [
        (
            f"x/{number:03d}",
            {
                "jpg": photo(number),
                "txt": f"caption {number}".encode(),
                "json": json.dumps({"n": number, "url": {"host": f"h{number}"}}).encode(),
                "cls": b"7",
                "wav": bytes([0, 255, number]),
            },
        )
        for number in range(9)
    ]
    write_tar(path, samples)
    return path, samples


def run(output, read, *more, form="webdataset", **options):
    recipe = gm.Recipe(sources={"s": read}, steps=[*more, steps.Write(format=form)], output=str(output), **options)
    gm.run(recipe, workers=1, backend="serial")
    dataset = gm.open_dataset(output)
    assert dataset.verify().problems == []
    return dataset


def read_tar(path):
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def read_webdataset(path, decode=dict):
    """Read a tar with webdataset's own functions; its pipelines leave their files open."""
    with path.open("rb") as stream:
        members = ({**member, "__url__": "x"} for member in tariterators.tar_file_iterator(stream))
        return [decode(sample) for sample in tariterators.group_by_keys(members)]


def only_shard(dataset, split="train"):
    [path] = (dataset.folder / split / "s").iterdir()
    return path


@pytest.mark.parametrize("form", ["arrow", "parquet", "webdataset", "jsonl"])
def test_a_folder_of_images_in_every_format(folder, tmp_path, form):
    dataset = run(tmp_path / "out", steps.Read(read=str(folder)), form=form)
    assert dataset.manifest.kind == "samples"
    records = {record["__key__"]: record for record in dataset}
    assert len(records) == 12
    for number in range(12):
        label = "cats" if number % 3 else "dogs"
        record = records[f"{label}/{number:03d}"]
        assert (record["label"], record["txt"]) == (label, f"picture {number}")
        if form != "jsonl":
            assert record["image"] == photo(number, ("JPEG", "PNG", "WEBP")[number % 3])
    assert [dataset[number] for number in range(12)] == list(dataset)


def test_webdataset_and_torch_read_the_tars_as_they_are(folder, tmp_path):
    dataset = run(tmp_path / "out", steps.Read(read=str(folder)))
    samples = read_webdataset(only_shard(dataset), autodecode.Decoder([autodecode.imagehandler("pil")]))
    assert len(samples) == 12
    for sample in samples:
        [extension] = {"jpg", "png", "webp"} & sample.keys()
        number = int(sample["__key__"][-3:])
        assert np.array_equal(
            np.asarray(sample[extension]),
            np.asarray(Image.open(io.BytesIO(photo(number, ("JPEG", "PNG", "WEBP")[number % 3]))).convert("RGB")),
        )
        assert sample["txt"] == f"picture {number}"


def test_a_tar_is_written_again_as_it_was(tar, tmp_path):
    """No member is stored twice, moved into another one, or changed; only their order within a sample is."""
    path, samples = tar
    dataset = run(tmp_path / "out", steps.Read(read=str(path)))
    written = read_tar(only_shard(dataset))
    expected = {f"{key}.{name}": content for key, members in samples for name, content in sorted(members.items())}
    for name, content in expected.items():
        if name.endswith(".json"):
            assert json.loads(written[name]) == json.loads(content)
        else:
            assert written[name] == content
    assert list(written) == list(expected)
    with tarfile.open(only_shard(dataset)) as again:
        assert {(member.mtime, member.uid, member.gid, member.uname) for member in again} == {(0, 0, 0, "")}


@pytest.mark.parametrize("text", ["txt", "json.url.host"])
def test_a_text_is_stored_once(tar, tmp_path, text):
    path, _ = tar
    upper = steps.Map(call=lambda record: {**record, "text": record["text"].upper()})
    dataset = run(tmp_path / "out", steps.Read(read=str(path), text=text), upper)
    written = read_tar(only_shard(dataset))
    assert Counter(name.rpartition(".")[2] for name in written) == dict.fromkeys(
        ["jpg", "txt", "json", "cls", "wav"], 9
    )
    record = dataset[3]
    if text == "txt":
        assert written["x/003.txt"] == b"CAPTION 3"
        assert record["text"] == "CAPTION 3"
    else:
        assert json.loads(written["x/003.json"]) == {"n": 3, "url": {"host": "H3"}}
        assert (record["text"], record["txt"]) == ("H3", "caption 3")


def test_the_tars_of_a_dataset_are_a_source(folder, tmp_path):
    first = run(tmp_path / "first", steps.Read(read=str(folder)), steps.Map(call=_add_size, columns={"size": "int64"}))
    second = run(tmp_path / "second", steps.Read(read=str(tmp_path / "first")), form="arrow")
    assert list(second) == [{name: record[name] for name in second[0]} for record in first]
    third = run(tmp_path / "third", steps.Read(read=str(tmp_path / "first")))
    assert only_shard(third).read_bytes() == only_shard(first).read_bytes()


def _add_size(record):
    return {**record, "size": len(record["image"])}


def test_every_step_that_needs_no_text(folder, tmp_path):
    copies = tmp_path / "more"
    copies.mkdir()
    for number in (1, 2):
        (copies / f"copy-{number}.webp").write_bytes(photo(2, "WEBP"))
    dataset = run(
        tmp_path / "out",
        steps.Read(read=[str(folder), str(copies)]),
        steps.Filter(call=lambda record: len(record["image"]) > 10),
        steps.Sample(fraction=0.9),
        steps.Deduplicate(kind="exact"),
        steps.Split(validation=3),
        steps.Shuffle(),
        steps.Limit(max_records=7),
    )
    books = {account.step: account for account in dataset.manifest.books["s"]}
    assert books["deduplicate"].dropped["duplicate"] == 2
    contents = [record["image"] for record in dataset]
    assert len(contents) == len(set(contents)) == 10
    assert len(dataset.split("validation")) == 3


def test_splits_are_by_content(folder, tmp_path):
    (tmp_path / "a").mkdir()
    for number in range(30):
        (tmp_path / "a" / f"{number}.png").write_bytes(photo(number % 10, "PNG"))
    dataset = run(tmp_path / "out", steps.Read(read=str(tmp_path / "a")), steps.Split(validation=0.3))
    train, validation = ({record["image"] for record in dataset.split(name)} for name in ("train", "validation"))
    assert train
    assert validation
    assert not train & validation


def test_hugging_face_shows_the_pictures(folder, tmp_path):
    dataset = run(tmp_path / "out", steps.Read(read=str(folder)), form="parquet")
    loaded = datasets.Dataset.from_parquet(str(only_shard(dataset)), cache_dir=str(tmp_path / "cache"))
    assert loaded.features["image"] == datasets.Image()
    assert loaded[0]["image"].size == (48, 40)
    assert loaded[0]["label"] == "cats"


def test_datasets_with_images_are_sources(tmp_path):
    pictures = [Image.fromarray(make_photo(number)) for number in range(5)]
    made = datasets.Dataset.from_dict({"image": pictures, "n": list(range(5))}).cast_column("image", datasets.Image())
    made.to_parquet(tmp_path / "a.parquet")
    made.save_to_disk(tmp_path / "saved")
    for name in ("a.parquet", "saved"):
        dataset = run(tmp_path / f"out-{name}", steps.Read(read=str(tmp_path / name)), steps.Images(min_width=3))
        assert [np.array_equal(_decode(record["image"]), make_photo(record["n"])) for record in dataset] == [True] * 5


def _decode(content):
    return np.asarray(Image.open(io.BytesIO(content)))


def test_an_image_that_is_only_a_path_is_quarantined(tmp_path):
    kind = datasets.Image().pa_type
    import pyarrow as pa

    values = [{"bytes": photo(1), "path": "a.jpg"}, {"bytes": None, "path": "/elsewhere/b.jpg"}]
    pq.write_table(pa.table({"image": pa.array(values, kind)}), tmp_path / "a.parquet")
    dataset = run(tmp_path / "out", steps.Read(read=str(tmp_path / "a.parquet")), max_quarantine=0.9)
    assert [entry["reason"] for entry in dataset.quarantine()] == ["image_not_embedded"]
    assert dataset[0]["image_path"] == "a.jpg"


def test_bad_files_of_a_folder(folder, tmp_path):
    root = tmp_path / "in"
    root.mkdir()
    (root / "good.jpg").write_bytes(photo(1))
    (root / "empty.jpg").write_bytes(b"")
    (root / "really_a_png.jpg").write_bytes(photo(2, "PNG"))
    (root / "odd.txt").write_text("describes nothing")
    (root / "large.jpg").write_bytes(photo(3) * 100)
    read = steps.Read(read=str(root), max_record_bytes=20_000)
    dataset = run(tmp_path / "out", read, steps.Images(), max_quarantine=0.9)
    assert Counter(entry["reason"] for entry in dataset.quarantine()) == {"empty_file": 1, "too_large": 1}
    assert {name.rpartition(".")[2] for name in read_tar(only_shard(dataset))} == {"jpg", "png"}


def test_a_tar_cut_in_a_member_keeps_what_came_before(tar, tmp_path):
    path, samples = tar
    cut = tmp_path / "cut.tar"
    cut.write_bytes(path.read_bytes()[:30_000])
    dataset = run(tmp_path / "out", steps.Read(read=str(cut)), max_quarantine=0.9)
    assert [entry["reason"] for entry in dataset.quarantine()] == ["truncated_stream"]
    assert [record["jpg"] for record in dataset] == [members["jpg"] for _, members in samples[: len(dataset)]]


def test_equal_keys_stay_two_samples(tmp_path):
    write_tar(tmp_path / "a.tar", [("k", {"jpg": photo(1)}), ("m", {"jpg": photo(2)}), ("k", {"jpg": photo(3)})])
    dataset = run(tmp_path / "out", steps.Read(read=str(tmp_path / "a.tar")))
    assert [record["jpg"] for record in dataset] == [photo(1), photo(2), photo(3)]
    loaded = read_webdataset(only_shard(dataset))
    assert [sample["jpg"] for sample in loaded] == [photo(1), photo(2), photo(3)]


def test_an_image_is_no_text(tar, tmp_path):
    path, _ = tar
    with pytest.raises(UsageError, match="bytes, not text"):
        run(tmp_path / "out", steps.Read(read=str(path), text="jpg"))
    with pytest.raises(UsageError, match="text"):
        run(tmp_path / "out", steps.Read(read=str(path)), steps.Length(min_chars=3))


def test_a_named_member_of_bytes_is_a_column(tar, tmp_path):
    path, samples = tar
    dataset = run(tmp_path / "out", steps.Read(read=str(path), text="txt", columns=["jpg", "cls"]), form="arrow")
    assert [(record["jpg"], record["cls"]) for record in dataset] == [(members["jpg"], "7") for _, members in samples]


def test_tables_and_splits_of_an_image_folder(tmp_path):
    root = tmp_path / "in"
    for split, numbers in (("train", range(6)), ("test", range(6, 9))):
        (root / split).mkdir(parents=True)
        rows = [{"file_name": f"./{number}.jpg", "text": f"a cat {number}", "size": number} for number in numbers]
        (root / split / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for number in numbers:
            (root / split / f"{number}.jpg").write_bytes(photo(number))
    dataset = run(tmp_path / "out", steps.Read(read=str(root)), steps.Length(min_chars=3), form="arrow")
    assert {name: len(dataset.split(name)) for name in dataset.splits} == {"train": 6, "test": 3}
    assert [(record["text"], record["size"]) for record in dataset.split("test")] == [
        (f"a cat {number}", number) for number in range(6, 9)
    ]
    oracle = datasets.load_dataset("imagefolder", data_dir=str(root), cache_dir=str(tmp_path / "cache"))
    assert [record["text"] for record in oracle["train"]] == [record["text"] for record in dataset.split("train")]
    assert np.array_equal(_decode(dataset[0]["image"]), np.asarray(oracle["train"][0]["image"]))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("{no json", "row 1"),
        ('{"text": "x"}', "row 1"),
        ('{"file_name": "a.jpg"}\n' * 2, "row 2"),
        ('{"file_name": "in/a.jpg", "text": "x"}', "no row describes one of the files"),
    ],
)
def test_a_bad_table_is_named(tmp_path, table, words):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(photo(1))
    (tmp_path / "in" / "metadata.jsonl").write_text(table)
    with pytest.raises(UsageError, match=words):
        run(tmp_path / "out", steps.Read(read=str(tmp_path / "in")))


def test_two_tables_of_one_folder_are_refused(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(photo(1))
    (tmp_path / "in" / "metadata.jsonl").write_text('{"file_name": "a.jpg", "n": 1}\n')
    (tmp_path / "in" / "metadata.csv").write_text("file_name,text\na.jpg,a mill\n")
    with pytest.raises(UsageError, match="describe the files of one folder"):
        run(tmp_path / "out", steps.Read(read=str(tmp_path / "in")))


def test_a_column_of_images_is_no_text(tmp_path):
    made = datasets.Dataset.from_dict({"text": [{"bytes": photo(1), "path": None}]})
    made.cast_column("text", datasets.Image()).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="column 'text' holds images or sounds, not text"):
        run(tmp_path / "out", steps.Read(read=str(tmp_path / "a.parquet")), steps.Length(min_chars=1))


def test_a_changed_caption_is_noticed(folder, tmp_path):
    root = tmp_path / "in"
    root.mkdir()
    (root / "a.jpg").write_bytes(photo(1))
    (root / "a.txt").write_text("before")
    read = steps.Read(read=str(root))
    run(tmp_path / "out", read)
    (root / "a.txt").write_text("afterwards")
    with pytest.raises(NotUpToDateError):
        run(tmp_path / "out", read)


@pytest.mark.parametrize("name", ["a.txt", "metadata.jsonl"])
@pytest.mark.parametrize("change", ["removed", "changed"])
def test_a_description_that_changes_during_the_run_stops_it(tmp_path, monkeypatch, name, change):
    root = tmp_path / "in"
    root.mkdir()
    (root / "a.jpg").write_bytes(photo(1))
    (root / name).write_text('{"file_name": "a.jpg", "n": 1}\n')
    run_execution = execution.Execution.run

    def change_first(self):
        (root / name).unlink() if change == "removed" else (root / name).write_text('{"file_name": "a.jpg", "n": 12}')
        sample_folder._load_table.cache_clear()  # a worker of its own has read no table yet
        return run_execution(self)

    monkeypatch.setattr(execution.Execution, "run", change_first)
    with pytest.raises(SourceChangedError, match=name):
        run(tmp_path / "out", steps.Read(read=str(root)))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_mix_of_a_folder_and_tars(folder, tar, tmp_path):
    """Images of a folder and of a tar are two columns, which never take each other's place; or one by `rename`."""
    path, _ = tar
    sources = {"a": steps.Read(read=str(folder)), "b": steps.Read(read=str(path))}
    renamed = {**sources, "b": Source(sources["b"], [steps.Rename(columns={"jpg": "image"})])}
    for name, mixed in (("two", sources), ("one", renamed)):
        records = {}
        for form in ("webdataset", "arrow"):
            mix = steps.Mix(weights={"a": 0.5, "b": 0.5}, size=12, by="documents")
            recipe = gm.Recipe(
                sources=mixed, steps=[mix, steps.Write(format=form)], output=str(tmp_path / f"{name}-{form}")
            )
            records[form] = list(gm.run(recipe, backend="serial", progress=False).dataset())
        assert [record["source"] for record in records["arrow"]].count("a") == 6
        for in_tar, in_arrow in zip(records["webdataset"], records["arrow"], strict=True):
            assert {**in_arrow, **in_tar} == in_arrow, "a tar gives back the columns that were written"
            assert ("jpg" in in_tar) == (name == "two")
            assert (in_tar["image"] is None) == (name == "two" and in_tar["source"] == "b")


@pytest.mark.parametrize("form", ["pil", "numpy"])
def test_map_on_decoded_images(folder, tmp_path, form):
    def mirror(record):
        image = record["image"]
        if record["label"] == "dogs":
            return record
        changed = image[:, ::-1] if isinstance(image, np.ndarray) else image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return {**record, "image": changed}

    dataset = run(tmp_path / "out", steps.Read(read=str(folder)), steps.Map(call=mirror, images=form))
    for record in dataset:
        number = int(record["__key__"][-3:])
        before = photo(number, ("JPEG", "PNG", "WEBP")[number % 3])
        if record["label"] == "dogs":
            assert record["image"] == before, "what a function leaves alone keeps its bytes"
        else:
            assert np.array_equal(_decode(record["image"]), _decode(before)[:, ::-1])


def test_the_slices_do_not_show(folder, tmp_path):
    """The bytes of tars and of their indexes are the same for any slices, with and without keys."""
    read = steps.Read(read=str(folder))
    for name, more in (("keys", ()), ("plain", (steps.Select(columns=["image", "label"]),))):
        whole = run(tmp_path / f"{name}-whole", read, *more)
        cut = run(tmp_path / f"{name}-cut", read, *more, slice_bytes=4096)
        assert whole.manifest.dataset_hash == cut.manifest.dataset_hash
        shards = [next(iter(dataset.manifest.shards()))[2] for dataset in (whole, cut)]
        assert shards[0].origins.xxh3 == shards[1].origins.xxh3


def test_a_sample_is_traced_to_its_file(folder, tmp_path):
    dataset = run(tmp_path / "out", steps.Read(read=str(folder)), steps.Images(resize=8))
    traced = trace(dataset, 0)
    [place] = traced.places
    assert traced.record["image"] != place.original["image"] == Path(place.origin.path).read_bytes()


def test_a_run_prints_what_it_skipped(tmp_path, capsys):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, kind, content in (("a.jpg", tarfile.REGTYPE, broken_exif()), ("b.jpg", tarfile.SYMTYPE, b"")):
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(content)
            tar.addfile(info, io.BytesIO(content))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("output: out\nsources: {p: {read: a.tar}}\nsteps: [images: {}, write: {format: webdataset}]\n")
    with pytest.raises(SystemExit, match="0"):
        main(["run", str(recipe), "--workers", "1", "--backend", "serial"])
    printed = capsys.readouterr().out
    assert "skipped in p: 1" in printed
    assert "broken_exif in p: 1" in printed
    with pytest.raises(SystemExit, match="0"):
        main(["inspect", str(tmp_path / "out")])
    assert f"{len(broken_exif()):,} bytes" in capsys.readouterr().out


def test_plain_bytes_of_tables_are_samples_like_all_others(tmp_path):
    """Sorted members, an index and random access do not depend on where the bytes were read."""
    contents = [photo(number) for number in range(6)]
    table = pa.table({"image": contents, "wav": [b"\xff"] * 6, "odd/name": [b"\xfe"] * 6, "n": range(6)})
    pq.write_table(table, tmp_path / "a.parquet")
    dataset = run(tmp_path / "out", steps.Read(read=str(tmp_path / "a.parquet")))
    [shard] = (tmp_path / "out").rglob("*.tar")
    with tarfile.open(shard) as tar:
        assert [name.partition(".")[2] for name in tar.getnames()] == ["jpg", "json", "wav"] * 6
    assert [record["image"] for record in dataset] == contents
    batch = next(iter(Stream(tmp_path / "out", shuffle=False, samples=Samples(decode="bytes")).batches(6)))
    assert list(batch["image"]) == contents
    assert list(batch["n"]) == [*range(6)]


def test_a_report_of_samples_reads_none_to_measure_texts(folder, tmp_path):
    dataset = run(tmp_path / "out", steps.Read(read=str(folder)))
    only_shard(dataset).unlink()
    assert measure_documents(dataset) == (None, [])


def test_a_report_of_members_named_like_texts_that_are_bytes(tmp_path, caplog):
    write_tar(tmp_path / "a.tar", [("a", {"txt": b"\xff\xfe", "jpg": photo(1)})])
    run(tmp_path / "out", steps.Read(read=str(tmp_path / "a.tar")))
    assert (tmp_path / "out" / "report.json").exists()
    assert not caplog.records
