"""Scorers of texts: which kind of model a file is, and how it is opened.

The first bytes tell the kind: a linear model of Gristmill, a fastText model, or an ONNX model. Files that run code when
they are loaded (pickle, joblib, PyTorch) are refused without a look inside.

A third-party model is opened in a limited process first, where it scores a few texts: a file may be made to take all
memory, to compute forever or to crash the library that reads it. So the plan finds out, before a run loses its workers.
Costs about a second a model and plan.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import TEXT_TYPE
from gristmill.runtime.process import limit_process, run_limited
from gristmill.text.classifiers import fasttext_file, linear_model
from gristmill.text.classifiers.onnx_model import ScorerOptions  # noqa: TC001  (msgspec reads it)

if TYPE_CHECKING:
    from numpy.typing import NDArray


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


TRIAL_TEXTS = ("", "one", "The bread is fresh, and the shop opens at seven.", "日本語の文章です。", "word " * 600)
_MAX_SECONDS = 60
_MAX_BYTES = 3 << 30
_COPIES = 4


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the limited process."""

    is_probability: bool = False
    error: str = ""
    help: str = ""


class TrialLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a trial."""

    max_bytes: int
    max_seconds: int = _MAX_SECONDS


class _TrialOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The order that the limited process gets."""

    options: ScorerOptions
    limits: TrialLimits


def try_scorer(options: ScorerOptions, limits: TrialLimits | None = None) -> TrialResult:
    """Open a model in a limited process and score a few texts there.

    Raises:
        UsageError: The model cannot be used; says why.
    """
    limits = limits or TrialLimits(max_bytes=_MAX_BYTES + _COPIES * Path(options.path).stat().st_size)
    order = msgspec.json.encode(_TrialOrder(options=options, limits=limits))
    answer, problem = run_limited(__name__, "run_trial", order, limits.max_seconds)
    if problem:
        raise UsageError(
            f"{options.path} {problem}: it is tried on {len(TRIAL_TEXTS)} short texts, with {limits.max_seconds} s of "
            f"processor time and {limits.max_bytes >> 20:,} MiB",
            help="it is damaged or hostile, or too large for a step that scores every document",
        )
    result = msgspec.json.decode(answer, type=TrialResult)
    if result.error:
        raise UsageError(result.error, help=result.help)
    return result


def run_trial() -> None:
    """Do what `try_scorer` asks for; the whole life of the limited process."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=_TrialOrder)
    limit_process(order.limits.max_bytes, order.limits.max_seconds)
    path = order.options.path
    try:
        scorer = open_scorer(map_file(path), order.options)
        scores = scorer.score(pa.array(TRIAL_TEXTS, TEXT_TYPE))
        if scores.shape != (len(TRIAL_TEXTS),) or not np.isfinite(scores).all():
            raise UsageError(f"{path} does not give one number for each text", help="check the model")
        result = TrialResult(is_probability=scorer.is_probability)
    except UsageError as error:
        result = TrialResult(error=error.message, help=error.help or "")
    except MemoryError:
        result = TrialResult(error=f"{path} needs too much memory", help="it is damaged or hostile, or too large")
    except Exception as error:  # any error that a library raises for a third-party file
        first_line = str(error).strip().splitlines()[:1] or [type(error).__name__]
        result = TrialResult(error=f"{path} cannot be used: {first_line[0]:.300}", help="export it again")
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
