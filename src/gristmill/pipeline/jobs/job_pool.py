"""The workers of a job on finished datasets, such as an export or a mix: processes here, or the nodes of a cluster."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from gristmill.engine.parallel_run import make_pool
from gristmill.engine.tasks import run_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.engine.backends.ray import RaySettings
    from gristmill.storage.locations import Location

RunTasks = partial[Any]
"""`run_tasks` with the workers of the job."""


@dataclass(frozen=True, slots=True)
class JobPool:
    """Workers that serve one set of tasks after another."""

    run: RunTasks
    settings: RaySettings | None
    """Set on a cluster."""

    @property
    def is_cluster(self) -> bool:
        return self.settings is not None

    def store_jobs_at(self, stem: Location) -> None:
        """Choose the beginning of paths for descriptions of tasks that are too large for a message to a node."""
        if self.settings is not None:
            self.settings.store_jobs_at(stem)


@contextmanager
def open_job_pool(
    *,
    workers: int | Literal["auto"],
    backend: str,
    ray_address: str | None,
    progress: bool | None,
    runs_user_code: bool = False,
) -> Iterator[JobPool]:
    """Open a pool. Nothing is tried twice: tasks only read and write files, and stores repeat their requests."""
    settings: RaySettings | None = None
    if backend == "ray":
        from gristmill.engine.backends.ray import connect_to_cluster  # noqa: PLC0415  (the door to Ray)

        settings = connect_to_cluster(ray_address)
    with make_pool("ray" if settings else "processes", keeps_workers=True, settings=settings) as pool:
        run = partial(
            run_tasks,
            workers=workers,
            backend=backend,
            retries=0,
            progress=progress,
            pool=pool,
            runs_user_code=runs_user_code,
        )
        yield JobPool(run, settings)
