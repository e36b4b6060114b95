"""Outputs behind Google's and Azure's interfaces: made, cleaned, replaced and read as anywhere else."""

import json

import pytest

import gristmill as gm
from gristmill import Recipe, steps
from gristmill.core.errors import GristmillError
from gristmill.pipeline.publishing.clean import clean
from gristmill.storage.folders import open_folder
from gristmill.storage.locations import parse_location
from gristmill.storage.user_cache import choose_copies_folder


@pytest.fixture(autouse=True)
def copies(tmp_path):
    choose_copies_folder(tmp_path / "copies")
    yield
    choose_copies_folder(None)


@pytest.fixture(params=["gs", "az"])
def output(request):
    return f"{request.getfixturevalue(request.param)}/datasets/out"


def run(corpus, files, place, **options):
    read = steps.Read(read=f"{corpus}/{files}.jsonl")
    recipe = Recipe(sources={"web": read}, steps=[steps.Deduplicate(), steps.Shuffle()], output=str(place))
    return gm.run(recipe, backend="serial", progress=False, **options)


def test_an_output_is_cleaned_made_replaced_and_read(output, tmp_path):
    for name in ("one", "two"):
        lines = [json.dumps({"text": f"text number {number // 2} of {name}"}) for number in range(50)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    (tmp_path / "bad.jsonl").write_text('{"text": "a text"}\n' + 50 * "{broken\n")
    with pytest.raises(GristmillError, match="quarantined"):
        run(tmp_path, "bad", output)
    assert clean(parse_location(output)).files
    local = tmp_path / "local"
    assert run(tmp_path, "one", output).manifest.dataset_hash == run(tmp_path, "one", local).manifest.dataset_hash
    for place in (local, output):  # the manifest is replaced in the version that was seen
        run(tmp_path, "[ot]*", place, update=True)
    here, there = gm.open_dataset(local), gm.open_dataset(output)
    assert there.manifest.dataset_hash == here.manifest.dataset_hash
    assert [there[row] for row in range(len(there))] == [here[row] for row in range(len(here))]
    assert clean(parse_location(output)).files == []
    names = {name.partition("/")[0] for name, _ in open_folder(parse_location(output)).list_below()}
    assert names == {path.name for path in local.iterdir()}
