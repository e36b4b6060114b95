"""How the cost grows: `make bench-scaling`, with MAX_MB, MAX_FILES and MAX_WORKERS for smaller sizes.

Three series of whole runs of one recipe, JSON lines to packed rows: by size, by number of files, by workers. Linear
means that the CPU time of a gigabyte stays the same; flat memory that the largest worker does. Each point is a fresh
process and is stored when it is measured, so an interrupted series resumes with `--resume`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from benchmarks.harness.contest import OURS, Setting
from benchmarks.harness.environments import variables_of
from benchmarks.harness.processes import adopt_orphans, run_side
from benchmarks.harness.results import PUBLISHED, describe_machine, find_commit, load_result, write_json
from benchmarks.inputs import corpora, tokenizers
from benchmarks.inputs.recipes import our_side, to_rows, write_recipe

SIZES = (10, 100, 1000, 10_000)
FILES = (1, 10, 100, 1000, 10_000, 100_000)
WORKERS = (1, 2, 3, 4)
FILES_MB, WORKERS_MB = 100, 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-mb", type=float, default=SIZES[-1], help="the largest input (default 10,000)")
    parser.add_argument("--max-files", type=int, default=FILES[-1])
    parser.add_argument("--max-workers", type=int, default=WORKERS[-1])
    parser.add_argument("--only", choices=["size", "files", "workers"], action="append")
    parser.add_argument("--rounds", type=int, default=2, help="of each point, the best counts (default 2)")
    parser.add_argument("--resume", action="store_true", help="keep points that this commit was measured on")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("bench-data"))
    options = parser.parse_args()
    setting = Setting(options.folder.resolve(), corpus=options.corpus, tokenizer=options.tokenizer)
    is_full = (options.max_mb, options.max_files, options.max_workers) == (SIZES[-1], FILES[-1], WORKERS[-1])
    path = PUBLISHED / "scaling.json" if is_full else setting.folder / "results" / "scaling.json"
    adopt_orphans()
    for series, value, recipe, megabytes, workers in list_points(setting, options):
        measure(path, series, value, our_side(recipe, megabytes, workers=workers).command, megabytes, setting, options)
    if is_full:
        from benchmarks.reports.publish import publish

        publish()
    return 0


def list_points(setting: Setting, options: argparse.Namespace):
    """Yield series, value, recipe, megabytes and workers; inputs are written when a point is due."""
    chosen = options.only or ["size", "files", "workers"]
    steps = to_rows(tokenizers.byte_level(setting))

    def point(series: str, value: float, read: Path | str, source: Path, workers: int):
        megabytes = source.stat().st_size / corpora.MB
        return series, value, write_recipe(setting, f"scaling-{series}", str(read), steps), megabytes, workers

    if "size" in chosen:
        for size in [size for size in SIZES if size <= options.max_mb]:
            source = corpora.plain(setting, size)
            yield point("size", size, source.resolve(), source, 2)
    if "files" in chosen:
        source = corpora.plain(setting, min(FILES_MB, options.max_mb))
        num_documents = sum(1 for _ in source.open("rb"))
        for count in [count for count in FILES if count <= options.max_files]:
            if count > num_documents:
                source = corpora.short_documents(setting, count)
            folder = corpora.parts(setting, source, count)
            yield point("files", count, f"{folder.resolve()}/*.jsonl", source, 2)
    if "workers" in chosen:
        source = corpora.plain(setting, min(WORKERS_MB, options.max_mb))
        for workers in [workers for workers in WORKERS if workers <= options.max_workers]:
            yield point("workers", workers, source.resolve(), source, workers)


def measure(path: Path, series: str, value, command: list[str], megabytes: float, setting: Setting, options) -> None:
    result = load_result(path) or {"series": {}}
    points = result["series"].setdefault(series, {})
    known = points.get(str(value))
    if options.resume and known and known["commit"] == find_commit():
        return
    load, runs = os.getloadavg()[0], []
    for _ in range(options.rounds):
        shutil.rmtree(setting.output, ignore_errors=True)
        setting.output.mkdir(parents=True)
        runs.append(run_side([sys.executable, *command], variables_of(OURS)).as_dict())
    points[str(value)] = {
        "mb": round(megabytes, 1),
        "wall": round(min(run["wall"] for run in runs), 2),
        "cpu": round(min(run["cpu"] for run in runs), 2),
        "worker_mib": round(max(run["worker_mib"] for run in runs)),
        "parent_mib": round(max(run["parent_mib"] for run in runs)),
        "load": round(load, 1),
        "commit": find_commit(),
    }
    result["machine"] = describe_machine()
    write_json(path, result)
    numbers = points[str(value)]
    print(
        f"{series} {value}: {numbers['wall']} s, CPU {numbers['cpu']} s, worker {numbers['worker_mib']} MiB", flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
