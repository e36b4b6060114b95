"""Documents in, documents out: filters, memory, many files, and runs that have nothing to do."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from benchmarks.harness.contest import Contest, Limit, Ratio, Setting, Side
from benchmarks.harness.environments import variables_of
from benchmarks.harness.processes import run_side
from benchmarks.inputs import corpora
from benchmarks.inputs.files import large_jsonl, tiny_files
from benchmarks.inputs.recipes import our_side, write_recipe

if TYPE_CHECKING:
    from pathlib import Path

BARE = "bare code, 2 processes"
DATATROVE = "datatrove"
NUM_PARTS = 8
LENGTH = [{"length": {"min_chars": 200}}]


def _zstd_sides(setting: Setting) -> list[Side]:
    corpus = corpora.plain(setting, setting.scaled(100))
    folder = corpora.parts(setting, corpus, NUM_PARTS, compress=True)
    size = corpus.stat().st_size / corpora.MB
    steps = [*LENGTH, {"write": {"format": "jsonl", "compression": "zstd"}}]
    recipe = write_recipe(setting, "zstd", f"{folder.resolve()}/*.zst", steps)
    output = str(setting.output)
    trove = ["-m", "benchmarks.sides.datatrove_runs", "length", str(folder), output]
    return [
        our_side(recipe, size),
        Side(BARE, ["-m", "benchmarks.sides.bare_zstd", str(folder), output], units=size),
        Side(DATATROVE, trove, "datatrove", size, max_rounds=2),
    ]


def _memory_sides(setting: Setting) -> list[Side]:
    path = large_jsonl(setting, setting.scaled(2000))
    recipe = write_recipe(setting, "memory", str(path.resolve()), [*LENGTH, {"write": {"format": "arrow"}}])
    return [our_side(recipe, path.stat().st_size / corpora.MB)]


def _many_files_sides(setting: Setting) -> list[Side]:
    folder = tiny_files(setting, int(setting.scaled(100_000, at_least=100)))
    recipe = write_recipe(
        setting, "many-files", f"{folder.resolve()}/**/*.jsonl", [*LENGTH, {"write": {"format": "arrow"}}]
    )
    return [our_side(recipe, 1)]


def _again_sides(setting: Setting) -> list[Side]:
    """The same command once more, on an output folder that the harness does not empty."""
    folder = tiny_files(setting, int(setting.scaled(100_000, at_least=100)))
    recipe = write_recipe(
        setting, "again", f"{folder.resolve()}/**/*.jsonl", [*LENGTH, {"write": {"format": "arrow"}}], "../again"
    )
    side = our_side(recipe, 1)
    return [Side(side.name, side.command, units=1, prepare=lambda: _run_first(recipe))]


def _run_first(recipe: Path) -> None:
    side = our_side(recipe, 1)
    run_side([sys.executable, *side.command], variables_of(side.environment))


CONTESTS = [
    Contest(
        name="zstd",
        work="JSONL.zst through a length filter to JSONL.zst, 100 MB, 2 workers, whole process",
        make_sides=_zstd_sides,
        claims=[Ratio(BARE, at_least=0.6), Ratio(DATATROVE, at_least=None)],
        data=lambda setting: f"{setting.scaled(100):g} MB of JSON lines in {NUM_PARTS} zstd files",
        rounds=5,
    ),
    Contest(
        name="memory",
        work="length filter on lines of up to 1 MiB, 2 GB, 2 workers",
        make_sides=_memory_sides,
        claims=[Limit("memory of the largest worker", 400, "MiB", lambda run: run["worker_mib"])],
        rounds=1,
    ),
    Contest(
        name="many-files",
        work="100,000 files of 30 bytes to 2 kB, 2 workers, whole process",
        make_sides=_many_files_sides,
        claims=[Limit("seconds", 60, "s", lambda run: run["wall"])],
        rounds=1,
    ),
    Contest(
        name="up-to-date",
        work="the same command again: is the dataset of 100,000 files up to date?",
        make_sides=_again_sides,
        claims=[Limit("seconds", None, "s", lambda run: run["wall"])],
        rounds=2,
    ),
]
