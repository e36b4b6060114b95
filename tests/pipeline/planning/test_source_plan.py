"""The plan of one source: stages, units and tasks."""

from gristmill.core.recipe import Recipe
from gristmill.pipeline.planning.plan import make_plan
from gristmill.readers.read import Read
from gristmill.steps.length import Length
from gristmill.steps.sampling import Limit, Shuffle
from gristmill.steps.write import Write

LINE = '{"text": "a document of some words"}\n'


def _outline(folder, *steps, read="*.jsonl", **keys):
    recipe = Recipe(sources={"web": Read(read=read)}, steps=steps, output="out", folder=str(folder), **keys)
    return make_plan(recipe).outline()


def test_stages_end_at_steps_that_need_all_records(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINE)
    outline = _outline(tmp_path, Length(), Shuffle(), Limit(max_records=3), Write(format="jsonl"))
    assert outline.sources[0].stages == [["read", "length", "shuffle"], ["limit"], ["write"]]


def test_a_large_file_has_several_units_and_smaller_slices_more_tasks(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINE * ((130 << 20) // len(LINE)))
    whole, cut = (_outline(tmp_path, slice_bytes=size).sources[0] for size in (64 << 20, 16 << 20))
    assert (whole.num_units, whole.num_tasks) == (3, 3)
    assert cut.num_units == 3
    assert 8 <= cut.num_tasks <= 10
