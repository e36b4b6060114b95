"""`gm.view`: what the viewer opens, with the order of training, which `report` does not know."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.pipeline.publishing.failed_run import open_failed_run
from gristmill.report.view.dataset_rows import DatasetRows
from gristmill.report.view.rows import StepRow
from gristmill.shards.dataset import open_dataset
from gristmill.shards.derived_files import REPORT_PAGE
from gristmill.shards.stored_files import MANIFEST
from gristmill.storage.locations import is_remote, parse_location

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from gristmill.report.view.rows import Rows
    from gristmill.report.view.server import View
    from gristmill.shards.dataset import Dataset
    from gristmill.stream import Stream

_NUM_POINTS = 60
_POINT_ROWS = 2048
_MAX_STEP_ROWS = 10_000
_MAX_CELL_ROWS = 10_000


class StreamSteps:
    """The order of training of a dataset, with the mixture and the seed that a stream has by default."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @cached_property
    def _stream(self) -> Stream:
        from gristmill.stream import Stream  # noqa: PLC0415  (most people only look at rows)

        return Stream(self._folder)

    def find_rows(self, step: int, batch_size: int, world_size: int) -> list[StepRow]:
        """Find the rows that a step reads."""
        if batch_size * world_size > _MAX_STEP_ROWS:
            raise UsageError(
                f"a step of {batch_size * world_size:,} rows is too large to show", help="use a smaller one"
            )
        shards = {shard.path: shard.first_row for lane in self._stream.lanes for shard in lane.shards}
        return [
            StepRow(
                number=shards[row.shard] + row.shard_row,
                stream_row=row.row,
                rank=row.rank,
                epoch=row.epoch,
                source=row.source,
            )
            for row in self._stream.where(step, batch_size, world_size)
        ]

    def describe_mixture(self, steps: int, batch_size: int, world_size: int) -> dict[str, Any]:
        """Describe the share of each source at up to 60 steps, each counted in the rows from there to the next one."""
        stream, step_rows = self._stream, batch_size * world_size
        table = stream.reader.table
        borders = np.unique(np.linspace(0, steps, min(_NUM_POINTS, steps) + 1).astype(np.int64)) * step_rows
        points = []
        for start, stop in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
            # All rows of a short interval; evenly spread ones of a long one.
            rows = np.unique(np.linspace(start, stop - 1, min(_POINT_ROWS, stop - start)).astype(np.int64))
            counts = np.bincount(table.shards_of(stream.order(rows).indices), minlength=len(table.shards))
            shares = dict.fromkeys(stream.sources, 0.0)
            for number in np.flatnonzero(counts).tolist():
                for source, share in table.shards[number].shares.items():
                    shares[source] += share * int(counts[number]) / len(rows)
            points.append({"step": start // step_rows, "shares": list(shares.values())})
        return {"sources": stream.sources, "points": points, "steps": steps}


def open_collections(paths: Sequence[str | os.PathLike[str]]) -> dict[str, Rows]:
    """Open every dataset with its quarantined and dropped records; all other paths are raw files.

    Two datasets are compared, too: what differs comes first.
    """
    datasets: dict[str, DatasetRows] = {}
    others: dict[str, Rows] = {}
    files: list[Path] = []
    for path in map(str, paths):
        location = parse_location(path)
        if not is_remote(location) and location.is_file():
            files.append(Path(location))
        elif not is_remote(location) and not location.is_dir():
            raise UsageError(f"there is no file or dataset {path}", help="name the output of a run, or raw files")
        elif (failed := open_failed_run(location)) is not None:
            dataset, failure = failed
            lines = _open_lines(location.name, dataset)
            if not lines:
                raise UsageError(
                    f"the run in {path} {failure.describe()}, and has refused no record",
                    help=f"its report: {location / REPORT_PAGE}",
                )
            for rows in lines.values():
                rows.note = f"This run {failure.describe()}. {rows.note}".strip()
            others |= lines
        elif not (location / MANIFEST).exists():
            raise UsageError(f"there is no dataset {path}", help="raw files are shown from a local disk only")
        else:
            dataset = open_dataset(location)
            name = location.name if location.name not in datasets else path
            datasets[name] = DatasetRows(dataset, StreamSteps(str(location)))
            datasets[name].title = name
            others |= _open_lines(name, dataset)
    collections: dict[str, Rows] = {}
    if len(datasets) == 2:
        from gristmill.report.view.difference_rows import DifferenceRows  # noqa: PLC0415  (a first screen is fast)

        collections["differences"] = DifferenceRows(*datasets.values())
    collections |= datasets | others
    if files:
        from gristmill.report.view.raw_files import FileRows  # noqa: PLC0415

        collections["files"] = FileRows(files)
    return collections


def _open_lines(name: str, dataset: Dataset) -> dict[str, Rows]:
    """Open the quarantined and dropped records of a dataset."""
    manifest = dataset.manifest
    collections: dict[str, Rows] = {}
    for title, stored in (("quarantined", manifest.quarantine.files), ("dropped", manifest.dropped)):
        files = [file for file in stored if ".jsonl" in file.path]
        if files:
            from gristmill.report.view.line_rows import LineRows  # noqa: PLC0415

            collections[f"{name} · {title}"] = LineRows(f"{name} · {title}", dataset, files)
    return collections


def view(*paths: str | os.PathLike[str], rows: int = 5, port: int = 0) -> View:
    """Serve datasets or raw files to a browser on this machine, and show the first rows in a notebook.

    Args:
        paths: Outputs of runs, or raw JSONL, Parquet, Arrow and tar files. What differs between two datasets is shown
            side by side.
        rows: The number of rows in the cell of a notebook, at most 10,000. They are part of the cell, so they need no
            server.
        port: The port of the server. 0: any free one.

    Returns:
        The server's address (`url`), and `close()`, which ends it. It ends with the process, too.
    """
    from gristmill.report.view.server import View  # noqa: PLC0415  (the command needs none of it)

    if not paths:
        raise UsageError("there is nothing to view", help='for example gm.view("out")')
    if not 0 <= rows <= _MAX_CELL_ROWS:
        raise UsageError(f"rows must be from 0 to {_MAX_CELL_ROWS:,}, not {rows:,}", help="the address shows all rows")
    return View(open_collections(paths), rows, port)
