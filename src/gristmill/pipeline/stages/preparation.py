"""What comes before the first task: kernels that a run needs are compiled in one visible step before its workers start.

Otherwise all workers would compile the same kernels at the same time, silently and in the middle of a stage. The sample
that a plan runs has compiled the kernels of local steps. The others are those of packing and of barriers; their steps
name them (`Step.kernel_modules`). A note in the cache folder says that they are compiled, so the next run does not even
load the compiler.

A worker on another machine checks first that it sees what the driver sees: the output folder and the inputs. Code
travels with the check.
"""

from __future__ import annotations

import logging
import secrets
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from gristmill.core.errors import ClusterError, RemoteStoreError
from gristmill.core.recipe import step_parameters
from gristmill.pipeline.work_folder import work_path
from gristmill.runtime.functions import Function, ShippedCode, collect_code
from gristmill.runtime.kernels import are_compiled, mark_compiled
from gristmill.storage.commit import PendingFile
from gristmill.storage.locations import Location, measure_file, parse_location
from gristmill.text.tokenizers.files import TOKENIZER, TokenizerFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gristmill.core.step import Step
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.planning.source_plan import SourcePlan

_HELP = "mount the same file system on every node, or put inputs and output on an object store"


def compile_ahead(plan: Plan, tell: Callable[[str], object]) -> None:
    """Compile the kernels that the plan's steps name, where that has not been done on this machine."""
    steps: list[Step] = [step for source in plan.sources for stage in source.stages for step in stage.all_steps]
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


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """A token that the driver has written to its folders, an input file of each source with its size, tokenizers."""

    locations: tuple[Location, ...]
    """In the output folder, and in that of intermediate data if it is another one."""
    token: bytes
    files: tuple[tuple[str, int], ...]
    tokenizers: tuple[tuple[str, str], ...]
    """The path and the xxh3 of each: the stage that needs one may come after hours."""
    code: ShippedCode
    """The code of functions, which is used instead of what the node has."""


def write_node_check(folders: Iterable[Location], sources: Sequence[SourcePlan], run_id: str) -> NodeCheck:
    """Write a token to the folders of a run, which every worker reads before its first task."""
    locations = tuple(folder / work_path(f"token-{run_id}") for folder in dict.fromkeys(folders))
    token = secrets.token_bytes(16)
    for location in locations:
        with PendingFile(location, run_id) as file:
            file.write(token)
            file.commit(sync=False)
    first_files = [source.files[0] for source in sources if source.files]
    steps = [step for source in sources for stage in source.stages for step in stage.all_steps]
    functions = [value for step in steps for value in step_parameters(step).values() if isinstance(value, Function)]
    values = (getattr(step, name) for step in steps for name in step.__struct_fields__)
    tokenizers = {(value.path, value.files[TOKENIZER]) for value in values if isinstance(value, TokenizerFiles)}
    return NodeCheck(
        locations,
        token,
        tuple((file.path, file.num_bytes) for file in first_files),
        tuple(sorted(tokenizers)),
        collect_code(functions),
    )


@cache
def check_node(check: NodeCheck) -> None:
    """Raise `ClusterError` if this machine does not see what the driver sees; use the driver's code. Once a process."""
    host = socket.gethostname()
    for location in check.locations:
        try:
            token = location.read_bytes()
        except (OSError, RemoteStoreError) as error:
            raise ClusterError(f"node {host} cannot read {location}: {error}", help=_HELP) from error
        if token != check.token:
            raise ClusterError(f"node {host} sees another folder at {location.parent} than the driver", help=_HELP)
    for path, num_bytes in check.files:
        size = measure_file(parse_location(path))
        if size is None:
            raise ClusterError(f"node {host} does not see the input file {path}", help=_HELP)
        if size != num_bytes:
            raise ClusterError(
                f"node {host} sees {path} with {size:,} bytes, and the driver with {num_bytes:,}", help=_HELP
            )
    for path, xxh3 in check.tokenizers:
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise ClusterError(f"node {host} cannot read the tokenizer {path}: {error}", help=_HELP) from error
        if xxhash.xxh3_64_hexdigest(content) != xxh3:
            raise ClusterError(f"node {host} has another tokenizer at {path} than the driver", help=_HELP)
    check.code.install()
