"""Compiling ahead: kernels that a run needs are compiled in one visible step before its workers start.

Otherwise all workers would compile the same kernels at the same time, silently and in the middle of a stage. The sample
that a plan runs has compiled the kernels of local steps. The others are those of packing, of barriers and of reading
large cells; their steps name them (`Step.kernel_modules`). A note in the cache folder says that they are compiled, so
the next run does not even load the compiler.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from gristmill.runtime.kernels import are_compiled, mark_compiled
from gristmill.steps.read.formats import JSON_FORMATS, file_format
from gristmill.steps.read.json_files.json_lines import MIN_PLAIN_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gristmill.core.step import Step
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.planning.sources.source_plan import SourcePlan


def compile_ahead(plan: Plan, tell: Callable[[str], object]) -> None:
    """Compile the kernels that the plan's steps name, where that has not been done on this machine."""
    steps: list[Step] = [step for source in plan.sources for stage in source.stages for step in stage.all_steps]
    steps += [source.read for source in plan.sources if _reads_compiled(source)]
    by_modules = {step.kernel_modules: step for step in (*steps, *plan.output_steps) if step.kernel_modules}
    missing = {modules: step for modules, step in by_modules.items() if not are_compiled(modules)}
    for number, (modules, step) in enumerate(missing.items(), 1):
        tell(f"compiling kernels for this machine, only this once: {step.name} ({number} of {len(missing)})")
        with _silence_log():
            import_module(step.kernel_calls).call_kernels()
        mark_compiled(modules)


def _reads_compiled(source: SourcePlan) -> bool:
    """Tell whether cells of a source are large enough for the kernels of reading, which its sample was not."""
    is_json = any(file_format(file.path, source.read.format) in JSON_FORMATS for file in source.files[:1])
    return is_json and max(file.num_bytes for file in source.files) >= MIN_PLAIN_BYTES


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
