"""How fast a recipe is on one core: its first records, taken through all steps in this process."""

import json
import tempfile
from pathlib import Path

import msgspec

from gristmill.core.errors import StoppedError, UsageError
from gristmill.core.recipe import Recipe
from gristmill.engine.observing.events import EventLog
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.options import RunOptions

_RECORDS = 2000


def measure_speed(recipe: Recipe, limit: int | None) -> float:
    """Return the bytes of input that one core takes through all steps in a second. Nothing of it is kept."""
    seconds = 0.0
    with tempfile.TemporaryDirectory(prefix="gristmill-speed-") as name:
        trial = msgspec.structs.replace(recipe, output=str(Path(name, "out")), max_quarantine=1.0, allow_empty=True)
        try:
            # The first run compiles what is not compiled yet.
            for round_name in ("first", "second"):
                events = EventLog(Path(name, f"{round_name}.jsonl"))
                options = RunOptions(backend="serial", progress=False, overwrite=True, events=events)
                seconds = run_recipe(trial, options, limit=limit or _RECORDS).work_seconds
        except (StoppedError, UsageError) as error:
            raise UsageError(
                f"the first records do not get through the recipe: {error.message}",
                help="--limit takes more records",
            ) from error
        lines = Path(name, "second.jsonl").read_text().splitlines()
    jobs = [event for event in map(json.loads, lines) if event["event"] == "job_ended"]
    num_bytes = next((job["counts"]["bytes"] for job in jobs if job["counts"].get("bytes")), 0)
    if not (num_bytes and seconds):
        raise UsageError("the recipe reads no records, so its speed is not known")
    return float(num_bytes / seconds)
