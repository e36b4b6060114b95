"""Perceptual hashes: 256 bits that hardly change when an image is scaled or encoded again.

Each bit says whether a pixel of a 17 x 16 grey thumbnail is darker than its right neighbour. Two hashes at most `d`
bits apart share at least one of `d + 1` bands, so candidates found by equal bands miss no pair. Images of one flat
colour all have the same hash, so a thumbnail of 4 x 4 colours is compared too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.images.codec import (
    ImageError,
    decode_pixels,
    find_orientation,
    load_exif,
    load_pillow,
    open_image,
    to_mode,
    turn_upright,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

HASH_BITS = 256
HASH_BYTES = HASH_BITS // 8
_COLOUR_BYTES = 4 * 4 * 3
SIGNATURE_BYTES = HASH_BYTES + _COLOUR_BYTES
MAX_COLOUR_DIFFERENCE = 24
"""The largest mean difference of the colours of two thumbnails that are alike, of 255."""


def sign_image(content: bytes) -> NDArray[np.uint8] | None:
    """Compute the hash and the colours of an image; None if it cannot be decoded."""
    try:
        image = open_image(content)
        orientation = find_orientation(image, load_exif(image)[0])
        image.draft("RGB", (128, 128))  # a JPEG is decoded at an eighth of its size where that is enough
        decode_pixels(image)
    except ImageError:
        return None
    image = to_mode(turn_upright(image, orientation), "RGB")
    resampling = load_pillow().Image.Resampling
    # With plain means in place of LANCZOS, a third of the size changes 16 bits, not 10.
    grey = np.asarray(image.convert("L").resize((17, 16), resampling.LANCZOS), np.int16)
    bits = np.packbits(grey[:, 1:] > grey[:, :-1])
    return np.concatenate([bits, np.asarray(image.resize((4, 4), resampling.BOX), np.uint8).reshape(-1)])


def sign_images(contents: Sequence[bytes | None]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Sign the images that can be decoded: their indexes, and a signature of each."""
    signatures = [None if content is None else sign_image(content) for content in contents]
    rows = [row for row, signature in enumerate(signatures) if signature is not None]
    chosen = [signature for signature in signatures if signature is not None]
    return np.array(rows, np.int64), np.array(chosen, np.uint8).reshape(-1, SIGNATURE_BYTES)


def make_band_keys(signatures: NDArray[np.uint8], num_bands: int) -> NDArray[np.uint64]:
    """Make a key of each band of bits of each hash: equal for equal bands, and different from band to band."""
    bits = np.unpackbits(signatures[:, :HASH_BYTES], axis=1)
    keys = np.empty((len(bits), num_bands), np.uint64)
    borders = [number * HASH_BITS // num_bands for number in range(num_bands + 1)]
    for number in range(num_bands):
        value = np.full(len(bits), number + 1, np.uint64)
        for start in range(borders[number], borders[number + 1], 32):
            chunk = np.zeros(len(bits), np.uint64)
            for column in range(start, min(start + 32, borders[number + 1])):
                chunk = chunk * np.uint64(2) + bits[:, column]
            value = _mix(_mix(value) ^ chunk)
        keys[:, number] = value
    return keys


def measure_similarities(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Measure how alike pairs of signatures are: the share of equal bits; 0 where the colours differ."""
    distances = measure_distances(first, second)
    left, right = (side[:, HASH_BYTES:].astype(np.int16) for side in (first, second))
    is_alike = np.abs(left - right).mean(axis=1) <= MAX_COLOUR_DIFFERENCE
    similarities: NDArray[np.float64] = np.where(is_alike, 1 - distances / HASH_BITS, 0.0)
    return similarities


def measure_distances(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Count the bits in which pairs of hashes differ."""
    different = np.bitwise_xor(first[:, :HASH_BYTES], second[:, :HASH_BYTES])
    distances: NDArray[np.int64] = np.bitwise_count(different).sum(axis=1, dtype=np.int64)
    return distances


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
