"""`images`: check, filter, resize and encode the images of samples."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.media import IMAGE_EXTENSIONS, MEMBER, find_member, is_bytes, list_image_columns
from gristmill.core.names import find_nearest
from gristmill.core.records import QuarantinedRecord, StepResult
from gristmill.core.step import LocalStep, check_choices
from gristmill.images.codec import EXTENSIONS, ImageError, describe_codecs, load_pillow
from gristmill.steps.images.image_worker import DroppedImage, ImageWorker
from gristmill.steps.records.record_functions import quarantine_row

if TYPE_CHECKING:
    from gristmill.core.step import StepKernel


class Images(LocalStep, tag="images", frozen=True, kw_only=True):
    """Decode the images of samples, drop those that are too small, too large or too narrow, and encode them again.

    A corrupt or truncated image, a bomb (more than 178 million pixels), bytes that are no image, and an animated image
    are quarantined. Without `resize` and `reencode` the bytes are never touched. When an image is encoded again, its
    orientation is applied, its colour profile is kept, EXIF (with the location) is removed, and a JPEG has white
    in place of transparent pixels.

    >>> Images(min_width=64, resize=256, reencode="webp").quality
    90
    """

    version: ClassVar[int] = 2
    is_slow: ClassVar[bool] = True

    columns: list[str] = msgspec.field(default_factory=list)
    """The columns of images; by default all that are named `image` or like a format, such as `jpg` and `png`."""
    min_width: int = 1
    min_height: int = 1
    max_pixels: int | None = None
    max_aspect: float | None = None
    """The longer side divided by the shorter one."""
    resize: int | list[int] | None = None
    """The length of the shorter side, or a box `[width, height]` to fit into. Images are never enlarged."""
    reencode: Literal["jpeg", "webp", "png"] | None = None
    """The new format; with `resize` alone, the format stays where it is one of these, and else becomes `png`."""
    quality: int = 90
    """The quality of JPEG and WebP, 1 to 100."""
    keep_metadata: bool = False
    """Whether EXIF is kept when an image is encoded again."""
    animated: Literal["quarantine", "first_frame"] = "quarantine"

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


class _Kernel:
    """The kernel of `images`."""

    def __init__(self, step: Images) -> None:
        self._step = step
        self._worker = ImageWorker(step)

    def begin_cell(self) -> None:
        """Do nothing: images do not depend on each other."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        step = self._step
        columns = step.choose_columns(batch.schema)
        images = {name: batch.column(name).to_pylist() for name in columns}
        renamed = step.find_renamed(batch.schema)
        has_one_name = len(set(renamed.values())) < len(renamed)
        rows: list[int] = []
        dropped: Counter[str] = Counter()
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
                dropped[drop.reason] += 1
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
        return StepResult(good_images, dict(dropped), quarantined=quarantined, counters=self._worker.take_counters())

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
