import json
import os

import pytest

from gristmill.core.errors import GristmillError
from gristmill.pipeline.jobs.demo import (
    RECIPE,
    ExtractAndDieOnce,
    count_source_files,
    extract_docstrings,
    find_source_files,
    prepare_demo,
)
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.recipe.load import load_recipe


@pytest.fixture
def library(tmp_path):
    """Packages of known size, one file that is no text, and one installed package that does not count."""
    folder = tmp_path / "lib"
    for number in range(40):
        path = folder / f"package{number % 2}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'"""Module {number} of a package."""\n\ndef f():\n    "Gives {number}."\n' + "x = 1\n" * number
        )
    (folder / "wrong.py").write_text("def (:\n")
    (folder / "latin.py").write_bytes(b"# \xe9\n")
    (folder / "notes.txt").write_text("not Python\n")
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "installed.py").write_text("not ours\n")
    return folder


def test_nothing_is_missing_although_a_worker_is_killed(library, tmp_path):
    prepared = prepare_demo(tmp_path / "demo", library, workers=2, progress=False, vocab_size=300)
    assert prepared.killed_pid != os.getpid()
    assert (prepared.num_files, prepared.num_docstrings, prepared.num_unreadable) == (42, 80, 1)
    code = [json.loads(line) for line in (tmp_path / "demo/data/code.jsonl").read_bytes().splitlines()]
    assert {record["file"] for record in code} == {
        path.relative_to(library).as_posix() for path in find_source_files(library) if path.name != "latin.py"
    }
    docs = [json.loads(line) for line in (tmp_path / "demo/data/docs.jsonl").read_bytes().splitlines()]
    assert {"text": "Gives 3.", "name": "f", "file": "package1/module3.py"} in docs


def test_its_recipe_runs_and_is_up_to_date_the_second_time(library, tmp_path):
    for expected in (False, True):
        prepared = prepare_demo(tmp_path / "demo", library, workers=1, progress=False, vocab_size=300)
        result = run_recipe(load_recipe(prepared.recipe), RunOptions(backend="serial", progress=False))
        assert result.was_up_to_date == expected
    assert result.manifest.row_length == 1024
    assert result.dataset().verify()


def test_a_recipe_that_was_edited_stays(library, tmp_path):
    prepare_demo(tmp_path / "demo", library, workers=1, progress=False, vocab_size=300)
    edited = RECIPE.replace("row_length: 1024", "row_length: 64")
    (tmp_path / "demo/recipe.yaml").write_text(edited)
    prepare_demo(tmp_path / "demo", library, workers=1, progress=False, vocab_size=300)
    assert (tmp_path / "demo/recipe.yaml").read_text() == edited


def test_a_folder_of_the_user_is_refused(library, tmp_path):
    (tmp_path / "mine/data").mkdir(parents=True)
    (tmp_path / "mine/data/code.jsonl").write_text("precious")
    with pytest.raises(GristmillError, match="other things"):
        prepare_demo(tmp_path / "mine", library, workers=1, progress=False)
    assert (tmp_path / "mine/data/code.jsonl").read_text() == "precious"


def test_names_of_docstrings():
    code = (
        b'"M."\nclass A:\n    "C."\n    def f(self):\n        "F."\n        def g(): "G."\nif 1:\n    def h(): "H."\n'
    )
    assert extract_docstrings(code).docstrings == [
        ("module", "M."),
        ("A", "C."),
        ("A.f", "F."),
        ("A.f.g", "G."),
        ("h", "H."),
    ]
    assert extract_docstrings(b'"\\ud800"\n').docstrings == []


def test_source_files_and_file_system_account_agree(library):
    paths = find_source_files(library)
    assert len(paths) == 42
    assert count_source_files(library) == (42, sum(path.stat().st_size for path in paths))


def test_loss_is_an_error(library, tmp_path, monkeypatch):
    monkeypatch.setattr("gristmill.pipeline.jobs.demo.count_source_files", lambda folder: (43, 7804))
    with pytest.raises(GristmillError, match="do not balance"):
        prepare_demo(tmp_path / "demo", library, workers=1, progress=False)


def test_folder_without_sources_is_an_error(tmp_path):
    with pytest.raises(GristmillError, match="no Python source files"):
        prepare_demo(tmp_path / "demo", tmp_path)


def test_the_calling_process_never_kills_itself(library, tmp_path):
    victim = library / "wrong.py"
    found = ExtractAndDieOnce(victim=victim, marker=tmp_path / "killed", parent_pid=os.getpid())(victim)
    assert (found.num_bytes, found.text, found.docstrings) == (7, "def (:\n", [])
