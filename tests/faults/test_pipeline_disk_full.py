"""A disk that is full in the middle of a run: a clean stop, and the same bytes once there is room."""

import errno
import json
import os
import random
import shutil
import subprocess

import pytest
from gristmill_testing.reports import read_without_times

from gristmill.core.recipe import Recipe
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.shards.verify import verify
from gristmill.steps import Read, Shuffle, Split, Write


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 12 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def files_in(folder):
    return {
        path.relative_to(folder).as_posix(): read_without_times(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("backend", ["serial", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("steps", [[Write(format="jsonl")], [Shuffle(), Split(validation=0.1), Write(format="arrow")]])
def test_a_full_disk(small_disk, tmp_path, backend, steps):
    layout = UnitLayout(unit_bytes=700_000, min_group_bytes=400_000)
    rng = random.Random(1)
    (tmp_path / "in").mkdir()
    for number in range(16):
        records = [{"n": n, "text": f"{rng.getrandbits(1600):0400x}"} for n in range(500)]
        (tmp_path / f"in/{number:02d}.jsonl").write_text("\n".join(map(json.dumps, records)))
    output = small_disk / "out"
    recipe = Recipe(sources={"web": Read(read=f"{tmp_path}/in/*")}, steps=steps, output=str(output), slice_bytes=1)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (9 << 20))

    with pytest.raises(OSError, match="No space left") as caught:
        run_recipe(recipe, RunOptions(backend=backend, workers=2, progress=False, layout=layout))
    assert caught.value.errno == errno.ENOSPC
    assert any(str(output) in note for note in caught.value.__notes__)
    left = files_in(output)
    assert not [path for path in left if path.endswith(".tmp")]
    assert "manifest.json" not in left
    assert ".gristmill/receipts.jsonl" in left

    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=100m", str(small_disk)], check=True)
    run_recipe(recipe, RunOptions(backend=backend, workers=2, progress=False, layout=layout))
    assert verify(output)
    resumed = files_in(output)
    shutil.rmtree(output)
    run_recipe(recipe, RunOptions(backend="serial", progress=False, layout=layout))
    assert files_in(output) == resumed
