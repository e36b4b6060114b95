"""The package as an index would get it: both archives are built, and the wheel works where nothing else of us is."""

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="needs hatchling: pip install hatchling hatch-fancy-pypi-readme")

TOP = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=TOP, check=True, capture_output=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_holds_each_file_of_the_source_and_nothing_else(archives):
    names = zipfile.ZipFile(archives[0]).namelist()
    packed = {name.removeprefix("gristmill/") for name in names if name.startswith("gristmill/")}
    listed = subprocess.run(["git", "ls-files", "src/gristmill"], cwd=TOP, check=True, capture_output=True, text=True)
    assert packed == {name.removeprefix("src/gristmill/") for name in listed.stdout.split()}
    assert "py.typed" in packed
    assert all(name.startswith(("gristmill/", "gristmill-")) for name in names)


def test_the_description_stands_alone(archives):
    with zipfile.ZipFile(archives[0]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(wheel.read(name))
    description = metadata.get_payload()
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    assert "# Gristmill" in description
    # There are no files next to it on an index, so no link may lead to one.
    assert [link for link in re.findall(r"\]\(([^)]+)\)", description) if not link.startswith("https://")] == []


def test_the_source_archive_builds_the_same_wheel(archives, tmp_path):
    wheel, sdist = archives
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_installed_wheel_runs_a_recipe(archives, tmp_path):
    target, project = tmp_path / "target", tmp_path / "project"
    project.mkdir()
    options = ("--quiet", "--no-deps", "--no-compile", "--target")
    subprocess.run([sys.executable, "-m", "pip", "install", *options, target, archives[0]], check=True)
    environment = {**os.environ, "PYTHONPATH": str(target), "PYTHONSAFEPATH": "1"}

    def run(*words):
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=project, env=environment, check=True, capture_output=True, text=True).stdout

    assert str(target) in run("-c", "import gristmill; print(gristmill.__file__)")
    run("-m", "gristmill", "init", "corpus")
    run("-m", "gristmill", "run", "corpus/recipe.yaml")
    assert "damage" not in run("-m", "gristmill", "verify", "corpus/out")
