"""Workers that are started before anything else is done, where the size of the input alone shows that a run needs them.

Importing what a run needs takes this process a quarter of a second, and a worker as long; the tokenizer takes another
quarter. So a first look at the recipe decides before any of that is imported: only its output, the sizes of local files
that it names, and its tokenizer. What it says of them is not checked here. One process imports and loads all that, and
forks itself into the workers. In doubt none is started, and the plan starts them once it has listed all files.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import UsageError
from gristmill.engine.parallel_run import choose_num_workers, make_pool
from gristmill.engine.worker.job import make_import_job
from gristmill.pipeline.stages import WORKER_MODULE
from gristmill.recipe.overrides import apply_overrides
from gristmill.recipe.yaml_tree import parse_yaml
from gristmill.runtime.compute_functions import make_compute_functions_on_demand
from gristmill.storage.listing.patterns import expand_braces, is_wild

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.engine.machine.pinning import Pin
    from gristmill.engine.pool.worker_pool import WorkerPool
    from gristmill.engine.worker.job import Call

BYTES_A_WORKER = 4 << 20
"""The input for which one more worker is started: a cell, as in the plan."""
MIN_BYTES = 8 << 20
"""The input up to which a run may stay in this process, so that none is started."""
NEEDED_AT_THE_END = (
    "gristmill.pipeline.publishing.report_files",
    "gristmill.pipeline.stages.outputs.packing",
    "numpy.ma",  # for arrays from numpy to Arrow
)
"""Modules that this process imports if it has to wait for its workers."""
MAX_FILES = 1000
"""How many files and folders are looked at; a recipe of more small ones waits for the plan."""


def start_workers_early(
    recipe: str, overrides: Sequence[str], *, workers: int | None, backend: str, pin: Pin
) -> WorkerPool:
    """Make the pool of a run, and start workers in it if they are processes and the recipe names enough local input."""
    pool = make_pool("processes", pin=pin, keeps_workers=True)
    if backend not in ("auto", "processes"):
        return pool
    if not Path(recipe).is_file():
        return pool  # it is missing, or a pipe: what is read here, the run would not read
    with suppress(UsageError, OSError, ValueError):  # the run itself reports it
        tree = parse_yaml(Path(recipe).read_text("utf-8-sig"), recipe)
        apply_overrides(tree, overrides)
        folder = Path(recipe).absolute().parent
        num_workers = choose_num_workers(workers or "auto")
        num_bytes = _count_input_bytes(tree.data, folder, max(MIN_BYTES + 1, num_workers * BYTES_A_WORKER))
        if num_bytes > MIN_BYTES:
            num_workers = min(num_workers, num_bytes // BYTES_A_WORKER)
            before, after = _list_loads(tree.data, folder)
            job = make_import_job(WORKER_MODULE, make_compute_functions_on_demand, before=before, after=after)
            pool.start_ahead(num_workers, job, forks=True, meanwhile=NEEDED_AT_THE_END)
    return pool


def _count_input_bytes(recipe: Any, folder: Path, enough: int) -> int:
    """Add up the sizes of the local files that a recipe names, until they are `enough`.

    It is 0 if the output may be there already, or in doubt.
    """
    num_bytes = 0
    match recipe:
        case {"output": str(output), "sources": dict(sources)} if not (folder / output).exists():
            for file in islice(_list_files(sources, folder), MAX_FILES):
                num_bytes += file.stat().st_size if file.is_file() else 0
                if num_bytes >= enough:
                    break
    return num_bytes


def _list_loads(recipe: dict[str, Any], folder: Path) -> tuple[list[Call], list[Call]]:
    """List what a worker loads before and after its imports: mostly the local tokenizers of a recipe, or Pillow."""
    before: list[Call] = []
    after: list[Call] = [("gristmill.runtime.machine_code", "describe_processor", {})]  # for kernels that read and pack
    steps = [step for step in recipe.get("steps") or [] if isinstance(step, dict)]
    is_chat = any("render" in step for step in steps)
    for step in steps:
        match step:
            case {"images": _}:
                after.append(("gristmill.images.codec", "list_formats", {}))
            case {"tokenize": {"tokenizer": str(name), **options}} if (path := folder / name).exists():
                file = path / "tokenizer.json" if path.is_dir() else path
                engine = options.get("engine")
                if engine != "tokenizers":
                    before.append(
                        ("gristmill.text.tokenizers.engines.fast_loading", "begin_loading", {"path": str(file)})
                    )
                specials_as_text = not is_chat and options.get("special_tokens_in_text") != "token"
                arguments = {"folder": str(folder), "engine": engine, "specials_as_text": specials_as_text}
                after.append(("gristmill.steps.tokenize.load_ahead", "load_ahead", {"tokenizer": name, **arguments}))
    return before, after


def _list_files(sources: dict[str, Any], folder: Path) -> Iterator[Path]:
    for source in sources.values():
        match source:
            case {"read": str(pattern)}:
                patterns = [pattern]
            case {"read": [*several]}:
                patterns = [pattern for pattern in several if isinstance(pattern, str)]
            case _:
                continue
        for pattern in patterns:
            for name in expand_braces(pattern):
                for path in _expand_wildcards(folder / name):
                    yield from _list_below(path) if path.is_dir() else [path]


def _expand_wildcards(path: Path) -> Iterator[Path]:
    fixed = next((parent for parent in path.parents if not is_wild(str(parent))), path)
    return fixed.glob(str(path.relative_to(fixed))) if is_wild(path.name) or fixed != path.parent else iter([path])


def _list_below(folder: Path) -> Iterator[Path]:
    """List what is below a folder, of images say, one after the other: it may hold millions."""
    with os.scandir(folder) as entries:
        for entry in entries:
            yield Path(entry)
            if entry.is_dir(follow_symlinks=False):
                yield from _list_below(Path(entry))
