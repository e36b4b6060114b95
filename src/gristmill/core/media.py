"""Samples: which columns of bytes are members of a sample, which of them are images, and the formats of images.

A column of a sample remembers the extension of the member that holds it in a tar (`MEMBER`). The images of a folder
are of several formats in one column; its extension is `ANY_IMAGE`, and the content says which one a tar gives to each.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from gristmill.core.records import RECORD

if TYPE_CHECKING:
    from collections.abc import Mapping

SAMPLES = "samples"
"""The kind of a dataset whose records have bytes and no text."""
HUGGING_FACE = b"huggingface"
"""Metadata of a schema: the features of its columns, as `datasets` notes them."""
FEATURE = b"feature"
"""Metadata of a field between reading and writing: its feature as JSON, if that has names of labels."""
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
"""Extensions of members that are bytes, even if a few of them look like text."""
PATH_SUFFIX = "_path"
"""What the name of the column of paths of images or sounds adds to that of their column."""
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


def make_key(relative: str) -> str:
    """Make the key of a sample: its path, up to the first dot of its name.

    >>> make_key("cats/a.b/0001.seg.png")
    'cats/a.b/0001'
    """
    folder, slash, name = relative.rpartition("/")
    stem = name[0] + name[1:].partition(".")[0] if name else name
    return f"{folder}{slash}{stem}"


def find_member(field: pa.Field) -> str | None:
    """Return the extension of the member that holds a column; None if it is no member."""
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
    extensions = {name: find_member(schema.field(name)) or name for name in list_byte_columns(schema)}
    known = (ANY_IMAGE, IMAGE, "img")
    return [
        name for name, extension in extensions.items() if extension in known or extension.lower() in IMAGE_EXTENSIONS
    ]


def is_media(kind: pa.DataType) -> bool:
    """Whether a type is the struct in which `datasets` keeps an image or a sound: its bytes, and the path they had."""
    if not pa.types.is_struct(kind) or {field.name for field in kind} != {"bytes", "path"}:
        return False
    content = kind.field("bytes").type
    return is_bytes(content) or bool(pa.types.is_binary_view(content))


def list_image_structs(schema: pa.Schema) -> list[str]:
    """List the columns of such structs that are images: by the feature that `datasets` notes, or by their name."""
    features = {name: kind for name, feature in read_features(schema).items() if (kind := feature.get("_type"))}
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


def read_features(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Read the features that `datasets` has noted in a file, by column."""
    try:
        features = msgspec.json.decode((schema.metadata or {}).get(HUGGING_FACE, b"{}"))["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        return {}


def find_labels(schema: pa.Schema) -> dict[str, bytes]:
    """Find the columns whose features name labels, which no type tells, and these features as JSON."""
    encoded = {name: msgspec.json.encode(feature) for name, feature in read_features(schema).items()}
    return {name: feature for name, feature in encoded.items() if b'"_type":"ClassLabel"' in feature}


def note_features(schema: pa.Schema, features: Mapping[str, Any]) -> pa.Schema:
    """Note features of columns where `datasets` finds them. It takes those of other columns from their types."""
    if not features:
        return schema
    noted = msgspec.json.encode({"info": {"features": features}})
    return schema.with_metadata({**(schema.metadata or {}), HUGGING_FACE: noted})


def collect_features(schema: pa.Schema) -> pa.Schema:
    """Move the features of the columns to the metadata of the schema, as they are written."""
    features = {field.name: field.metadata[FEATURE] for field in schema if FEATURE in (field.metadata or {})}
    for name in features:
        index = schema.get_field_index(name)
        rest = {key: value for key, value in schema.field(index).metadata.items() if key != FEATURE}
        schema = schema.set(index, schema.field(index).with_metadata(rest or None))
    return note_features(schema, {name: msgspec.json.decode(feature) for name, feature in features.items()})
