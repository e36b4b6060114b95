"""The bytes of an Arrow column of texts as arrays that kernels read, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray


def get_text_buffers(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes of a column of texts or bytes, and where each begins and ends in them; null becomes empty.

    >>> data, offsets = get_text_buffers(pa.array(["ab", None, "c"], pa.large_string()))
    >>> bytes(data[: offsets[-1]]), offsets.tolist()
    (b'abc', [0, 2, 2, 3])
    """
    if texts.null_count:
        texts = pc.fill_null(texts, pa.scalar(b"").cast(texts.type))
    if not (pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)):
        texts = texts.cast(pa.large_string())
    _, offsets, data = texts.buffers()
    if not len(texts) or offsets is None or data is None:
        # Arrow may leave buffers out where all texts are empty.
        values, ends = np.frombuffer(b"", np.uint8), np.zeros(len(texts) + 1, np.int64)
    else:
        values, ends = np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int64, len(texts) + 1, texts.offset * 8)
    # Whether Arrow could write to a buffer depends on where it comes from: kernels would be compiled for both kinds.
    values.flags.writeable = ends.flags.writeable = False
    return values, ends
