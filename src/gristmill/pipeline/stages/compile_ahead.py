"""Compiling ahead: kernels that a run needs are compiled in one visible step before its workers start.

Otherwise all workers would compile the same kernels at the same time, silently and in the middle of a stage. The sample
that a plan runs has compiled the kernels of local steps. The others are those of packing and of barriers; their steps
name them (`Step.kernel_modules`). A note in the cache folder says that they are compiled, so the next run does not even
load the compiler.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from gristmill.runtime.kernels import are_compiled, mark_compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gristmill.pipeline.planning.plan import Plan


def compile_ahead(plan: Plan, tell: Callable[[str], object]) -> None:
    """Compile the kernels that the plan's steps name, where that has not been done on this machine."""
    steps = [step for source in plan.sources for stage in source.stages for step in stage.all_steps]
    by_modules = {step.kernel_modules: step for step in (*steps, *plan.output_steps) if step.kernel_modules}
    missing = {modules: step for modules, step in by_modules.items() if not are_compiled(modules)}
    for number, (modules, step) in enumerate(missing.items(), 1):
        tell(f"compiling kernels for this machine, only this once: {step.name} ({number} of {len(missing)})")
        with _silence_log():
            import_module(step.kernel_calls).call_kernels()
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
