"""Whatever a dataset holds, `verify` reads it: each file that was changed or deleted is named."""

import json
import shutil

import pytest
from gristmill_testing.small_tokenizers import trained

from gristmill import Recipe, run, steps
from gristmill.cli.main import main
from gristmill.shards.verify import verify

KINDS = ("dropped/length", "dropped/duplicates", "quarantine/", "tokenizer/", "report.json", "dataset_dict.json")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """With a file of every kind that there is."""
    folder = tmp_path_factory.mktemp("project")
    lines = [json.dumps({"text": f"document {number % 7} about a mill and its stones"}) for number in range(30)]
    (folder / "in.jsonl").write_text("\n".join([*lines, "not json", json.dumps({"text": "tiny"})]) + "\n")
    trained(folder / "tokenizer")
    recipe = Recipe(
        sources={"web": steps.Read(read=str(folder / "in.jsonl"))},
        steps=[
            steps.Length(min_chars=10),
            steps.Deduplicate(kind="exact", max_source_loss=1.0),
            steps.Tokenize(tokenizer=str(folder / "tokenizer")),
        ],
        output=str(folder / "out"),
        keep_dropped="all",
    )
    run(recipe, backend="serial", progress=False)
    return folder / "out"


def files_of(folder):
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not path.startswith(".gristmill"))


def test_every_file_is_read(dataset, tmp_path):
    files = files_of(dataset)
    for kind in (*KINDS, "train/state.json", "train/dataset_info.json", "train/web/"):
        assert any(path.startswith(kind) for path in files), kind
    assert verify(dataset)
    copy = tmp_path / "copy"
    for path in files:
        if path == "manifest.json":
            continue
        shutil.copytree(dataset, copy)
        content = (copy / path).read_bytes()
        for damaged in (bytes([content[0] ^ 1]) + content[1:], content[:-1], content + b"\n", b"", None):
            if path == "README.md" and damaged == content + b"\n":  # people write into the card
                continue
            if damaged is None:
                (copy / path).unlink()
            else:
                (copy / path).write_bytes(damaged)
            assert path in {problem.path for problem in verify(copy).problems}, (path, damaged)
        with pytest.raises(SystemExit) as ended:
            main(["verify", str(copy)])
        assert ended.value.code == 1
        shutil.rmtree(copy)


def test_a_file_more_in_the_tokenizer(dataset, tmp_path):
    """Readers of a tokenizer's folder take what is there: a file more changes what it does."""
    shutil.copytree(dataset, tmp_path / "copy")
    (tmp_path / "copy/tokenizer/chat_template.jinja").write_text("{{ messages }}")
    [problem] = verify(tmp_path / "copy").problems
    assert (problem.path, problem.kind) == ("tokenizer/chat_template.jinja", "unexpected")


@pytest.mark.parametrize("path", ["dropped/length-too_long.jsonl", "dropped/old/a.parquet", "quarantine/other.jsonl"])
def test_a_file_more_among_the_records_that_are_gone(dataset, tmp_path, path):
    """Whoever counts what was dropped reads the whole folder."""
    shutil.copytree(dataset, tmp_path / "copy")
    (tmp_path / "copy" / path).parent.mkdir(exist_ok=True)
    (tmp_path / "copy" / path).write_text("{}\n")
    [problem] = verify(tmp_path / "copy").problems
    assert (problem.path, problem.kind) == (path, "unexpected")
