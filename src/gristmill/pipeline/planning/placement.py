"""Small jobs stay in the process: workers take longer to start than a few megabytes of text take to process.

A run stays in the process only if nothing in it has to be stopped or survived from outside: no timeout, no code but
Gristmill's own, plain local JSONL or text of at most 8 MiB. A marker in the work folder shows that such a run is under
way. A run that finds the marker of one that died works in processes, where a record that kills is found and
quarantined.

The stores that a recipe names are placed here as well: their options are checked, and chosen for every bucket in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_bytes
from gristmill.core.recipe import recipe_to_data, runs_user_code
from gristmill.core.step import find_untrusted_template
from gristmill.engine.parallel_run import IN_PROCESS_BACKENDS
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.work_folder import check_writable, has_in_process_marker
from gristmill.readers.formats import file_format
from gristmill.readers.read import Read
from gristmill.storage.codecs import find_codec
from gristmill.storage.locations import is_remote, parse_location
from gristmill.storage.stores.credentials import check_endpoint, choose_options, name_bucket, parse_options
from gristmill.storage.urls import OBJECT_STORES, find_protocol, refuse_secrets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from gristmill.core.recipe import Recipe
    from gristmill.core.records import SourceFile
    from gristmill.core.step import Step
    from gristmill.engine.machine import Pin
    from gristmill.storage.locations import Location


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
    layout: UnitLayout = UnitLayout()


def choose_placement(
    request: PlacementRequest, steps: Sequence[Step], reads: Iterable[ReadFiles], output: Location
) -> Placement:
    """Choose where a run takes place, once its files are listed. `steps` are resolved."""
    if request.backend != "auto":
        return Placement(request.backend, f'the backend "{request.backend}" was asked for')
    need = (
        find_need_for_workers(request, steps)
        or find_unsuitable_input([*reads, *_list_further_reads(steps)], request.layout.max_in_process_bytes)
        or find_remote_output(output)
        or find_death_in_process(output)
    )
    return (
        Placement("serial", "the input is small", is_small_job=True) if need is None else Placement("processes", need)
    )


def find_need_for_workers(request: PlacementRequest, steps: Iterable[Step]) -> str | None:
    """Find why a run needs worker processes for any input; None if its backend or its input decides.

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
        if find_untrusted_template(step):
            return f"step {step.name} runs a chat template that came with a model"
        if runs_user_code([step]):
            return f"step {step.name} runs code that is not Gristmill's own"
    return None


def find_unsuitable_input(reads: Iterable[ReadFiles], max_bytes: int) -> str | None:
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
            if num_bytes > max_bytes:
                return f"the input is larger than {format_bytes(max_bytes)}"
    return None


def find_remote_output(output: Location) -> str | None:
    """Find out whether the output is on a store, where no marker would tell of a record that kills."""
    return "the output is remote" if is_remote(output) else None


def find_death_in_process(output: Location) -> str | None:
    """Find out whether an earlier run died in its own process: its input may hold a record that kills."""
    return "an earlier run was killed in its own process" if has_in_process_marker(output) else None


def _list_further_reads(steps: Iterable[Step]) -> list[ReadFiles]:
    """List the files that steps read besides those of the sources, as in `deduplicate: {against: …}`."""
    return [(read, step.input_files()) for step in steps if isinstance(read := getattr(step, "read", None), Read)]


def choose_stores(recipe: Recipe, allowed_endpoints: Collection[str]) -> None:
    """Check the URLs and `storage_options` of a recipe, and use the options for its buckets in this process."""
    urls = [text for text in _list_texts(recipe_to_data(recipe)) if find_protocol(text) is not None]
    for url in urls:
        refuse_secrets(url)
        name_bucket(url)
    if recipe.storage_options is None:
        return
    options = parse_options(recipe.storage_options)
    check_endpoint(options, allowed_endpoints)
    for url in urls:
        choose_options(url, options)


def check_work_place(recipe: Recipe, backend: str) -> None:
    """Refuse a place for intermediate data that cannot be written, or that is the output or in it."""
    assert recipe.work is not None
    _check_store(recipe.work, backend)
    work, output = (parse_location(recipe.path(text)) for text in (recipe.work, recipe.output))
    real_work, real_output = str(work.resolve()), str(output.resolve())
    if f"{real_work}/".startswith(f"{real_output}/"):
        raise UsageError(
            f"work: {recipe.work} is {'the output' if real_work == real_output else 'inside the output'}",
            help="choose another folder, or leave the key out: intermediate data then goes to the output",
            key="work",
        )
    check_writable(work)


def check_output_store(output: str, backend: str) -> None:
    """Refuse an output that no run can write safely, that workers cannot write, or that is a whole bucket."""
    _check_store(output, backend)
    bucket = output.partition("://")[2].strip("/")
    if find_protocol(output) in OBJECT_STORES and bucket and "/" not in bucket:
        raise UsageError(f"the output {output} is a whole bucket", help=f"name a folder in it: {bucket}/out")


def check_store(url: str) -> None:
    """Refuse a store that cannot be written safely, and a URL with a secret. Local paths are not looked at."""
    refuse_secrets(url)
    protocol = find_protocol(url)
    if protocol is not None and protocol != "memory" and protocol not in OBJECT_STORES:
        raise UsageError(
            f"{url}: {protocol}:// can be read, but not written safely",
            help="write to a local or shared folder, or to s3://, gs:// or az://",
        )


def _check_store(output: str, backend: str) -> None:
    """Refuse a place that no run can write safely, or that is in the memory of this process for workers in others."""
    check_store(output)
    if find_protocol(output) == "memory" and backend not in IN_PROCESS_BACKENDS:
        raise UsageError(
            f"{output} is in the memory of this process, where workers cannot write",
            help='choose backend="serial" or "threads", or another output',
        )


def _list_texts(data: object) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from _list_texts(value)
    elif isinstance(data, Sequence) and not isinstance(data, bytes):
        for value in data:
            yield from _list_texts(value)
