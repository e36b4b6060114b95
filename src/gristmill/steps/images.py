"""`images`: check, filter, resize and encode the images of samples.

One image through the step `images`: header, limits, pixels, orientation, size, new bytes.

A JPEG that becomes much smaller is decoded at a half, a quarter or an eighth of its size, still at least twice as large
as the result, which takes a fraction of the time and cannot be told from the whole.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar, Literal, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.checks import find_nearest
from gristmill.core.errors import UsageError
from gristmill.core.media import IMAGE_EXTENSIONS, MEMBER, find_member, is_bytes, list_image_columns
from gristmill.core.records import QuarantinedRecord, RuleValues, StepResult, count_dropped
from gristmill.core.step import LocalStep, StepKernel, check_choices
from gristmill.images.codec import (
    EXTENSIONS,
    ORIENTATION,
    ImageError,
    decode_pixels,
    describe_codecs,
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
from gristmill.steps.record_functions import quarantine_row


class Images(LocalStep, tag="images", frozen=True, kw_only=True):
    """Decode the images of samples, drop those that are too small, too large or too narrow, and encode them again.

    A corrupt or truncated image, a bomb (more than 178 million pixels), bytes that are no image, and an animated image
    are quarantined. Without `resize` and `reencode` the bytes are never touched. When an image is encoded again, its
    orientation is applied, its colour profile is kept, EXIF (with the location) is removed, and a JPEG has white
    pixels for transparent ones.

    Needs Pillow: `pip install "gristmill[images]"`.

    >>> Images(min_width=64, resize=256, reencode="webp").quality
    90
    """

    version: ClassVar[int] = 2
    is_slow: ClassVar[bool] = True

    columns: list[str] = msgspec.field(default_factory=list)
    """The columns of images; by default all that are named `image` or like a format, such as `jpg` and `png`."""
    min_width: int = 1
    """The least width of the upright image, in pixels."""
    min_height: int = 1
    """The least height of the upright image, in pixels."""
    max_pixels: int | None = None
    """The most pixels: width times height."""
    max_aspect: float | None = None
    """The longer side divided by the shorter one."""
    resize: int | list[int] | None = None
    """The length of the shorter side, or a box `[width, height]` to fit into. Images are never enlarged."""
    reencode: Literal["jpeg", "webp", "png"] | None = None
    """The new format; with `resize` alone, the format stays where it is one of these, and else becomes `png`."""
    quality: int = 90
    """The quality of JPEG and WebP, 1 to 100."""
    keep_metadata: bool = False
    """Whether EXIF is kept when an image is encoded again; without it the location is removed."""
    animated: Literal["quarantine", "first_frame"] = "quarantine"
    """`first_frame` keeps animated images, and encodes their first frame."""

    def __post_init__(self) -> None:
        check_choices(type(self), msgspec.structs.asdict(self))
        for name in ("min_width", "min_height", "max_pixels"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")
        if self.max_aspect is not None and not self.max_aspect >= 1:
            raise UsageError(f"max_aspect must be at least 1, not {self.max_aspect}", help="2 keeps 1:2 to 2:1")
        if not 1 <= self.quality <= 100:
            raise UsageError(f"quality must be from 1 to 100, not {self.quality}")
        sides = self.resize if isinstance(self.resize, list) else [1 if self.resize is None else self.resize]
        if len(sides) != (2 if isinstance(self.resize, list) else 1) or min(sides) < 1 or max(sides) > 65500:
            raise UsageError(
                f"resize must be the length of a side or [width, height], not {self.resize}",
                help="write resize: 256 or resize: [640, 480]",
            )

    @property
    def changes_bytes(self) -> bool:
        """Whether images are encoded again."""
        return self.resize is not None or self.reencode is not None

    @property
    def fingerprint_versions(self) -> object:
        # What is decoded decides what is quarantined, so the versions count even where no byte is changed.
        return [self.version, describe_codecs()]

    def resolve(self, folder: str) -> Images:  # noqa: ARG002
        load_pillow()
        return self

    def columns_needed(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def choose_columns(self, schema: pa.Schema) -> list[str]:
        """Return the columns of images; raises `UsageError` if there are none."""
        for name in self.columns:
            if name not in schema.names:
                nearest = find_nearest(name, schema.names)
                raise UsageError(f'images: there is no column "{name}"', help=f'did you mean "{nearest}"?')
            if not is_bytes(schema.field(name).type):
                raise UsageError(f'images: the column "{name}" holds {schema.field(name).type}, not bytes')
        columns = self.columns or list_image_columns(schema)
        if not columns:
            raise UsageError(
                "images: the records have no images",
                help=f"name their column: `columns: [..]`; there are {', '.join(schema.names)}",
            )
        return columns

    def find_renamed(self, schema: pa.Schema) -> dict[str, str]:
        """Return the new names of columns that are named like a format, if the format changes."""
        names = self.choose_columns(schema)
        if self.reencode is None:
            return {}
        return {name: EXTENSIONS[self.reencode] for name in names if name in IMAGE_EXTENSIONS}

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        renamed = self.find_renamed(schema)
        fields, new_names = [], set()
        for field in schema:
            name = renamed.get(field.name, field.name)
            if name in new_names:
                continue  # images of several formats become one column
            if field.name in renamed:
                new_names.add(name)
                metadata = {**(field.metadata or {})}
                if find_member(field) is not None:
                    metadata[MEMBER] = name.encode()
                field = pa.field(name, pa.large_binary(), metadata=metadata)  # noqa: PLW2901
            fields.append(field)
        names = [field.name for field in fields]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f'images: there is already a column "{name}"', help="rename it before this step")
        return pa.schema(fields, schema.metadata)

    def load(self) -> StepKernel:
        return _Kernel(self)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        """Apply the step once, for tests and trials. A run calls `load` once a worker."""
        return self.load().apply(batch, seed)


class _Kernel(StepKernel):
    """The kernel of `images`."""

    def __init__(self, step: Images) -> None:
        self._step = step
        self._worker = ImageWorker(step)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        step = self._step
        columns = step.choose_columns(batch.schema)
        images = {name: batch.column(name).to_pylist() for name in columns}
        renamed = step.find_renamed(batch.schema)
        has_one_name = len(set(renamed.values())) < len(renamed)
        rows: list[int] = []
        codes = np.zeros(batch.num_rows, np.uint8)
        values = np.zeros(batch.num_rows)
        quarantined: list[QuarantinedRecord] = []
        for row in range(batch.num_rows):
            try:
                present = [name for name in columns if images[name][row] is not None]
                if not present:
                    raise ImageError("no_image", f"the sample has no {' or '.join(columns)}")
                if has_one_name and len(set(present) & set(renamed)) > 1:
                    raise ImageError("several_images", f"the sample has {' and '.join(present)}, which become one")
                done = {name: self._worker.process(images[name][row]) for name in present}
            except DroppedImage as drop:
                codes[row], values[row] = 1 + _LIMITS.index(drop.reason), drop.value
            except ImageError as error:
                quarantined.append(quarantine_row(batch, row, error.reason, error.message))
            else:
                rows.append(row)
                for name, content in done.items():
                    images[name][row] = content
        good_images = batch.take(pa.array(rows, pa.int64())) if len(rows) < batch.num_rows else batch
        if step.changes_bytes:
            good_images = self._put_images(
                good_images, {name: [images[name][row] for row in rows] for name in columns}, renamed
            )
        return StepResult(
            good_images,
            count_dropped(codes, _LIMITS),
            quarantined=quarantined,
            counters=self._worker.take_counters(),
            codes=codes,
            reasons=_LIMITS,
            rule_values={limit: RuleValues(values, getattr(step, limit)) for limit in _LIMITS} if codes.any() else {},
        )

    def _put_images(
        self, batch: pa.RecordBatch, images: dict[str, list[Any]], renamed: dict[str, str]
    ) -> pa.RecordBatch:
        schema = self._step.output_schema(batch.schema)
        arrays = {}
        for field in schema:
            sources = [name for name in images if renamed.get(name, name) == field.name]
            if not sources:
                arrays[field.name] = batch.column(field.name)
                continue
            values = zip(*(images[name] for name in sources), strict=True)
            contents = [next((value for value in row if value is not None), None) for row in values]
            arrays[field.name] = pa.array(contents, field.type)
        return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


_LIMITS = ("min_width", "min_height", "max_pixels", "max_aspect")
"""The limits of sizes, which are reasons for dropping an image."""
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

    def __init__(self, reason: str, value: float) -> None:
        super().__init__(reason, value)
        self.reason = reason
        self.value = value


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
            raise DroppedImage("min_width", width)
        if height < step.min_height:
            raise DroppedImage("min_height", height)
        if step.max_pixels is not None and width * height > step.max_pixels:
            raise DroppedImage("max_pixels", width * height)
        if step.max_aspect is not None and max(width, height) > step.max_aspect * min(width, height):
            raise DroppedImage("max_aspect", max(width, height) / min(width, height))

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
