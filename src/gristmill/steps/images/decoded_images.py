"""Decoded images for a user's function: its columns of images as Pillow images or NumPy arrays, and back to bytes.

An image that the function returns as it got it keeps its bytes. Any other one is encoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.media import list_image_columns
from gristmill.images.codec import ImageError, decode_array, decode_image, encode_image
from gristmill.steps.records.record_functions import RefusedRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa


class ImageFunction:
    """A function of the user that gets decoded images instead of bytes."""

    def __init__(self, call: Callable[..., Any], schema: pa.Schema, form: str, format: str) -> None:
        self._call = call
        self._columns = list_image_columns(schema)
        self._form = form
        self._format = format

    def __call__(self, record: dict[str, Any]) -> Any:
        contents = {name: record[name] for name in self._columns if record.get(name) is not None}
        try:
            images = {name: self._decode(content) for name, content in contents.items()}
        except ImageError as error:
            raise RefusedRecord(error.reason, error.message) from None
        result = self._call({**record, **images})
        if not isinstance(result, dict):
            return result
        encoded = {}
        for name, value in result.items():
            if name in images and value is images[name] and self._form == "pil":
                encoded[name] = contents[name]
            elif name in self._columns and value is not None and not isinstance(value, bytes):
                encoded[name] = self._encode(name, value, images.get(name), contents.get(name))
        return {**result, **encoded}

    def _decode(self, content: bytes) -> Any:
        image = decode_image(content)
        return np.array(image) if self._form == "numpy" else image

    def _encode(self, name: str, value: Any, before: Any, content: bytes | None) -> bytes:
        if isinstance(value, np.ndarray):
            # The function may have changed the array in place, so it is compared with the pixels that it was made of.
            if value is before and content is not None and np.array_equal(value, np.asarray(decode_image(content))):
                return content
            try:
                value = decode_array(value)
            except (TypeError, ValueError) as error:
                raise RefusedRecord("not_an_image", f"{name}: {error}") from None
        if not hasattr(value, "save"):
            raise RefusedRecord("not_an_image", f"{name} is {type(value).__name__}, not an image or an array")
        try:
            return encode_image(value, self._format)
        except (OSError, ValueError) as error:
            raise RefusedRecord("cannot_encode", f"{name}: {error}") from None
