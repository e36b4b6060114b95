"""Compiling ahead: kernels that a run needs are compiled in one visible step before its workers start.

Otherwise all workers would compile the same kernels at the same time, silently and in the middle of a stage. The sample
that a plan runs has compiled the kernels of local steps. Here are the others: packing and deduplication. A note in the
cache folder says that they are compiled, so the next run does not even load the compiler.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.runtime.kernels import are_compiled, mark_compiled
from gristmill.steps.deduplicate.candidates import find_candidate_pairs, group_by_key
from gristmill.steps.deduplicate.clusters import SimilarityGraph
from gristmill.steps.deduplicate.deduplicate import Deduplicate
from gristmill.steps.deduplicate.large_groups import pair_likely_members
from gristmill.steps.pack.pack import Pack
from gristmill.steps.pack.rows import count_trained_tokens, fill_rows, plan_rows
from gristmill.text.shingles import ShingleSets, jaccard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from gristmill.pipeline.planning.plan import Plan


def compile_ahead(plan: Plan, tell: Callable[[str], object]) -> None:
    """Compile the kernels of the plan's global steps, where that has not been done on this machine."""
    steps = [step for source in plan.sources for stage in source.stages for step in stage.all_steps]
    used = {step.name for step in (*steps, *plan.output_steps)}
    missing = [name for name in _KERNELS if name in used and not are_compiled(_KERNELS[name][0])]
    for number, name in enumerate(missing, 1):
        tell(f"compiling kernels for this machine, only this once: {name} ({number} of {len(missing)})")
        modules, run_once = _KERNELS[name]
        with _silence_log():
            run_once()
        mark_compiled(modules)


@contextmanager
def _silence_log() -> Iterator[None]:
    """Silence the log, which would repeat what the user has just been told."""
    log = logging.getLogger("gristmill.kernels")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _deduplicate_once() -> None:
    """Call every kernel of deduplication on a copy, a near copy and other texts."""
    words = [f"word{number}" for number in range(60)]
    lines = [" ".join(words), " ".join([*words[:-1], "other"]), " ".join(reversed(words)), " ".join(words)]
    texts = pa.array(lines, pa.large_string())
    step = Deduplicate()
    signed = step.minhash.sign(texts)
    shingles = ShingleSets(step.ngram).of(texts)
    jaccard(shingles[0], shingles[1])
    groups = group_by_key(signed.keys.reshape(-1), np.repeat(signed.rows, step.bands), _give_equal_ranks)
    pairs = find_candidate_pairs(groups, signed.sketches.__getitem__)
    list(pair_likely_members(signed.rows, signed.sketches.__getitem__, 0))
    graph = SimilarityGraph(pairs, _give_equal_ranks)
    graph.missing_pairs()
    graph.removals(np.ones(len(pairs)), 0)


def _give_equal_ranks(documents: NDArray[np.int64]) -> NDArray[np.uint64]:
    return np.zeros(len(documents), np.uint64)


def _pack_once() -> None:
    lengths, offsets = np.array([3, 1, 2]), np.array([0, 3, 4, 6])
    packing = plan_rows(Pack(row_length=4), lengths)
    for kind in (np.uint16, np.uint32, np.uint8):  # ids of both widths, and marks
        fill_rows(np.arange(6, dtype=kind), offsets, packing, 4, 0)
    count_trained_tokens(np.ones(6, dtype=np.bool_), offsets, lengths, 4)


_KERNELS: dict[str, tuple[tuple[str, ...], Callable[[], None]]] = {
    "deduplicate": (
        (
            "gristmill.text.shingles.kernels",
            "gristmill.steps.deduplicate.candidates",
            "gristmill.steps.deduplicate.clusters",
            "gristmill.steps.deduplicate.large_groups",
        ),
        _deduplicate_once,
    ),
    "pack": (("gristmill.steps.pack.kernels",), _pack_once),
}
"""By the name of a step, the modules of its kernels and a call that runs them all."""
