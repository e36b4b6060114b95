"""One image through the step `images`: header, limits, pixels, orientation, size, new bytes.

A JPEG that becomes much smaller is decoded at a half, a quarter or an eighth of its size, still at least twice as large
as the result, which takes a fraction of the time and cannot be told from the whole.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from gristmill.images.codec import (
    ORIENTATION,
    ImageError,
    decode_pixels,
    encode_image,
    find_orientation,
    has_alpha,
    has_clear_colour,
    is_animated,
    load_exif,
    load_pillow,
    open_image,
    to_mode,
    turn_upright,
)

_SAME_FORMATS = {"JPEG": "jpeg", "MPO": "jpeg", "WEBP": "webp", "PNG": "png"}
_DRAFT_FACTOR = 2
_TURNED = (5, 6, 7, 8)
"""Orientations in which width and height change places."""


class ImageOptions(Protocol):
    """The fields of the step `images`."""

    @property
    def min_width(self) -> int: ...

    @property
    def min_height(self) -> int: ...

    @property
    def max_pixels(self) -> int | None: ...

    @property
    def max_aspect(self) -> float | None: ...

    @property
    def resize(self) -> int | list[int] | None: ...

    @property
    def reencode(self) -> str | None: ...

    @property
    def quality(self) -> int: ...

    @property
    def keep_metadata(self) -> bool: ...

    @property
    def animated(self) -> str: ...

    @property
    def changes_bytes(self) -> bool: ...


class DroppedImage(Exception):
    """An image that a limit of the step drops; the reason is the name of the limit."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ImageWorker:
    """Processes images, one after another."""

    def __init__(self, step: ImageOptions) -> None:
        self._step = step
        self._counters: Counter[str] = Counter()
        self._lanczos = load_pillow().Image.Resampling.LANCZOS

    def take_counters(self) -> dict[str, int]:
        """Return what was counted since the last call."""
        counters, self._counters = dict(self._counters), Counter()
        return counters

    def process(self, content: bytes) -> bytes:
        """Return the image as the step writes it; raises `ImageError` or `DroppedImage`."""
        step = self._step
        image = open_image(content)
        if step.animated == "quarantine" and is_animated(image):
            raise ImageError("animated", "the image has several frames; animated: first_frame keeps the first one")
        exif, is_broken = load_exif(image)
        orientation = find_orientation(image, exif)
        width, height = image.size[::-1] if orientation in _TURNED else image.size
        self._check_limits(width, height)
        size = self._choose_size(width, height)
        new_format = step.reencode or _SAME_FORMATS.get(image.format, "png")
        if size != (width, height) and image.format == "JPEG":
            wanted = size[::-1] if orientation in _TURNED else size
            image.draft(None, (wanted[0] * _DRAFT_FACTOR, wanted[1] * _DRAFT_FACTOR))
        decode_pixels(image)
        metadata: bytes | None = b""
        if step.keep_metadata and step.changes_bytes:
            metadata = _encode_exif(exif)
        if is_broken or metadata is None:
            self._counters["broken_exif"] += 1
        if not step.changes_bytes:
            return content
        try:
            return self._encode(image, orientation, size, new_format, metadata or b"")
        except (OSError, ValueError) as error:
            raise ImageError("cannot_encode", f"{type(error).__name__}: {error}") from None

    def _encode(self, image: Any, orientation: int, size: tuple[int, int], format: str, exif: bytes) -> bytes:
        profile = image.info.get("icc_profile")
        if orientation != 1:
            self._counters["turned"] += 1
        image = turn_upright(image, orientation)
        if image.size != size:
            if image.mode in ("P", "1", "PA") or has_clear_colour(image):  # such colours cannot be averaged
                image = to_mode(image, "RGBA" if has_alpha(image) else "RGB")
            image = image.resize(size, self._lanczos)
            self._counters["resized"] += 1
        if profile:
            image.info["icc_profile"] = profile
        return encode_image(image, format, self._step.quality, exif=exif)

    def _check_limits(self, width: int, height: int) -> None:
        step = self._step
        if width < step.min_width:
            raise DroppedImage("min_width")
        if height < step.min_height:
            raise DroppedImage("min_height")
        if step.max_pixels is not None and width * height > step.max_pixels:
            raise DroppedImage("max_pixels")
        if step.max_aspect is not None and max(width, height) > step.max_aspect * min(width, height):
            raise DroppedImage("max_aspect")

    def _choose_size(self, width: int, height: int) -> tuple[int, int]:
        """Choose the new size: the aspect is kept, and no side grows."""
        resize = self._step.resize
        if resize is None:
            return width, height
        if isinstance(resize, int):
            scale = min(resize / min(width, height), 1.0)
        else:
            scale = min(resize[0] / width, resize[1] / height, 1.0)
        return max(1, round(width * scale)), max(1, round(height * scale))


def _encode_exif(exif: Any | None) -> bytes | None:
    """Encode an EXIF block for an image that was turned upright; empty if there is none, None if it is too broken."""
    if exif is None:
        return b""
    if ORIENTATION in exif:
        exif[ORIENTATION] = 1
    try:
        return bytes(exif.tobytes())
    except Exception:
        return None
