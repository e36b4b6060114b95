"""`work`: intermediate data in a place of its own, which a pointer in the output leads to."""

import json
import random
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import gristmill as gm
from gristmill import Recipe, steps
from gristmill.cli.main import main
from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.core.recipe import Source
from gristmill.pipeline.publishing.clean import clean
from gristmill.pipeline.stages.receipts import Receipts
from gristmill.pipeline.work_folder import (
    find_intermediate_folder,
    open_intermediate_folder,
    remove_intermediate_data,
)
from gristmill.storage.commit import write_file
from gristmill.storage.folders import open_folder
from gristmill.storage.locations import parse_location
from gristmill.storage.stores import credentials


@pytest.fixture
def corpus(tmp_path):
    """Two sources with copies, repeated lines and questions of a benchmark."""
    rng = random.Random(1)
    words = [f"word{number}" for number in range(300)]
    questions = [" ".join(rng.choices(words, k=20)) for _ in range(5)]
    texts = [" ".join(rng.choices(words, k=rng.randint(5, 80))) for _ in range(120)]
    texts += [f"{text}\n{rng.choice(questions)}\nthe same line everywhere" for text in rng.choices(texts, k=40)]
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, part in (("web", texts), ("books", texts[:50])):
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in part))
    (folder / "ask.jsonl").write_text("\n".join(json.dumps({"question": text}) for text in questions))
    return folder


@pytest.fixture(params=["folder", "memory", "s3"])
def work(request, tmp_path):
    if request.param == "s3":
        return f"{request.getfixturevalue('s3').url}/scratch"
    return str(tmp_path / "scratch") if request.param == "folder" else f"memory://{uuid.uuid4().hex}/scratch"


def make_recipe(corpus, output, work=None):
    """A recipe with every kind of barrier."""
    return Recipe(
        sources={
            "web": Source(steps.Read(read=f"{corpus}/web.jsonl"), [steps.Length(min_chars=20)]),
            "books": steps.Read(read=f"{corpus}/books.jsonl"),
        },
        steps=[
            steps.Deduplicate(),
            steps.Deduplicate(kind="lines"),
            steps.Decontaminate(benchmarks={"ask": f"{corpus}/ask.jsonl"}, action="cut"),
            steps.Shuffle(),
            steps.Limit(max_records=100),
            steps.Split(validation=10),
            steps.Mix(weights={"web": 0.7, "books": 0.3}, size=40, by="documents"),
            steps.Write(format="jsonl"),
        ],
        output=str(output),
        work=work,
    )


def make_small_recipe(corpus, output, work=None):
    return Recipe(
        sources={"web": steps.Read(read=f"{corpus}/web.jsonl")},
        steps=[steps.Deduplicate(kind="lines"), steps.Shuffle(), steps.Write(format="jsonl")],
        output=str(output),
        work=work,
    )


def command(*words):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 0


def run(recipe, **credentials):
    return gm.run(recipe, backend="serial", progress=False, **credentials)


def list_files(folder):
    return {path for path, _ in open_folder(parse_location(folder)).list_below()}


def read_tree(folder):
    paths = [path for path in sorted(Path(folder).rglob("*")) if path.is_file() and path.stem != "report"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if "index" not in path.parts}


def test_the_same_dataset_and_nothing_is_left(corpus, tmp_path, work):
    plain = run(make_recipe(corpus, tmp_path / "plain"))
    write_file(parse_location(work) / "someone/else.txt", b"not ours", "test")
    separate = run(make_recipe(corpus, tmp_path / "out", work))
    assert separate.manifest.fingerprint == plain.manifest.fingerprint
    assert separate.manifest.dataset_hash == plain.manifest.dataset_hash
    trees = [read_tree(tmp_path / name) for name in ("plain", "out")]
    assert trees[0].keys() == trees[1].keys()
    assert [name for name in trees[0] if trees[0][name] != trees[1][name]] in ([], ["manifest.json"])
    assert list_files(work) == {"someone/else.txt"}
    assert run(make_recipe(corpus, tmp_path / "out", work)).was_up_to_date


def test_with_workers_and_the_command_line(corpus, tmp_path, s3, capsys):
    plain = run(make_small_recipe(corpus, tmp_path / "plain"))
    (tmp_path / "recipe.yaml").write_text(gm.dump_recipe(make_small_recipe(corpus, tmp_path / "out")))
    words = ["run", tmp_path / "recipe.yaml", "--workers", 2, "--backend", "processes", "--json"]
    command(*words, "--set", f"work={s3.url}/tmp", "--set", "run.keep_work=true")
    assert json.loads(capsys.readouterr().out)["dataset_hash"] == plain.manifest.dataset_hash
    [kept] = {path.partition("/")[0] for path in list_files(f"{s3.url}/tmp")}
    assert kept.startswith("gristmill-")
    assert not (tmp_path / "out/.gristmill/stored").exists()
    command("status", tmp_path / "out", "--json")
    assert json.loads(capsys.readouterr().out)["work"] == f"{s3.url}/tmp/{kept}"
    credentials._options.clear()  # as in another process
    with pytest.raises(SystemExit):
        main(["clean", str(tmp_path / "out")])
    refusal = " ".join(capsys.readouterr().err.split())
    assert f"{s3.url}/tmp/{kept}; nothing there was opened or removed" in refusal
    assert f"--bucket {s3.url}" in refusal
    command("clean", tmp_path / "out", "--bucket", s3.url)
    assert f"{s3.url}/tmp/gristmill-" in capsys.readouterr().out
    assert not list_files(f"{s3.url}/tmp")
    assert gm.open_dataset(tmp_path / "out").verify().problems == []


KILLED = """
import os, signal, sys
import gristmill as gm
from gristmill.pipeline.stages.receipts import Receipts
real, left = Receipts.add, [int(sys.argv[2])]
def add(self, name, result):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, name, result)
Receipts.add = add
gm.run(gm.load_recipe(sys.argv[1]), backend="serial", progress=False)
"""


@pytest.fixture
def killed(corpus, tmp_path):
    """A run that was killed after three receipts, in the middle of its barriers."""
    recipe = make_small_recipe(corpus, tmp_path / "out", str(tmp_path / "scratch"))
    (tmp_path / "recipe.yaml").write_text(gm.dump_recipe(recipe))
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "recipe.yaml"), "3"], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert list_files(tmp_path / "scratch")
    return recipe


def test_resume_finds_it(killed, corpus, tmp_path, monkeypatch):
    place, written = find_intermediate_folder(tmp_path / "out"), []
    real = Receipts.add
    monkeypatch.setattr(Receipts, "add", lambda self, *entry: (written.append(entry), real(self, *entry)))
    resumed = run(killed)
    num_resumed = len(written)
    assert place is not None
    assert not place.exists()
    plain = run(make_small_recipe(corpus, tmp_path / "plain"))
    assert resumed.manifest.dataset_hash == plain.manifest.dataset_hash
    assert num_resumed == len(written) - num_resumed - 3, "what had a receipt was done again"
    assert list_files(tmp_path / "scratch") == set()


def test_what_was_left_in_another_place_goes(killed, corpus, tmp_path):
    (tmp_path / "scratch/mine.txt").write_text("mine")
    again = run(make_small_recipe(corpus, tmp_path / "out", str(tmp_path / "elsewhere")), keep_work=True)
    assert again.manifest.dataset_hash == run(make_small_recipe(corpus, tmp_path / "plain")).manifest.dataset_hash
    assert list_files(tmp_path / "scratch") == {"mine.txt"}
    removed = clean(tmp_path / "out")
    assert [path for path in removed.files if path.startswith(f"{tmp_path}/elsewhere/gristmill-")]
    assert list_files(tmp_path / "elsewhere") == set()


def test_a_copy_of_an_output_leaves_the_data_of_the_other(killed, corpus, tmp_path):
    left = list_files(tmp_path / "scratch")
    for name in ("cleaned", "resumed"):
        shutil.copytree(tmp_path / "out", tmp_path / name)
    assert not [path for path in clean(tmp_path / "cleaned").files if "scratch" in path]
    assert list_files(tmp_path / "scratch") == left
    run(make_small_recipe(corpus, tmp_path / "resumed", str(tmp_path / "scratch")))
    assert list_files(tmp_path / "scratch") == left
    (tmp_path / "out").rename(tmp_path / "moved")
    clean(tmp_path / "moved")
    assert not list_files(tmp_path / "scratch")


def test_a_pointer_deletes_nothing_that_is_not_its_own(tmp_path):
    """The output may come from someone else, whose pointer names any folder."""
    pointer = tmp_path / "out/.gristmill/intermediate.json"

    def clean_with(folder, token):
        pointer.parent.mkdir(parents=True, exist_ok=True)
        pointer.write_text(json.dumps({"folder": str(folder), "token": token}))
        clean(tmp_path / "out")

    (tmp_path / "precious/gristmill-abc").mkdir(parents=True)
    (tmp_path / "precious/gristmill-abc/data").write_text("data")
    clean_with(tmp_path / "precious", "abc")
    assert list_files(tmp_path / "precious") == {"gristmill-abc/data"}
    (tmp_path / "precious/gristmill-abc/gristmill-owner.json").write_text('{"token": "abc", "output": "out"}')
    (tmp_path / "links").mkdir()
    (tmp_path / "links/gristmill-abc").symlink_to(tmp_path / "precious/gristmill-abc")
    clean_with(tmp_path / "links", "abc")
    assert (tmp_path / "precious/gristmill-abc/data").exists()
    with pytest.raises(DamagedDatasetError):
        clean_with(tmp_path, "../precious")


def test_a_pointer_to_a_bucket_that_nobody_named_is_not_followed(corpus, tmp_path):
    """No request is made: the bucket does not exist, and neither does its store."""
    pointer = tmp_path / "out/.gristmill/intermediate.json"
    pointer.parent.mkdir(parents=True)
    content = json.dumps({"folder": "s3://of-someone-else/private", "token": "abc"})
    pointer.write_text(content)
    for work in (lambda: clean(tmp_path / "out"), lambda: run(make_small_recipe(corpus, tmp_path / "out"))):
        with pytest.raises(UsageError, match="s3://of-someone-else/private/gristmill-abc; nothing there was opened"):
            work()
        assert pointer.read_text() == content
    pointer.unlink()
    clean(tmp_path / "out")


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ("out", "is the output"),
        ("out/work", "is inside the output"),
        ("corpus", "is the work of this recipe"),
        ("corpus/web.jsonl", "cannot be written"),
        ("", "work is empty"),
        ("s3://key:secret@bucket/tmp", "may not hold a secret"),
        ("http://host/tmp", "not written safely"),
        ("s3://", "names no bucket"),
    ],
)
def test_wrong_places_are_refused(corpus, tmp_path, work, message):
    place = work if "://" in work or not work else str(tmp_path / work)
    with pytest.raises(UsageError, match=message) as caught:
        run(make_small_recipe(corpus, tmp_path / "out", place))
    assert "secret@" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_command_refuses_them_too(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(gm.dump_recipe(make_small_recipe(corpus, tmp_path / "out")))
    for work, message in [("", "work is empty"), ("s3://", "names no bucket")]:
        with pytest.raises(SystemExit) as ended:
            main(["run", "recipe.yaml", "--backend", "serial", "--set", f"work={work!r}"])
        assert ended.value.code
        assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"corpus", "recipe.yaml"}


def test_memory_is_refused_for_workers_elsewhere(corpus, tmp_path):
    with pytest.raises(UsageError, match="in the memory of this process"):
        gm.run(make_small_recipe(corpus, tmp_path / "out", "memory://x/y"), backend="processes", progress=False)


def test_parts_of_killed_uploads_go_with_the_data(s3, tmp_path):
    credentials.name_bucket(s3.url)
    place = open_intermediate_folder(tmp_path, parse_location(f"{s3.url}/scratch"), "run1")
    theirs = "scratch/gristmill-other/y"
    for key in (f"scratch/{place.name}/x", theirs):
        s3.client.create_multipart_upload(Bucket=s3.name, Key=key)
    remove_intermediate_data(tmp_path)
    assert s3.unfinished_uploads() == [theirs]
    assert s3.list_keys() == []
