"""Folders that somebody else has prepared: no command reads, moves or deletes what lies outside of them."""

import json
import os
import shutil

import msgspec
import pytest
from gristmill_testing.token_datasets import write_tokens

from gristmill import export, load_recipe, mix, open_dataset, run
from gristmill.cli.main import main
from gristmill.core.errors import DamagedDatasetError, GristmillError, UsageError
from gristmill.pipeline.publishing.clean import clean
from gristmill.shards.manifest_file import dump_manifest, load_manifest
from gristmill.shards.stored_files import StoredFile
from gristmill.shards.verify import verify
from gristmill.steps import Read, Write
from gristmill.storage.parallel_files import PreallocatedFiles
from gristmill.stream import Stream

OUTSIDE = ["../v/p.txt", "train/../../v/p.txt", "absolute"]


@pytest.fixture
def victim(tmp_path):
    """A file that is nobody's business; looked at again when the test is over."""
    path = tmp_path / "v/p.txt"
    path.parent.mkdir()
    path.write_text("mine")
    yield path
    assert path.read_text() == "mine"
    assert [entry.name for entry in path.parent.iterdir()] == ["p.txt"]


@pytest.fixture
def finished(mill, tmp_path):
    """A dataset and its recipe."""
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(5)))
    recipe = mill.recipe({"web": Read(read=str(tmp_path / "in.jsonl"))}, [Write(format="arrow")])
    mill.run(recipe)
    return recipe


def named(path, victim):
    return str(victim) if path == "absolute" else path


def exit_code(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def write_sealed(folder, manifest):
    """As an attacker does: with checksums that fit."""
    (folder / "manifest.json").write_bytes(b"".join(dump_manifest(manifest.seal())))


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("field", ["side_files", "stale", "from", "to"])
@pytest.mark.parametrize("has_dataset", [True, False])
def test_a_note_of_moves(mill, finished, victim, path, field, has_dataset):
    path = named(path, victim)
    checksum = load_manifest(mill.output).checksum
    note = {"manifest": checksum if has_dataset else "x", "moves": [], "side_files": [], "stale": []}
    if field in ("from", "to"):
        note["moves"] = [[path, "train/x"] if field == "from" else ["manifest.json", path]]
    else:
        note[field] = [path]
    (mill.output / ".gristmill").mkdir(exist_ok=True)
    (mill.output / ".gristmill/moves.json").write_text(json.dumps(note))
    before = mill.files()
    with pytest.raises(DamagedDatasetError, match=r"moves\.json"):
        clean(mill.output)
    for options in ({"overwrite": True}, {"update": True}, {}):
        with pytest.raises(DamagedDatasetError, match=r"moves\.json"):
            mill.run(finished, **options)
    assert mill.files() == before
    assert exit_code("clean", mill.output) == 1


def with_file(manifest, path, place):
    file = StoredFile(path=path, bytes=4, xxh3="0" * 16)
    shard = manifest.splits["train"]["web"][0]
    return {
        "dropped": lambda: msgspec.structs.replace(manifest, dropped=[file]),
        "quarantine": lambda: msgspec.structs.replace(
            manifest, quarantine=msgspec.structs.replace(manifest.quarantine, files=[file])
        ),
        "shard": lambda: msgspec.structs.replace(
            manifest, splits={"train": {"web": [msgspec.structs.replace(shard, path=path)]}}
        ),
        "origins": lambda: msgspec.structs.replace(
            manifest, splits={"train": {"web": [msgspec.structs.replace(shard, origins=file)]}}
        ),
        "split": lambda: msgspec.structs.replace(manifest, splits={path: manifest.splits["train"]}),
        "source": lambda: msgspec.structs.replace(manifest, splits={"train": {path: [shard]}}),
    }[place]()


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("place", ["dropped", "quarantine", "shard", "origins", "split", "source"])
def test_a_manifest(mill, finished, victim, tmp_path, path, place):
    write_sealed(mill.output, with_file(load_manifest(mill.output), named(path, victim), place))
    before = mill.files()
    out = str(mill.output)
    for action in (
        lambda: clean(mill.output),
        lambda: mill.run(finished, overwrite=True),
        lambda: mill.run(finished, update=True),
        lambda: verify(out),
        lambda: open_dataset(out),
        lambda: Stream(out),
        lambda: export(out, to="jsonl", path=tmp_path / "exported/x", backend="serial"),
        lambda: mix({"a": (out, 1.0)}, tmp_path / "mixed", size=1, by="rows"),
        lambda: mill.run(
            msgspec.structs.replace(finished, sources={"again": Read(read=out)}, output=str(tmp_path / "n"))
        ),
    ):
        with pytest.raises(DamagedDatasetError, match=r"manifest\.json"):
            action()
    assert mill.files() == before
    for command in ("inspect", "verify", "clean"):
        assert exit_code(command, out) == 1


@pytest.mark.parametrize("receipts", ["units.jsonl", "receipts.jsonl"])
@pytest.mark.parametrize("path", [*OUTSIDE, ".gristmill/../../v/p.txt"])
def test_receipts(mill, finished, victim, receipts, path):
    """A receipt that names files elsewhere is none: its task is done again."""
    units = mill.output / ".gristmill/units.jsonl"
    receipt = json.loads(units.read_text())
    receipt["result"]["split_files"][0]["data"] |= {"path": named(path, victim), "bytes": len("mine")}
    shutil.rmtree(mill.output)
    units.parent.mkdir(parents=True)
    (units.parent / receipts).write_text(json.dumps(receipt) + "\n")
    assert len(mill.run(finished).dataset()) == 5


@pytest.mark.parametrize(
    "link",
    [
        ".gristmill",
        ".gristmill/work",
        ".gristmill/stored",
        ".gristmill/units.jsonl",
        ".gristmill/receipts.jsonl",
        ".gristmill-lock",
    ],
)
def test_links_where_a_run_writes(mill, finished, victim, link):
    place = mill.output / link
    if place.is_dir():
        for file in place.iterdir():
            file.unlink()
        place.rmdir()
    place.unlink(missing_ok=True)
    place.symlink_to(victim.parent if "." not in place.name[1:] and "lock" not in link else victim)
    for action in (lambda: clean(mill.output), lambda: mill.run(finished, overwrite=True)):
        with pytest.raises(GristmillError, match="symbolic link"):
            action()


def test_links_inside_the_work_folder_are_not_followed(mill, finished, victim):
    work = mill.output / ".gristmill"
    (work / "work").mkdir()
    (work / "work/folder").symlink_to(victim.parent)
    (work / "work/file").symlink_to(victim)
    (mill.output / "manifest.json").unlink()
    clean(mill.output)
    assert not work.exists()


@pytest.mark.parametrize("link", ["train", "train/web", "train/web/shard-00000.arrow"])
def test_shards_behind_links(mill, finished, tmp_path, link):
    """Outside of the folder they are refused; inside, and where the folder itself is a link, they are read."""
    away = tmp_path / "away"
    (mill.output / link).rename(away)
    (mill.output / link).symlink_to(away)
    out = str(mill.output)
    for action in (
        lambda: list(open_dataset(out)),
        lambda: export(out, to="jsonl", path=tmp_path / "exported/x", backend="serial"),
        lambda: mix({"a": (out, 1.0)}, tmp_path / "mixed", size=1, by="rows"),
        lambda: mill.run(finished, overwrite=True),
    ):
        with pytest.raises(DamagedDatasetError, match="symbolic link"):
            action()
    assert {problem.kind for problem in verify(out).problems} == {"outside"}
    (mill.output / link).unlink()
    away.rename(mill.output / "elsewhere")
    (mill.output / link).symlink_to(mill.output / "elsewhere")
    (tmp_path / "linked").symlink_to(mill.output)
    assert len(list(open_dataset(tmp_path / "linked"))) == 5


def test_a_stream_of_links(tmp_path):
    folder = write_tokens(tmp_path / "out", {("train", "web"): [[[1, 2, 3]]]})
    shard = folder / "train/web/shard-00000.arrow"
    shard.rename(tmp_path / "away")
    shard.symlink_to(tmp_path / "away")
    with pytest.raises(DamagedDatasetError, match="symbolic link"):
        Stream(folder)


@pytest.mark.parametrize("path", OUTSIDE)
def test_the_journal_of_a_mix_that_was_killed(tmp_path, victim, path):
    folder = write_tokens(tmp_path / "out", {("train", "web"): [[[1, 2, 3]]]})
    target = tmp_path / "mixed"
    (target / ".gristmill").mkdir(parents=True)
    journal = {"manifest": "0" * 16, "moves": [], "side_files": [named(path, victim)], "stale": []}
    (target / ".gristmill/moves.json").write_text(json.dumps(journal))
    with pytest.raises(DamagedDatasetError, match=r"moves\.json"):
        mix({"a": (folder, 1.0)}, target, size=3)


@pytest.mark.parametrize("names", [["../v/p.txt"], ["v/p.txt"], ["other.txt"]])
def test_the_note_of_an_export_that_was_killed(tmp_path, victim, names):
    """It names files that begin with the prefix; another one is left alone, one elsewhere is refused."""
    with PreallocatedFiles(tmp_path / "x") as files:
        note = files._journal
    (tmp_path / "other.txt").write_text("mine")
    note.write_text(json.dumps(names))
    if "/" in names[0]:
        with pytest.raises(DamagedDatasetError, match="names a file outside"), PreallocatedFiles(tmp_path / "x"):
            pass
    else:
        with PreallocatedFiles(tmp_path / "x"):
            pass
    assert (tmp_path / "other.txt").read_text() == "mine"


@pytest.mark.parametrize("filename", ["../v/p.txt", "/etc/passwd", ".."])
def test_a_saved_dataset_of_hugging_face(mill, tmp_path, victim, filename):
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": filename}]}))
    with pytest.raises(GristmillError, match=r"state\.json"):
        mill.run(mill.recipe({"web": Read(read=str(folder))}, []))


def test_a_work_folder_that_no_run_made_is_refused_and_its_files_stay(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    out = tmp_path / "out"
    (out / ".gristmill").mkdir(parents=True)
    for name in ("photo.jpg", ".gristmill/mine.txt"):
        (out / name).write_text("precious")
    (tmp_path / "r.yaml").write_text("{sources: {a: {read: a.jsonl}}, steps: [length: {min_chars: 1}], output: out}")
    with pytest.raises(UsageError, match="not made by gristmill"):
        run(load_recipe(tmp_path / "r.yaml"), backend="serial")
    (out / "photo.jpg").unlink()
    (out / ".gristmill/mine.txt").unlink()
    run(load_recipe(tmp_path / "r.yaml"), backend="serial")
    (out / ".gristmill/mine.txt").write_text("precious")
    clean(out)
    run(load_recipe(tmp_path / "r.yaml"), backend="serial", overwrite=True)
    assert (out / ".gristmill/mine.txt").read_text() == "precious"


def test_an_output_that_the_inputs_would_match_is_refused_at_once(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text('{"text": "one"}\n')
    for pattern in ("in", "in/**"):
        (tmp_path / "r.yaml").write_text(f"{{sources: {{a: {{read: {pattern}}}}}, steps: [], output: in/out}}")
        with pytest.raises(UsageError, match="output of this recipe"):
            run(load_recipe(tmp_path / "r.yaml"), backend="serial")


@pytest.mark.parametrize("kind", ["pipe", "device", "large"])
def test_what_cannot_be_a_recipe_is_not_read(tmp_path, kind):
    path = tmp_path / "r.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "large":
        path.write_bytes(b"#" * (17 << 20))
    with pytest.raises(UsageError, match=r"regular file|at most"):
        load_recipe("/dev/zero" if kind == "device" else path)
