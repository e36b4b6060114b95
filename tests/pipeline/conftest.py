"""A corpus of several cells, units and tasks, and one way to run recipes and to see all that they leave."""

import gzip
import json
import random
import shutil
from pathlib import Path

import pytest
from gristmill_testing.reports import read_without_times

from gristmill.core.recipe import Recipe
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.shards.verify import verify

FUNCTIONS = """
def shout(record):
    if record["n"] % 5000 == 17:
        raise ValueError("seventeen")
    return {**record, "text": record["text"].upper()}


def is_even(record):
    return record["n"] % 2 == 0


def fails(record):
    raise RuntimeError("never works")
"""


def json_lines(name, count, seed, *, max_words=400):
    """Records of very different lengths."""
    rng = random.Random(seed)
    words = ["mill", "grist", "flour", "stone", "wheat", "größe", "粉"]
    return b"".join(
        json.dumps(
            {"id": f"{name}-{n}", "n": n, "text": " ".join(rng.choices(words, k=rng.randrange(1, max_words)))},
            ensure_ascii=False,
        ).encode()
        + b"\n"
        for n in range(count)
    )


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """`web`: 11 MB in one file (cells can be read apart), `books`: small files and a compressed one, with bad lines."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "functions.py").write_text(FUNCTIONS)
    web, books = folder / "web", folder / "books"
    web.mkdir()
    books.mkdir()
    (web / "large.jsonl").write_bytes(json_lines("large", 9000, 1))
    (web / "other.jsonl").write_bytes(json_lines("other", 200, 2))
    for number in range(4):
        bad = b'{"n": 1}\n\xff\n' if number == 2 else b""
        (books / f"small-{number}.jsonl").write_bytes(json_lines(f"s{number}", 150, 10 + number) + bad)
    (books / "packed.jsonl.gz").write_bytes(gzip.compress(json_lines("packed", 4000, 3) + b"{broken\n", 1, mtime=0))
    (books / "zero.jsonl").write_bytes(b"")
    return folder


@pytest.fixture
def small_units(mill):
    """Several units from a few megabytes."""
    mill.layout = UnitLayout(unit_bytes=8 << 20, min_group_bytes=1 << 20, cells_per_unit=2)


def files_in(folder, *, work=True):
    """Path -> bytes of every file."""
    return {
        path.relative_to(folder).as_posix(): read_without_times(path)
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and (work or ".gristmill" not in path.parts)
    }


@pytest.fixture
def mill(tmp_path):
    """Runs a recipe; gives its result, or with `files` all that the folder holds."""
    return Mill(tmp_path)


class Mill:
    def __init__(self, folder):
        self.folder = folder
        self.output = folder / "out"
        self.layout = UnitLayout()

    def recipe(self, sources, steps, **settings):
        return Recipe(sources=sources, steps=steps, output=str(self.output), **settings)

    def run(self, recipe, *, limit=None, **options):
        options = {"backend": "serial", "progress": False, "layout": self.layout} | options
        result = run_recipe(recipe, RunOptions(**options), limit=limit)
        found = verify(self.output)
        assert found, found.problems
        return result

    def fresh_files(self, recipe, *, work=False, **options):
        """All that a run from nothing leaves."""
        shutil.rmtree(self.output, ignore_errors=True)
        self.run(recipe, **options)
        return files_in(self.output, work=work)

    def files(self, *, work=True):
        return files_in(self.output, work=work)
