"""Images that records refer to by name: files of a folder, or members of tars.

The plan lists them once, with their sizes from their headers: about 0.1 ms each. A row then refers to an image by its
tar and its name in it (of a folder, only the name), and a stream reads it by that reference.
"""

from __future__ import annotations

import posixpath
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec
import xxhash

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.core.media import IMAGE_EXTENSIONS, get_extension
from gristmill.images.codec import ImageError, find_orientation, load_exif, open_image
from gristmill.storage.files import read_bytes
from gristmill.storage.locations import parse_location, path_below
from gristmill.storage.paths import find_files
from gristmill.storage.tar_index import index_tar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.storage.locations import Location
    from gristmill.storage.paths import ListedFile

_HEADER_BYTES = 64 << 10
_TAR = "tar"


class ImageEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An image that a record may refer to."""

    shard: str
    """The tar that holds it, relative to the root; empty for a file of a folder."""
    member: str
    width: int
    height: int
    problem: str = ""
    """Why it cannot be used: the reason, and what is wrong."""


class ImageTable(msgspec.Struct, frozen=True):
    """All images that records may refer to, by name."""

    root: str
    entries: dict[str, ImageEntry]
    content: str
    """A hash of all entries: of what rows depend on."""

    def find(self, name: str) -> ImageEntry | None:
        """Find an image by its name: a path below the root, with or without it, or the name of a member."""
        path = unquote(name.removeprefix("file://")) if name.startswith("file://") else name
        if path.startswith(self.root):
            path = path[len(self.root) :]
        return self.entries.get(posixpath.normpath(path))


def list_images(pattern: str, folder: str) -> ImageTable:
    """List the images of a folder or of tars, with the size in the header of each, as it is shown.

    Raises:
        UsageError: There are none, or they are not local.
    """
    files = find_files(pattern, base=folder)
    if any("://" in file.path for file in files):
        raise UsageError(f"images: {pattern} is not local", help="copy the images to a disk first")
    tars = [file for file in files if get_extension(file.relative) == _TAR]
    images = [file for file in files if get_extension(file.relative) in IMAGE_EXTENSIONS]
    if bool(tars) == bool(images):
        what = "both tars and images" if tars else "neither tars nor images"
        raise UsageError(f"images: there are {what} in {pattern}", help="name a folder of images, or tars of images")
    entries = _list_members(tars) if tars else {image.relative: _read_file(image) for image in images}
    root = files[0].path[: -len(files[0].relative)]
    content = xxhash.xxh3_128_hexdigest(msgspec.json.encode(sorted(entries.items())))
    return ImageTable(root, entries, content)


def _list_members(tars: list[ListedFile]) -> dict[str, ImageEntry]:
    """List the images in tars, by their name and, with the tar in front, by their whole name."""
    entries: dict[str, ImageEntry] = {}
    for tar in tars:
        for member, entry in _read_tar(tar):
            entries[f"{tar.relative}/{member}"] = entry
            if member in entries:
                problem = f"ambiguous_image: several tars have the image {member!r}; write its tar in front of it"
                entry = ImageEntry("", member, 0, 0, problem)  # noqa: PLW2901
            entries[member] = entry
    return entries


def _read_tar(tar: ListedFile) -> Iterator[tuple[str, ImageEntry]]:
    index = index_tar(tar.path)
    if index.fault is not None:
        raise UsageError(f"images: {tar.path}: {index.fault}", help="write it again")
    with Path(tar.path).open("rb") as file:
        for member in index.members():
            if member.isreg() and get_extension(member.name) in IMAGE_EXTENSIONS:
                file.seek(member.data)
                content = file.read(min(member.size, _HEADER_BYTES))
                entry = _read_header(tar.relative, member.name, content)
                if entry.problem and member.size > _HEADER_BYTES:  # a header may be longer
                    file.seek(member.data)
                    entry = _read_header(tar.relative, member.name, file.read(member.size))
                yield member.name, entry


def _read_file(image: ListedFile) -> ImageEntry:
    with Path(image.path).open("rb") as file:
        content = file.read(_HEADER_BYTES)
        entry = _read_header("", image.relative, content)
        return (
            _read_header("", image.relative, content + file.read())
            if entry.problem and len(content) == _HEADER_BYTES
            else entry
        )


def _read_header(shard: str, member: str, content: bytes) -> ImageEntry:
    try:
        image = open_image(content)
        width, height = image.size
        exif, _ = load_exif(image)
        if find_orientation(image, exif) >= 5:  # lying on its side
            width, height = height, width
    except ImageError as error:
        return ImageEntry(shard, member, 0, 0, str(error))
    if not width or not height:
        return ImageEntry(shard, member, 0, 0, "corrupt_image: it has no pixels")
    return ImageEntry(shard, member, width, height)


class ImageReader:
    """Reads images by reference. Threads may use it together."""

    def __init__(self, pattern: str) -> None:
        """`pattern` is what the recipe names: the folder of images, or their tars."""
        location = parse_location(pattern)
        if not location.is_dir():
            first = find_files(pattern)[0]
            location = parse_location(first.path[: -len(first.relative)])
        self._root = location.absolute()
        self._tars: dict[str, dict[str, tuple[int, int]]] = {}
        self._lock = threading.Lock()

    def read(self, shard: str, member: str) -> bytes:
        """Read the bytes of an image.

        Raises:
            DamagedDatasetError: It is not there.
        """
        try:
            if not shard:
                return path_below(self._root, member).read_bytes()
            path = path_below(self._root, shard)
            start, size = self._index(shard, path)[member]
            content = read_bytes(path, start, size)
        except (OSError, KeyError) as error:
            raise DamagedDatasetError(
                f"the image {member} of {shard or self._root} cannot be read: {error}",
                help="the images must stay as they were when the rows were made",
            ) from error
        if len(content) != size:
            raise DamagedDatasetError(f"the image {member} of {shard} is cut short", help="restore the tar")
        return content

    def _index(self, shard: str, path: Location) -> dict[str, tuple[int, int]]:
        with self._lock:
            if shard not in self._tars:
                members = index_tar(str(path)).members()
                self._tars[shard] = {member.name: (member.data, member.size) for member in members if member.isreg()}
            return self._tars[shard]
