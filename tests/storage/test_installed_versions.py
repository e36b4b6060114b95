"""Versions of installed packages: the same as importlib's."""

import importlib.metadata
import sys
import zipfile

import pytest

from gristmill.storage.installed_versions import find_version

NAMES = sorted({name for item in importlib.metadata.distributions() if (name := item.metadata["Name"])})


@pytest.mark.parametrize("spell", [str, str.upper, lambda name: name.replace("-", "_")])
def test_every_installed_package_has_the_version_that_importlib_finds(spell):
    assert {name: find_version(spell(name)) for name in NAMES} == {
        name: importlib.metadata.version(name) for name in NAMES
    }


def test_a_package_that_is_not_installed():
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        find_version("no-such-package")


def write_metadata(folder, version):
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fake_one\nVersion:  {version}\n\nVersion: 7\n")


def test_the_first_on_the_path_counts(tmp_path, monkeypatch):
    write_metadata(tmp_path / "a" / "Fake.One-1.0_beta.dist-info", "1.0-beta")
    write_metadata(tmp_path / "b" / "fake_one-2.0.dist-info", "2.0")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "b"), *sys.path])
    assert find_version("fake-one") == "1.0-beta"
    monkeypatch.setattr(sys, "path", [str(tmp_path / "b"), *sys.path])
    assert find_version("fake-one") == "2.0"


def test_what_is_not_in_a_folder_is_left_to_importlib(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "packages.zip", "w") as packages:
        packages.writestr("fake_two-3.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: fake-two\nVersion: 3.0\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "packages.zip")])
    assert find_version("fake-two") == "3.0"
