"""The signatures of a batch: MinHash of its texts, or perceptual hashes of its images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.media import list_image_columns
from gristmill.core.records import TEXT
from gristmill.images.perceptual import make_band_keys, sign_images
from gristmill.text.shingles.minhash import SignedTexts

if TYPE_CHECKING:
    import pyarrow as pa

    from gristmill.steps.deduplicate.deduplicate import Deduplicate


def sign_batch(step: Deduplicate, batch: pa.RecordBatch) -> SignedTexts:
    """Sign the texts of a batch, or its images. What cannot be decoded has no signature: only its copies are found."""
    if step.kind != "image":
        return step.minhash.sign(batch.column(TEXT))
    columns = [batch.column(name).to_pylist() for name in list_image_columns(batch.schema)]
    contents = [next((content for content in row if content is not None), None) for row in zip(*columns, strict=True)]
    rows, signatures = sign_images(contents)
    counts = np.zeros(batch.num_rows, np.int64)
    counts[rows] = 1
    return SignedTexts(counts, rows, make_band_keys(signatures, step.num_band_keys), signatures)
