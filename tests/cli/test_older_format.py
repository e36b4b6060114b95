"""A dataset of an older format version is refused by whatever opens it, in one line that says what to do."""

import shutil

import pytest

from gristmill.core.errors import UsageError
from gristmill.shards.manifest import FORMAT_VERSION
from gristmill.stream import Stream

REMEDY = "build the dataset again, in another folder"
SOURCE = """\
output: new
sources:
  old: {read: out}
steps:
  - write: {format: jsonl}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory, dataset):
    """The project of the finished dataset, as an older Gristmill would have left it."""
    folder = tmp_path_factory.mktemp("older") / "project"
    shutil.copytree(dataset.parent, folder)
    path = folder / "out/manifest.json"
    content = path.read_text()
    older = content.replace(f'"format_version": {FORMAT_VERSION}', f'"format_version": {FORMAT_VERSION - 1}')
    assert older != content
    path.write_text(older)
    (folder / "source.yaml").write_text(SOURCE)
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "out"),
        ("verify", "out"),
        ("export", "out", "--to", "jsonl"),
        ("run", "recipe.yaml"),
        ("run", "recipe.yaml", "--update"),
        ("run", "recipe.yaml", "--overwrite"),
        ("run", "source.yaml"),
    ],
    ids=" ".join,
)
def test_commands_refuse_it_in_one_line(gristmill, project, arguments):
    before = _list_files(project)
    line, *notes = gristmill(*arguments, folder=project, fails=2).err.splitlines()
    assert notes == (["  note: in source old"] if arguments[1] == "source.yaml" else [])
    assert f"format version {FORMAT_VERSION - 1}" in line
    assert line.endswith(REMEDY)
    assert _list_files(project) == before


def test_the_stream_refuses_it(project):
    with pytest.raises(UsageError, match=REMEDY):
        Stream(project / "out")


def _list_files(folder):
    return sorted(path for path in folder.rglob("*") if not path.name.startswith(".gristmill"))
