"""Workers that are started before anything else is done, where the size of the input alone shows that a run needs them.

Importing what a run needs takes this process a quarter of a second, and each worker as long. So a first look at the
recipe decides before any of that is imported: only its output and the sizes of local files that it names. What it says
of them is not checked here. In doubt no worker is started, and the plan starts them once it has listed all files.
"""

from __future__ import annotations

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

    from gristmill.engine.pinning import Pin
    from gristmill.engine.worker_pool import WorkerPool

BYTES_A_WORKER = 16 << 20
"""The input for which one more worker is started early. A run that stays in this process has less."""
MAX_FILES = 1000
"""How many files are looked at; a recipe of more small ones waits for the plan."""


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
        num_bytes = _count_input_bytes(tree.data, Path(recipe).absolute().parent)
        num_workers = min(choose_num_workers(workers or "auto"), num_bytes // BYTES_A_WORKER)
        pool.start_ahead(num_workers, make_import_job(WORKER_MODULE, make_compute_functions_on_demand))
    return pool


def _count_input_bytes(recipe: Any, folder: Path) -> int:
    """Add up the sizes of the local files that a recipe names; 0 if its output may be there already, or in doubt."""
    match recipe:
        case {"output": str(output), "sources": dict(sources)} if not (folder / output).exists():
            files = islice(_list_files(sources, folder), MAX_FILES)
            return sum(file.stat().st_size for file in files if file.is_file())
    return 0


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
                yield from _expand_wildcards(folder / name)


def _expand_wildcards(path: Path) -> Iterator[Path]:
    fixed = next((parent for parent in path.parents if not is_wild(str(parent))), path)
    return fixed.glob(str(path.relative_to(fixed))) if is_wild(path.name) or fixed != path.parent else iter([path])
