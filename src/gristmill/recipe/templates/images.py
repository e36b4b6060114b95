"""A folder of images to tars of equal size."""

from __future__ import annotations

import struct
import zlib

RECIPE = """\
# A folder of images to tars. Needs Pillow: pip install "gristmill[images]"
output: out
seed: 0

sources:
  photos: {read: photos}          # photos/cat/0001.jpg, photos/dog/0002.png: folders are labels

steps:
  - images: {min_width: 32, min_height: 32, max_aspect: 3, resize: 64, reencode: png}     # keeps 10 of 12
  - deduplicate: {kind: exact}    # keeps 9 of 10; kind: image also finds resized and recompressed copies
  - split: {validation: 0.1, by: origin}                    # keeps 9 of 9
  - write: {format: webdataset}
"""


def make_data() -> dict[str, bytes]:
    """Make 12 pictures in two folders: one is too small, one too wide, one a copy."""
    pictures = {}
    for number in range(12):
        width, height = (16, 16) if number == 3 else (400, 40) if number == 4 else (80, 96)
        shade = 5 if number == 6 else number
        pictures[f"photos/{'cat' if number % 2 else 'dog'}/{number:04}.png"] = _draw_png(width, height, shade)
    return pictures


def _draw_png(width: int, height: int, shade: int) -> bytes:
    """Draw a colour gradient as a PNG file."""
    rows = b"".join(
        b"\0" + bytes(channel for column in range(width) for channel in ((column * 3) % 256, row % 256, shade * 20))
        for row in range(height)
    )
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body
