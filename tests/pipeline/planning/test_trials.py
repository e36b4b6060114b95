"""The plan tries the steps on real records, and survives what they do there."""

import json
import os

import pytest

import gristmill as gm
from gristmill.steps import Map, Read

FUNCTIONS = """
import os, signal, time

def dies_on_the_third(record):
    if record["n"] == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    return record

def notes_its_process(record):
    with open(os.path.join(os.path.dirname(__file__), "pids"), "a") as file:
        file.write(f"{os.getpid()}\\n")
    return record
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"n": n, "text": f"text {n}"}) + "\n" for n in range(300)))
    return tmp_path


def recipe_of(folder, function, **settings):
    return gm.Recipe(
        sources={"web": Read(read="a.jsonl")},
        steps=[Map(call=f"functions.py:{function}")],
        output="out",
        folder=str(folder),
        **settings,
    )


@pytest.mark.slow
def test_a_record_that_crashes_is_left_to_the_run(folder):
    recipe = recipe_of(folder, "dies_on_the_third")
    assert "note: a sample record ends its worker" in str(gm.plan(recipe))
    result = gm.run(recipe, workers=2, progress=False)
    assert result.manifest.quarantine.counts == {"web": {"worker_died": 1}}
    assert result.manifest.environment_dependent


@pytest.mark.parametrize(("backend", "elsewhere"), [("processes", True), ("serial", False)])
def test_users_functions_are_tried_where_they_will_run(folder, backend, elsewhere):
    gm.run(recipe_of(folder, "notes_its_process"), backend=backend, progress=False)
    pids = {int(line) for line in (folder / "pids").read_text().split()}
    assert (os.getpid() not in pids) == elsewhere
