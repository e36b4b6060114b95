"""How the units of a stage are cut into tasks."""

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.stages.outputs.unit_output import choose_shard_output
from gristmill.pipeline.stages.unit_tasks import CutChooser
from gristmill.steps import Length, Write
from gristmill.storage.locations import StorePath

STORE = StorePath("memory://bucket/out")


@pytest.mark.parametrize(
    ("root", "num_units", "slice_bytes", "is_whole"),
    [
        (STORE, 4, "auto", True),
        (STORE, 3, "auto", False),
        (STORE, 4, 8 << 20, False),
        (Path("out"), 4, "auto", False),
    ],
    ids=["store", "idle workers", "size in the recipe", "disk"],
)
def test_units_on_a_store_stay_whole_if_each_worker_has_one(root, num_units, slice_bytes, is_whole):
    """Slices of a unit would be uploaded, read and uploaded again."""
    source = SimpleNamespace(
        steps=[Length()],
        output=choose_shard_output(Write(format="jsonl"), pa.schema({"text": pa.string()})),
        layout=UnitLayout(),
    )
    stage = SimpleNamespace(root=root, sources={"web": source}, keep_dropped=None)
    chooser = CutChooser(slice_bytes, 4, stage, num_units)
    unit = SimpleNamespace(source=SimpleNamespace(name="web"), size=3 * UnitLayout().unit_bytes)
    assert (chooser.choose(unit, bytes_after=0).choose_size(unit.size) >= unit.size) is is_whole
