"""Images that records name: files of a folder, with the size in their headers."""

import pytest

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.images.image_files import ImageReader, list_images

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pictures/cats").mkdir(parents=True)
    Image.new("RGB", (4, 3)).save(tmp_path / "pictures/cats/a.png")
    (tmp_path / "pictures/b.jpg").write_bytes(b"no image")
    return tmp_path / "pictures"


def test_sizes_and_problems(folder):
    table = list_images(str(folder), "")
    entry = table.find("cats/a.png")
    assert (entry.width, entry.height, entry.problem) == (4, 3, "")
    assert table.find("b.jpg").problem
    assert table.find("c.png") is None


def test_a_name_may_have_the_folder_in_front(folder):
    table = list_images(str(folder), "")
    expected = table.find("cats/a.png")
    for name in (f"{folder}/cats/a.png", f"file://{folder}/cats/a.png", "./cats/../cats/a.png"):
        assert table.find(name) == expected


def test_the_content_is_that_of_the_images(folder):
    before = list_images(str(folder), "").content
    assert list_images(str(folder), "").content == before
    Image.new("RGB", (4, 5)).save(folder / "cats/a.png")
    assert list_images(str(folder), "").content != before


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(UsageError, match="neither tars nor images"):
        list_images(str(tmp_path), "")


def test_bytes_are_read_by_name_and_lost_ones_are_named(folder):
    reader = ImageReader(str(folder))
    assert reader.read("", "b.jpg") == b"no image"
    with pytest.raises(DamagedDatasetError, match=r"c\.png"):
        reader.read("", "c.png")
