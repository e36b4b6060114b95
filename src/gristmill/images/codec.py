"""The door of Pillow: images are decoded with limits, encoded with fixed settings, and hashed.

An image is hostile until it is checked: only formats that are listed here are tried, the size in its header is checked
before anything is decoded, and what is cut short is refused. Nothing of Pillow's global state is changed.

A perceptual hash has 256 bits, which hardly change when an image is scaled or encoded again. Each bit says whether a
pixel of a 17 x 16 grey thumbnail is darker than its right neighbour. Two hashes at most `d` bits apart share at least
one of `d + 1` bands, so candidates found by equal bands miss no pair. Images of one flat colour all have the same hash,
so a thumbnail of 4 x 4 colours is compared too.
"""

from __future__ import annotations

import io
import warnings
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gristmill.core.errors import UsageError, install_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from numpy.typing import NDArray


Format = Literal["jpeg", "webp", "png"]
EXTENSIONS: dict[str, str] = {"jpeg": "jpg", "webp": "webp", "png": "png"}
MAX_DECODED_PIXELS = 178_956_970
"""The most pixels that are ever decoded, 540 MB: Pillow's own limit. A larger image may be a bomb."""
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
_WITH_FRAMES = ("GIF", "PNG", "WEBP", "TIFF", "AVIF")
ORIENTATION = 0x0112
"""The EXIF tag that says how an image is to be turned."""


class ImageError(ValueError):
    """An image that cannot be used: the reason it is counted under, and a message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


@cache
def load_pillow() -> ModuleType:
    """Import Pillow, or say how to install it."""
    try:
        import PIL.Image  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            f"images are decoded by Pillow, which cannot be imported: {error}",
            help=install_command("images"),
        ) from error
    return PIL


@cache
def list_formats() -> tuple[str, ...]:
    """Load the formats that are tried, of those that this build of Pillow has, and list them."""
    image = load_pillow().Image
    image.preinit()  # the common ones; `init` would import 40 more
    for name in ("Avif", "Jpeg2K", "Tiff", "WebP"):
        with suppress(ImportError):
            import_module(f"PIL.{name}ImagePlugin")
    return tuple(name for name in _FORMATS if name in image.OPEN)


@cache
def describe_codecs() -> dict[str, str]:
    """Return the versions of Pillow and of the libraries that decode and encode: they shape the bytes of images."""
    load_pillow()
    from PIL import features  # noqa: PLC0415

    names = ("pil", "jpg", "libjpeg_turbo", "zlib", "webp", "libtiff", "jpg_2000", "avif", "littlecms2")
    versions = {name: _find_version(features, name) for name in names}
    return {name: version for name, version in versions.items() if version}


def _find_version(features: ModuleType, name: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name that this version of Pillow does not know
        return str(features.version(name) or "")


def open_image(content: bytes | memoryview) -> Any:
    """Open an image without decoding it: its format and size are known.

    Raises:
        ImageError: It is empty, of no known format, damaged, or has too many pixels.
    """
    pil = load_pillow()
    if not len(content):
        raise ImageError("empty_image", "the image has no bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the size is checked below, and damage is an error when it is decoded
            image = pil.Image.open(io.BytesIO(content), formats=list_formats())
    except pil.Image.DecompressionBombError:
        raise ImageError("image_bomb", f"its header states more than {MAX_DECODED_PIXELS:,} pixels") from None
    except pil.UnidentifiedImageError:
        raise ImageError("not_an_image", "the bytes are of no known image format") from None
    except Exception as error:
        raise _make_damage_error(error) from None
    width, height = image.size
    if width * height > MAX_DECODED_PIXELS:
        raise ImageError("image_bomb", f"{width} x {height} pixels, more than {MAX_DECODED_PIXELS:,}")
    return image


def is_animated(image: Any) -> bool:
    """Whether an image has several frames or pages."""
    try:
        return image.format in _WITH_FRAMES and bool(getattr(image, "is_animated", False))
    except Exception:
        return False  # decoding says what is wrong with it


def load_exif(image: Any) -> tuple[Any | None, bool]:
    """Parse the EXIF block of an opened image, without decoding it: what it has, or None, and whether it is broken.

    Pillow's own `getexif` decodes a PNG, and what is wrong with its pixels would be lost here.
    """
    block = image.info.get("exif")
    is_tiff = image.format == "TIFF"
    if not is_tiff and not isinstance(block, bytes):
        return None, False
    try:
        with warnings.catch_warnings(record=True) as damage:  # Pillow warns, and keeps the tags before the damage
            warnings.simplefilter("always")
            exif = image.getexif() if is_tiff else load_pillow().Image.Exif()
            if not is_tiff:
                exif.load(block)
            return exif if len(exif) else None, bool(damage)
    except Exception:
        return None, True


def find_orientation(image: Any, exif: Any | None) -> int:
    """Find how an image is to be turned once it is decoded, 1 to 8; without an EXIF block it is 1, upright.

    Pillow itself turns a TIFF when it decodes it, and gives the size that it has then.
    """
    value = exif.get(ORIENTATION, 1) if exif is not None and image.format != "TIFF" else 1
    return value if value in range(1, 9) else 1


def decode_pixels(image: Any) -> None:
    """Decode all pixels of an opened image.

    Raises:
        ImageError: It is damaged or cut short.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image.load()
    except MemoryError:
        raise
    except Exception as error:
        raise _make_damage_error(error) from None


def _make_damage_error(error: Exception) -> ImageError:
    is_cut = "truncated" in str(error).lower()
    return ImageError("truncated_image" if is_cut else "corrupt_image", f"{type(error).__name__}: {error}")


def turn_upright(image: Any, orientation: int) -> Any:
    """Apply the orientation of a decoded image."""
    transpose = load_pillow().Image.Transpose
    operations = {
        2: transpose.FLIP_LEFT_RIGHT,
        3: transpose.ROTATE_180,
        4: transpose.FLIP_TOP_BOTTOM,
        5: transpose.TRANSPOSE,
        6: transpose.ROTATE_270,
        7: transpose.TRANSVERSE,
        8: transpose.ROTATE_90,
    }
    return image.transpose(operations[orientation]) if orientation in operations else image


def decode_image(content: bytes | memoryview, mode: str | None = "RGB") -> Any:
    """Decode an image: upright, its first frame, in the given mode (None: its own), transparent pixels on white.

    >>> decode_image(encode_image(decode_array(np.zeros((2, 3, 3), np.uint8)), "png")).size
    (3, 2)
    """
    image = open_image(content)
    orientation = find_orientation(image, load_exif(image)[0])
    decode_pixels(image)
    image = turn_upright(image, orientation)
    return image if mode is None else to_mode(image, mode)


def decode_array(pixels: NDArray[Any]) -> Any:
    """Make an image of an array of pixels: height, width and channels of 8 bits."""
    return load_pillow().Image.fromarray(np.ascontiguousarray(pixels))


def to_mode(image: Any, mode: str) -> Any:
    """Convert an image: 16 bits are scaled to 8, and transparent pixels put on white where the mode has no alpha."""
    if image.mode == mode and not has_clear_colour(image):
        return image
    if image.mode.startswith(("I;16", "I", "F")):
        # Scale 16 bits to 8; values of other modes are clipped, as Pillow does.
        values = np.asarray(image)
        if image.mode.startswith("I;16") or (image.mode == "I" and values.max(initial=0) > 255):
            values = np.clip(values.astype(np.int64), 0, 65535) >> 8
        image = decode_array(np.clip(values, 0, 255).astype(np.uint8))
    if has_alpha(image) and mode in ("RGB", "L"):
        rgba = image.convert("RGBA")
        white = load_pillow().Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        white.alpha_composite(rgba)
        image = white
    return image.convert(mode)


def has_alpha(image: Any) -> bool:
    """Whether pixels of an image may be transparent."""
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or has_clear_colour(image)


def has_clear_colour(image: Any) -> bool:
    """Whether one colour of an image, or some of its palette, stand for transparent pixels."""
    return image.mode in ("P", "RGB", "L", "1") and "transparency" in image.info


def encode_image(image: Any, format: str, quality: int = 90, *, exif: bytes = b"") -> bytes:
    """Encode an image, with its colour profile and without any other metadata except `exif`."""
    sink = io.BytesIO()
    profile = image.info.get("icc_profile")
    image = _choose_mode(image, format)
    options: dict[str, Any] = {"icc_profile": profile} if profile and _is_profile_of(profile, image.mode) else {}
    if exif:
        options["exif"] = exif
    if format == "jpeg":
        image.save(sink, "JPEG", quality=quality, comment=b"", xmp=b"", **options)  # else Pillow writes what it read
    elif format == "webp":
        image.save(sink, "WEBP", quality=quality, method=4, **options)
    else:
        image.info = {}  # else Pillow writes what it read: text, gamma, time
        image.save(sink, "PNG", compress_level=6, **options)
    return sink.getvalue()


def _choose_mode(image: Any, format: str) -> Any:
    """Convert an image to a mode that a format has."""
    mode = image.mode
    if format == "png":
        allowed = ("1", "L", "LA", "RGB", "RGBA", "I;16", "P")
        if mode in allowed and not has_clear_colour(image):
            return image.copy()
        return to_mode(image, "RGBA" if has_alpha(image) else "RGB")
    if format == "webp":
        return to_mode(image, "RGBA" if has_alpha(image) else "RGB")
    return to_mode(image, "L" if mode in ("L", "1", "LA", "I;16", "I", "F") else "RGB")


def _is_profile_of(profile: bytes, mode: str) -> bool:
    """Whether a colour profile is one of grey or of coloured pixels, as an image is: CMYK becomes RGB, grey may."""
    space = profile[16:20]
    return space == b"GRAY" if mode in ("1", "L", "LA", "I;16") else space not in (b"GRAY", b"CMYK")


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
    # With plain means instead of LANCZOS, a third of the size changes 16 bits, not 10.
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
