"""The trial of the steps of a source on its first records, made or recalled.

A trial that is recalled loads no tokenizer, compiles no template and starts no worker. A trial that raises, or in which
a function ended its worker or took too long, is made again by the next plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.pipeline.planning.remembered.columns import pack_schema
from gristmill.pipeline.planning.remembered.keys import describe_steps
from gristmill.pipeline.planning.sample import SampleOutcome, try_sample
from gristmill.runtime.kernels import find_cache_folder
from gristmill.storage.user_cache.plan_cache import recall, remember

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.core.step import LocalStep
    from gristmill.engine.pool.worker_pool import WorkerPool
    from gristmill.pipeline.planning.sample import OutcomeAndNotes, SampleTrial

_KIND = "trial"


class _StoredTrial(msgspec.Struct):
    adapted: list[dict[str, Any]]
    """For each step, the fields in which it was adapted to the sample."""
    record_bytes: float
    column_bytes: list[dict[str, float]]
    notes: list[str]


def try_remembered_sample(
    sample: SampleTrial,
    files_hash: str | None,
    *,
    apart: bool,
    timeout: float | None,
    pool: WorkerPool | None = None,
) -> OutcomeAndNotes:
    """Like `try_sample`, but recall a trial of the same steps on the same files. `files_hash` is from `hash_files`."""
    key = _describe_trial(sample, files_hash) if files_hash is not None else None
    if key is not None and (stored := recall(_KIND, key, _StoredTrial)) is not None:
        result = _unpack(stored, sample.steps)
        if result is not None:
            return result
    result = outcome, notes = try_sample(sample, apart=apart, timeout=timeout, pool=pool)
    if key is not None and outcome.column_bytes:  # else no record went through the steps
        stored = _pack(outcome, notes, sample.steps)
        if stored is not None and _unpack(stored, sample.steps) == result:
            remember(_KIND, key, stored)
    return result


def _describe_trial(sample: SampleTrial, files_hash: str) -> list[Any] | None:
    steps = describe_steps(sample.steps)
    if steps is None or sample.batch is not None or sample.stops:
        return None
    kernels = find_cache_folder()
    return [
        files_hash,
        sample.file,
        steps,
        [pack_schema(sample.schema), pack_schema(sample.expected)],
        [sample.seed, sample.max_quarantine],
        # A trial also compiles the kernels of its steps, before many workers would do so at the same time.
        [str(kernels), kernels.exists()],
    ]


def _pack(outcome: SampleOutcome, notes: list[str], steps: Sequence[LocalStep]) -> _StoredTrial | None:
    adapted = []
    for step, after in zip(steps, outcome.steps, strict=True):
        if type(step) is not type(after):
            return None
        fields = [name for name in step.__struct_fields__ if getattr(step, name) != getattr(after, name)]
        adapted.append({name: msgspec.to_builtins(getattr(after, name)) for name in fields})
    return _StoredTrial(adapted, outcome.record_bytes, list(outcome.column_bytes), notes)


def _unpack(stored: _StoredTrial, steps: Sequence[LocalStep]) -> OutcomeAndNotes | None:
    try:
        adapted = tuple(_adapt(step, fields) for step, fields in zip(steps, stored.adapted, strict=True))
    except (KeyError, TypeError, ValueError, msgspec.ValidationError):
        return None
    return SampleOutcome(adapted, stored.record_bytes, tuple(stored.column_bytes)), stored.notes


def _adapt(step: LocalStep, values: dict[str, Any]) -> LocalStep:
    types = {field.name: field.type for field in msgspec.structs.fields(step)}
    return msgspec.structs.replace(
        step, **{name: msgspec.convert(value, types[name]) for name, value in values.items()}
    )
