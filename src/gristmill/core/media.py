"""Samples: which columns of bytes are members of a sample, which of them are images, and the formats of images.

A column of a sample remembers the extension of the member that holds it in a tar (`MEMBER`). The images of a folder
are of several formats in one column; its extension is `ANY_IMAGE`, and the content says which one a tar gives to each.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pyarrow as pa

from gristmill.core.records import RECORD

SAMPLES = "samples"
"""The kind of a dataset whose records have bytes and no text."""
MEMBER = b"member"
"""Metadata of a field: the extension of the member that holds its value in a tar."""
ANY_IMAGE = "*image"
"""The extension of a column of images of any format."""
IMAGE = "image"
"""The column of the images of a folder, named as in Hugging Face's ImageFolder."""
LABEL = "label"
"""The column of the classes of the files of a folder: the name of the folder of each."""
LABEL_MEMBER = "label.txt"
"""Its member. Not `cls`: webdataset decodes that as a number."""
IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "avif", "jp2")
FILE_EXTENSIONS = (
    *IMAGE_EXTENSIONS,
    *("heic", "jxl", "mp3", "wav", "flac", "ogg", "opus", "m4a", "mp4", "webm", "mkv", "avi", "mov", "npy", "npz"),
)
"""Extensions of files that are samples without being asked for: images, sounds, films, arrays."""
BINARY_EXTENSIONS = (*FILE_EXTENSIONS, "pt", "pth", "safetensors", "pdf", "ply", "glb")
"""Extensions of members that are bytes, whatever a few of them look like."""
PATH_SUFFIX = "_path"
"""What the column of the paths of images or sounds is called, behind the name of their own column."""
_IMAGE_WORDS = ("image", "img", "photo", "picture", "jpg", "png")
EXTENSION_NAME = re.compile(r"(?!txt$|json$|__)[a-z0-9_][a-z0-9_.-]{0,30}")
"""Names of columns of bytes that can be the extension of a member."""
_MAGIC = (
    (0, b"\xff\xd8\xff", "jpg"),
    (0, b"\x89PNG\r\n\x1a\n", "png"),
    (0, b"GIF8", "gif"),
    (8, b"WEBP", "webp"),
    (0, b"BM", "bmp"),
    (0, b"II*\0", "tif"),
    (0, b"MM\0*", "tif"),
    (4, b"ftypavif", "avif"),
    (4, b"ftypheic", "heic"),
    (0, b"\0\0\0\x0cjP  ", "jp2"),
)


def find_image_extension(content: bytes) -> str:
    r"""Find the extension of an image's format by its first bytes; `img` if they are of no known format.

    >>> find_image_extension(b"GIF89a..."), find_image_extension(b"hello")
    ('gif', 'img')
    """
    return next((name for start, magic, name in _MAGIC if content.startswith(magic, start)), "img")


def get_extension(name: str) -> str:
    """Return the extension of a file's name, in lower case and without its dot.

    >>> get_extension("cats/1.tar.JPG"), get_extension("notes")
    ('jpg', '')
    """
    base = name.rpartition("/")[2]
    stem, dot, extension = base.rpartition(".")
    return extension.lower() if dot and stem else ""


def find_member(field: pa.Field) -> str | None:
    """Return the extension of the member that holds a column; None if it is not a member of its own."""
    value = (field.metadata or {}).get(MEMBER)
    return None if value is None else value.decode()


def make_member_field(name: str, kind: pa.DataType, extension: str) -> pa.Field:
    """Make the field of a column that is a member of its sample."""
    return pa.field(name, kind, metadata={MEMBER: extension.encode()})


def is_bytes(kind: pa.DataType) -> bool:
    """Whether a type is of plain bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def list_byte_columns(schema: pa.Schema) -> list[str]:
    """List the columns of bytes."""
    return [field.name for field in schema if is_bytes(field.type) and field.name != RECORD]


def list_image_columns(schema: pa.Schema) -> list[str]:
    """List the columns of images: by their extension, or by their name."""
    return [name for name in list_byte_columns(schema) if _is_image(schema.field(name))]


def _is_image(field: pa.Field) -> bool:
    extension = find_member(field) or field.name
    return extension in (ANY_IMAGE, IMAGE, "img") or extension.lower() in IMAGE_EXTENSIONS


def is_media(kind: pa.DataType) -> bool:
    """Whether a type is the struct in which `datasets` keeps an image or a sound: its bytes, and the path they had."""
    if not pa.types.is_struct(kind) or {field.name for field in kind} != {"bytes", "path"}:
        return False
    content = kind.field("bytes").type
    return is_bytes(content) or bool(pa.types.is_binary_view(content))


def list_image_structs(schema: pa.Schema) -> list[str]:
    """List the columns of such structs that are images: by the feature that `datasets` notes, or by their name."""
    features = _read_features(schema)
    return [
        field.name
        for field in schema
        if is_media(field.type)
        and (
            features[field.name] == "Image"
            if field.name in features
            else any(word in field.name.lower() for word in _IMAGE_WORDS)
        )
    ]


def _read_features(schema: pa.Schema) -> dict[str, Any]:
    """Read the names of the features of the columns that `datasets` has noted in a file."""
    try:
        noted = msgspec.json.decode((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = noted["info"]["features"]
        names = {name: feature.get("_type") for name, feature in features.items() if isinstance(feature, dict)}
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        return {}
    return {name: feature for name, feature in names.items() if feature is not None}
