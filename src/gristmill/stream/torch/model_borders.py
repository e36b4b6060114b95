"""Whether a model separates the documents of a packed row: its logits for the row, and for each document alone.

A model of transformers knows the borders of documents only from `position_ids` that begin again at 0, and not every
model, attention implementation and way to call it respects them. Here the same documents are computed twice with the
user's own weights. The first document of a row has nothing before it, so its difference is rounding; a later one
differs by more if it saw those before it.

That proves something only if the model could show a leak: some models ignore earlier tokens, for example if their
projections are still zero. So a token is changed in a row that is one document, and the logits after it must change.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from transformers.utils import is_flash_attn_2_available

from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.stream.stream import Stream

DEFAULT_ATTENTIONS = ("eager", "sdpa", "flash_attention_2")
_ROWS_TO_SEARCH = 256
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""The largest difference that is rounding, as a share of the largest logit. A tiny model with random weights leaks 1 %
to 60 % of it, and rounds by 0.00001 %."""


@dataclass(frozen=True, slots=True)
class BorderCheck:
    """One attention implementation, called in one way, on the chosen rows."""

    attention: str
    call: str
    """How the model was called: `1 row`, `2 rows` in a batch, or `1 row, use_cache=True`."""
    difference: float
    """The largest difference of a logit of a later document, as a share of the largest logit."""
    rounding: float
    """The same for the first document of each row, which cannot see another one."""
    respects_borders: bool


@dataclass(frozen=True, slots=True)
class BorderReport:
    """The result for a model."""

    model: str
    num_rows: int
    num_documents: int
    takes_positions: bool
    """Whether the model has an argument `position_ids` at all."""
    can_show_leaks: bool
    """Whether a changed token changes the logits after it, if the row is one document."""
    checks: list[BorderCheck]
    unavailable: dict[str, str]
    """Attention implementations that could not be tried, and why."""

    def __bool__(self) -> bool:
        """Whether every implementation respects borders when it is called as trainers call it, and could fail to."""
        return self.can_show_leaks and all(
            check.respects_borders for check in self.checks if "use_cache" not in check.call
        )


@dataclass(frozen=True, slots=True)
class _PackedRow:
    ids: torch.Tensor
    positions: torch.Tensor
    borders: list[int]
    """The beginnings of its documents, and the end of the last one."""


def check_borders(
    stream: Stream, model: str, attentions: Sequence[str] = DEFAULT_ATTENTIONS, num_rows: int = 4
) -> BorderReport:
    """Compare packed rows with their documents alone, for each attention implementation that is available here.

    The stream must have `input_ids` and `position_ids`.
    """
    rows = _choose_rows(stream, num_rows)
    _check_vocabulary(model, rows)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    checks: list[BorderCheck] = []
    unavailable: dict[str, str] = {}
    name, takes_positions, can_show_leaks = model, True, True
    for attention in attentions:
        if attention.startswith("flash") and not (device.type == "cuda" and is_flash_attn_2_available()):
            unavailable[attention] = "it needs a GPU and the package flash-attn"
            continue
        dtype = torch.bfloat16 if attention.startswith("flash") else torch.float32
        loaded = _load_model(model, attention, dtype, unavailable)
        if loaded is None:
            continue
        loaded.to(device).eval()
        name, takes_positions = type(loaded).__name__, _takes(loaded, "position_ids")
        can_show_leaks &= _can_show_leaks(loaded, rows[0], _TOLERANCES[dtype])
        checks += _check_calls(loaded, rows, attention, _TOLERANCES[dtype])
    if not checks:
        reasons = "; ".join(f"{attention}: {reason}" for attention, reason in unavailable.items())
        raise UsageError(f"the model {model} could not be tried with any attention implementation: {reasons}")
    num_documents = sum(len(row.borders) - 1 for row in rows)
    return BorderReport(name, len(rows), num_documents, takes_positions, can_show_leaks, checks, unavailable)


def _choose_rows(stream: Stream, num_rows: int) -> list[_PackedRow]:
    """Choose the first rows of the stream that hold at least two documents."""
    if stream.holds_samples or stream.row_length is None:
        raise UsageError("the rows of this stream hold one document each: there are no borders", help="use pack")
    rows: list[_PackedRow] = []
    stop = _ROWS_TO_SEARCH if stream.num_rows is None else min(_ROWS_TO_SEARCH, stream.num_rows)
    for number in range(stop):
        batch = stream.rows(number, number + 1)
        positions, length = np.asarray(batch["position_ids"][0]), int(batch.tokens[0])
        starts = np.flatnonzero(positions[:length] == 0).tolist()
        if len(starts) > 1:
            ids, row_positions = torch.from_numpy(batch["input_ids"]), torch.from_numpy(batch["position_ids"])
            rows.append(_PackedRow(ids, row_positions, [*starts, length]))
        if len(rows) == num_rows:
            break
    if not rows:
        raise UsageError(f"none of the first {stop} rows holds two documents: there are no borders to respect")
    return rows


def _check_vocabulary(path: str, rows: list[_PackedRow]) -> None:
    """Refuse a path without a model, and a model of another tokenizer."""
    try:
        vocab_size = transformers.AutoConfig.from_pretrained(path).get_text_config().vocab_size
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} is not a model that transformers can load: {str(error).splitlines()[0]}",
            help="name a folder with config.json and weights",
        ) from None
    largest = max(int(row.ids.max()) for row in rows)
    if largest >= vocab_size:
        raise UsageError(
            f"the rows hold the id {largest}, but the model has a vocabulary of {vocab_size}",
            help="name a model of the tokenizer that the dataset was made with",
        )


def _load_model(path: str, attention: str, dtype: torch.dtype, unavailable: dict[str, str]) -> Any:
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation=attention, dtype=dtype)
    except (OSError, ValueError, ImportError) as error:  # no weights, or no such implementation for this model
        unavailable[attention] = str(error).splitlines()[0].split(". ")[0]
        return None


def _can_show_leaks(model: Any, row: _PackedRow, tolerance: float) -> bool:
    """Whether the last token of the first document changes later logits by more than rounding, without borders."""
    place, positions = row.borders[1] - 1, torch.arange(row.ids.shape[1])[None]
    changed = row.ids.clone()
    changed[0, place] = (changed[0, place] + 1) % model.config.get_text_config().vocab_size
    before, after = (_compute_logits(model, ids, positions)[0, place + 1 :] for ids in (row.ids, changed))
    return bool((after - before).abs().max() > tolerance * before.abs().max())


def _check_calls(model: Any, rows: list[_PackedRow], attention: str, tolerance: float) -> list[BorderCheck]:
    """Call a model in each way, and compare with each document alone."""
    alone = [
        [
            _compute_logits(model, row.ids[:, begin:end], torch.arange(end - begin)[None])
            for begin, end in pairwise(row.borders)
        ]
        for row in rows
    ]
    calls: dict[str, list[torch.Tensor]] = {"1 row": [_compute_logits(model, row.ids, row.positions) for row in rows]}
    if len(rows) > 1:
        ids, positions = (torch.cat([getattr(row, name) for row in rows]) for name in ("ids", "positions"))
        calls[f"{len(rows)} rows"] = list(_compute_logits(model, ids, positions)[:, None])
    if _takes(model, "use_cache"):
        cached = [_compute_logits(model, row.ids, row.positions, use_cache=True) for row in rows]
        calls["1 row, use_cache=True"] = cached
    checks = []
    for call, packed in calls.items():
        first, later = [0.0], [0.0]
        for row, logits, documents in zip(rows, packed, alone, strict=True):
            for number, (begin, end) in enumerate(pairwise(row.borders)):
                expected = documents[number]
                difference = (logits[0, begin:end] - expected[0]).abs().max() / expected.abs().max()
                (later if number else first).append(float(difference))
        # A comparison with not a number is False: such logits do not pass for equal.
        respects = max(first) <= tolerance and max(later) <= tolerance and not np.isnan([*first, *later]).any()
        checks.append(BorderCheck(attention, call, max(later), max(first), bool(respects)))
    return checks


def _compute_logits(model: Any, ids: torch.Tensor, positions: torch.Tensor, *, use_cache: bool = False) -> torch.Tensor:
    options: dict[str, Any] = {"position_ids": positions.to(model.device)} if _takes(model, "position_ids") else {}
    if _takes(model, "use_cache"):
        options["use_cache"] = use_cache
    try:
        with torch.inference_mode():
            logits: torch.Tensor = model(input_ids=ids.to(model.device), **options).logits
    except (IndexError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"{type(model).__name__} failed on these rows: {str(error).splitlines()[0]}",
            help="documents may be longer than the model allows",
        ) from error
    return logits.float()


def _takes(model: Any, name: str) -> bool:
    """Whether `forward` of a model has an argument of this name."""
    return name in inspect.signature(model.forward).parameters
