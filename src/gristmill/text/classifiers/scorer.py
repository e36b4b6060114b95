"""Scorers of texts: which kind of model a file is, and how it is opened.

The first bytes tell the kind: a linear model of Gristmill, a fastText model, or an ONNX model. Files that run code when
they are loaded (pickle, joblib, PyTorch) are refused without a look inside.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.text.classifiers import fasttext_file, linear_model

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.text.classifiers.scorer_options import ScorerOptions

LINEAR, FASTTEXT, ONNX = "linear", "fastText", "ONNX"
_MAPPED_FROM = 1 << 20


class TextScorer(Protocol):
    """A model that has been loaded and scores texts."""

    @property
    def is_probability(self) -> bool:
        """Whether its scores are from 0 to 1."""

    def score(self, texts: pa.Array) -> NDArray[np.float64]:
        """Return the score of each text; the quality step calls it for every batch."""


def map_file(path: str) -> NDArray[np.uint8]:
    """Map a model's file into memory, or read it if it is small.

    Raises:
        UsageError: It cannot be read.
    """
    try:
        if Path(path).stat().st_size < _MAPPED_FROM:
            return np.frombuffer(Path(path).read_bytes(), np.uint8)
        return np.memmap(path, np.uint8, mode="r")
    except OSError as error:
        raise UsageError(
            f"quality_model: cannot read the model {path}: {error.strerror}",
            help="gristmill classifier train GOOD BAD --out FILE makes one",
        ) from error


def find_kind(content: NDArray[np.uint8], path: str) -> str:
    """Find the kind of a model by its first bytes.

    Raises:
        UsageError: It is none that can be used.
    """
    head = content[:64].tobytes()
    if head.startswith(linear_model.MAGIC):
        return LINEAR
    if head.startswith(fasttext_file.MAGIC):
        return FASTTEXT
    if head.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04", b"\x78\x9c")):
        raise UsageError(
            f"{path} is a pickle, or an archive of pickles: loading it could run any code, so it is never loaded",
            help="convert the model to ONNX: skl2onnx for scikit-learn, torch.onnx for PyTorch",
        )
    if head.startswith(b"\x08") and path.endswith(".onnx"):
        return ONNX
    raise UsageError(
        f"{path} is no model that can be used",
        help="it can be one of gristmill classifier train, a fastText model (.bin, .ftz), or an ONNX model (.onnx)",
    )


def open_scorer(content: NDArray[np.uint8], options: ScorerOptions) -> TextScorer:
    """Open a model.

    Raises:
        UsageError: It is damaged, or the options do not fit it.
    """
    kind = find_kind(content, options.path)
    if kind == LINEAR:
        return linear_model.parse_model(content.tobytes(), options.path)
    # Both are imported where they are needed only.
    if kind == FASTTEXT:
        from gristmill.text.classifiers.fasttext_model import open_fasttext  # noqa: PLC0415

        return open_fasttext(content, options.path, options.label)
    from gristmill.text.classifiers.onnx_model import OnnxModel  # noqa: PLC0415

    return OnnxModel(content.tobytes(), options)
