"""Small jobs stay in the process: workers take longer to start than a few megabytes of text take to process.

A run stays in the process only if nothing in it has to be stopped or survived from outside: no timeout, no code but
Gristmill's own, plain local JSONL or text of at most 8 MiB. A marker in the work folder shows that such a run is under
way. A run that finds the marker of one that died works in processes, where a record that kills is found and
quarantined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gristmill.core.quantities import format_bytes
from gristmill.core.recipe import runs_user_code
from gristmill.pipeline.work_folder import has_in_process_marker
from gristmill.steps.read import Read, file_format
from gristmill.storage.codecs.compression import find_codec
from gristmill.storage.locations import StorePath
from gristmill.storage.urls import find_protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gristmill.core.records import SourceFile
    from gristmill.core.step import Step
    from gristmill.engine.machine.pinning import Pin
    from gristmill.storage.locations import Location

MAX_IN_PROCESS_BYTES = 8 << 20
_FORMATS = ("jsonl", "text")

ReadFiles = tuple[Read, "Sequence[SourceFile]"]
"""How some files are read, and the files."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a run, and the reason for it."""

    backend: str
    """The backend of all its stages; never "auto"."""
    reason: str
    """Why it is that one: follows the word "because"."""
    is_small_job: bool = False
    """Whether the run stays in this process because it is small, not because that was asked for."""

    def __str__(self) -> str:
        places = {
            "processes": "in worker processes",
            "threads": "in threads of this process",
            "ray": "on a Ray cluster",
        }
        return f"{places.get(self.backend, 'in this process')}, because {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """The options of a run that decide where it can take place."""

    backend: str = "auto"
    workers: int | Literal["auto"] = "auto"
    timeout: float | None = None
    pin: Pin = "none"


def choose_placement(
    request: PlacementRequest, steps: Sequence[Step], reads: Iterable[ReadFiles], output: Location
) -> Placement:
    """Choose where a run takes place, once its files are listed. `steps` are resolved."""
    if request.backend != "auto":
        return Placement(request.backend, f'the backend "{request.backend}" was asked for')
    need = (
        find_need_for_workers(request, steps)
        or find_unsuitable_input([*reads, *_list_further_reads(steps)])
        or find_remote_output(output)
        or find_death_in_process(output)
    )
    return (
        Placement("serial", "the input is small", is_small_job=True) if need is None else Placement("processes", need)
    )


def find_need_for_workers(request: PlacementRequest, steps: Iterable[Step]) -> str | None:
    """Find why a run needs worker processes whatever its input is; None if its backend or its input decides.

    This needs no listing and no resolved steps, so that workers can be started before either.
    """
    if request.backend != "auto":
        return 'the backend "processes" was asked for' if request.backend == "processes" else None
    if request.workers != "auto":
        return "a number of workers was asked for"
    if request.pin != "none":
        return "only processes can be pinned"
    if request.timeout is not None:
        return "only a process can be stopped by a timeout"
    for step in steps:
        if step.runs_template:
            return f"step {step.name} runs a chat template"
        if runs_user_code([step]):
            return f"step {step.name} runs code that is not Gristmill's own"
    return None


def find_unsuitable_input(reads: Iterable[ReadFiles]) -> str | None:
    """Find why files cannot be read in this process; None if they are small, plain and local JSONL or text."""
    num_bytes = 0
    for read, files in reads:
        for file in files:
            if find_protocol(file.path) == "memory":
                return "the size of the input is not known yet"  # a plan reads only the first records from Python
            if find_protocol(file.path) is not None:
                return "the input is remote"
            if find_codec(file.relative) is not None:
                return "the input is compressed"
            format_name = file_format(file.relative, read.format)
            if format_name not in _FORMATS:
                return f"the input is {format_name}"
            num_bytes += file.num_bytes
            if num_bytes > MAX_IN_PROCESS_BYTES:
                return f"the input is larger than {format_bytes(MAX_IN_PROCESS_BYTES)}"
    return None


def find_remote_output(output: Location) -> str | None:
    """Find out whether the output is on a store, where no marker would tell of a record that kills."""
    return "the output is remote" if isinstance(output, StorePath) else None


def find_death_in_process(output: Location) -> str | None:
    """Find out whether an earlier run died in its own process: its input may hold a record that kills."""
    return "an earlier run was killed in its own process" if has_in_process_marker(output) else None


def _list_further_reads(steps: Iterable[Step]) -> list[ReadFiles]:
    """List the files that steps read beside those of the sources, as in `deduplicate: {against: …}`."""
    return [(read, step.input_files()) for step in steps if isinstance(read := getattr(step, "read", None), Read)]
