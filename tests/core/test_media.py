"""Which columns of bytes are members of samples, and which of them are images."""

import pyarrow as pa
import pytest

from gristmill.core.media import (
    find_image_extension,
    find_member,
    get_extension,
    list_byte_columns,
    list_image_columns,
    make_key,
    make_member_field,
)


@pytest.mark.parametrize(
    ("name", "extension"),
    [("a.JPG", "jpg"), ("a.b/c", ""), (".hidden", ""), ("x/.hidden", ""), ("a.tar.gz", "gz"), ("a.", "")],
)
def test_an_extension_is_of_the_name_and_in_small_letters(name, extension):
    assert get_extension(name) == extension


def test_members_of_one_sample_have_one_key():
    assert {make_key(f"a.b/0001.{end}") for end in ("jpg", "seg.png", "json")} == {"a.b/0001"}
    assert make_key(".hidden.txt") == ".hidden"
    assert make_key("") == ""


def test_columns_of_images_are_found_by_member_or_name():
    schema = pa.schema(
        [
            make_member_field("photo", pa.large_binary(), "JPEG"),
            make_member_field("sound", pa.large_binary(), "wav"),
            pa.field("png", pa.binary()),
            pa.field("jpg", pa.string()),
        ]
    )
    assert find_member(schema.field("photo")) == "JPEG"
    assert find_member(schema.field("png")) is None
    assert list_byte_columns(schema) == ["photo", "sound", "png"]
    assert list_image_columns(schema) == ["photo", "png"]


def test_a_format_is_told_by_its_first_bytes():
    assert find_image_extension(b"\xff\xd8\xff\xe0") == "jpg"
    assert find_image_extension(b"\x89PNG\r\n\x1a\n") == "png"
    assert find_image_extension(b"") == "img"
