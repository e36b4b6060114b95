"""A model from elsewhere is opened in a limited process first, where it scores a few texts.

A file may be made to take all memory, to compute forever or to crash the library that reads it. The plan learns of it
here, and not a run by the loss of its workers. Costs about a second a model and plan.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import TEXT_TYPE
from gristmill.runtime.process_limits import limit_process
from gristmill.text.classifiers.scorer import map_file, open_scorer
from gristmill.text.classifiers.scorer_options import ScorerOptions  # noqa: TC001  (msgspec reads it)

TRIAL_TEXTS = ("", "one", "The bread is fresh, and the shop opens at seven.", "日本語の文章です。", "word " * 600)
_MAX_SECONDS = 60
_START_SECONDS = 120
"""For the start of Python and its imports on a busy machine; beside the processor time of the model."""
_MAX_BYTES = 3 << 30
_COPIES = 4
_COMMAND = "import sys; sys.path[:] = {path!r}; from gristmill.text.classifiers.trial import run_trial; run_trial()"


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
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _COMMAND.format(path=sys.path)],
            input=msgspec.json.encode(_TrialOrder(options=options, limits=limits)),
            capture_output=True,
            timeout=limits.max_seconds + _START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _make_limit_error(options, "does not finish", limits) from None
    if done.returncode == 0 and done.stdout:
        result = msgspec.json.decode(done.stdout.splitlines()[-1], type=TrialResult)
        if result.error:
            raise UsageError(result.error, help=result.help)
        return result
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise _make_limit_error(options, "takes too long", limits)
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    raise _make_limit_error(
        options, f"ends the process that tries it ({lines[-1] if lines else done.returncode})", limits
    )


def _make_limit_error(options: ScorerOptions, problem: str, limits: TrialLimits) -> UsageError:
    return UsageError(
        f"{options.path} {problem}: it is tried on {len(TRIAL_TEXTS)} short texts, with {limits.max_seconds} s of "
        f"processor time and {limits.max_bytes >> 20:,} MiB",
        help="it is damaged or hostile, or too large for a step that scores every document",
    )


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
    except Exception as error:  # whatever a library says about a file from elsewhere
        first_line = str(error).strip().splitlines()[:1] or [type(error).__name__]
        result = TrialResult(error=f"{path} cannot be used: {first_line[0]:.300}", help="export it again")
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
