"""Perceptual hashes: the same picture has nearly the same hash, and bands miss no pair within the distance."""

import io

import numpy as np
import pytest
from gristmill_testing.pictures import encode, make_photo, photo, turned_photo
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gristmill.images.codec import (
    SIGNATURE_BYTES,
    make_band_keys,
    measure_distances,
    measure_similarities,
    sign_image,
    sign_images,
)


def distance(first, second):
    return int(measure_distances(sign_image(first)[None], sign_image(second)[None])[0])


def test_the_same_picture_in_other_sizes_and_formats():
    large = make_photo(1, 640, 480)
    original = encode(large, "PNG")
    for other in (
        encode(large, "JPEG", quality=60),
        encode(large, "WEBP", quality=60),
        encode(Image.fromarray(large).resize((200, 150)), "JPEG"),
        encode(Image.fromarray(large).convert("L").convert("RGB"), "PNG"),
    ):
        assert distance(original, other) <= 12


def test_other_pictures_are_far_apart():
    signatures = [sign_image(photo(seed, "PNG")) for seed in range(12)]
    pairs = [(a, b) for a in range(12) for b in range(a)]
    first, second = (np.array([signatures[pair[side]] for pair in pairs]) for side in (0, 1))
    assert measure_distances(first, second).min() > 40


def test_an_image_is_hashed_as_it_is_shown():
    content = turned_photo(3, 6)
    upright = encode(Image.open(io.BytesIO(content)).transpose(Image.Transpose.ROTATE_270), "PNG")
    assert distance(content, upright) <= 6


def test_flat_images_differ_by_their_colour():
    white, black, grey = (encode(np.full((20, 20, 3), value, np.uint8), "PNG") for value in (255, 0, 250))
    [same] = measure_similarities(sign_image(white)[None], sign_image(grey)[None])
    [other] = measure_similarities(sign_image(white)[None], sign_image(black)[None])
    assert (same, other) == (1.0, 0.0)


def test_what_cannot_be_decoded_has_no_signature():
    rows, signatures = sign_images([photo(1), None, b"nothing", photo(2)[:50]])
    assert rows.tolist() == [0]
    assert signatures.shape == (1, SIGNATURE_BYTES)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), num_bits=st.integers(0, 24))
@pytest.mark.parametrize("max_distance", [0, 12, 24])
def test_bands_miss_no_pair(seed, num_bits, max_distance):
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 256, SIGNATURE_BYTES, dtype=np.uint8)
    bits = np.unpackbits(first)
    bits[rng.choice(256, min(num_bits, max_distance), replace=False)] ^= 1
    keys = make_band_keys(np.stack([first, np.packbits(bits)]), max_distance + 1)
    assert (keys[0] == keys[1]).any()
    assert len(np.unique(keys[0])) == max_distance + 1
