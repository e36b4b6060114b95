"""How claims are judged from runs, and how a contest is held when a side fails."""

import doctest
import importlib
import pkgutil
import sys
from pathlib import Path

import pytest
from benchmarks.harness import environments
from benchmarks.harness.contest import OURS, Contest, Limit, Ratio, Setting, Side
from benchmarks.harness.rounds import hold, judge
from benchmarks.reports.terminal import format_table

import benchmarks

NEEDS_OTHERS = ("benchmarks.sides", "benchmarks.studies", "benchmarks.__main__")


def runs_of(**walls):
    return {name: [{"wall": wall, "cpu": wall * 2, "units": 10.0} for wall in times] for name, times in walls.items()}


def test_ratio_is_that_of_the_best_runs():
    judged = judge(Ratio("peer", at_least=4), runs_of(gristmill=[2.0, 1.0], peer=[6.0, 5.0]))
    assert (judged["value"], judged["low"], judged["high"]) == (5.0, 3.0, 5.0)
    assert judged["outcome"] == "met"
    assert judge(Ratio("peer", at_least=6), runs_of(gristmill=[1.0], peer=[5.0]))["outcome"] == "missed"


def test_units_make_parts_of_the_input_comparable():
    runs = runs_of(gristmill=[1.0], peer=[1.0])
    runs["peer"][0]["units"] = 2.0
    assert judge(Ratio("peer", None), runs)["value"] == 5.0


def test_slow_peer_runs_in_fewer_rounds():
    judged = judge(Ratio("peer", None), runs_of(gristmill=[1.0, 2.0, 4.0], peer=[8.0]))
    assert (judged["low"], judged["high"]) == (2.0, 8.0)


def test_limit_and_sides_that_did_not_run():
    limit = Limit("CPU", 5, "s", lambda run: run["cpu"])
    assert judge(limit, runs_of(gristmill=[3.0, 2.0]))["outcome"] == "met"
    assert judge(limit, runs_of(gristmill=[])) is None
    assert judge(Ratio("peer", 2), runs_of(gristmill=[1.0])) is None


def test_failing_side_is_named_and_the_others_go_on(tmp_path):
    sides = [Side(OURS, ["-c", "pass"]), Side("broken", ["-c", f"raise SystemExit('no such luck in {tmp_path}/x')"])]
    contest = Contest("c", "work", lambda _: sides, [Ratio("broken", 1), Limit("s", 1, "s", lambda run: run["wall"])])
    result = hold(contest, Setting(tmp_path, scale=0.5), 2, lambda line: None)
    assert "no such luck in x" in result["failures"]["broken"]  # published, so without folders of this machine
    assert len(result["runs"][OURS]) == 2
    assert [claim["outcome"] for claim in result["claims"]] == [""]  # targets count at full size only
    assert "broken" in format_table([result])


def test_microseconds_are_not_rounded_to_nothing(tmp_path):
    script = "import json; print(json.dumps({'inner': 0.0000123456, 'units': 1}))"
    contest = Contest(
        "c", "work", lambda _: [Side(OURS, ["-c", script]), Side("peer", ["-c", script])], [Ratio("peer", 1, "inner")]
    )
    result = hold(contest, Setting(tmp_path, scale=0.5), 1, lambda line: None)
    assert result["runs"][OURS][0]["inner"] == 0.000012346
    assert "1x" in format_table([result])


def test_environment_that_cannot_be_made_is_a_failed_side(tmp_path, monkeypatch):
    (tmp_path / "odd.txt").write_text("no package has this name==1\n")
    monkeypatch.setattr(environments, "PEERS", tmp_path)
    sides = [Side(OURS, ["-c", "pass"]), Side("peer", ["-c", "pass"], "odd")]
    monkeypatch.setattr(environments, "list_commands", lambda *_: [["false"]])
    result = hold(Contest("c", "work", lambda _: sides, []), Setting(tmp_path, scale=0.5), 1, lambda line: None)
    assert "environment" in result["failures"]["peer"]
    assert result["runs"][OURS]


@pytest.mark.parametrize("uv", [None, "/bin/uv"])
def test_environments_hold_what_their_files_list_and_what_torch_needs(tmp_path, uv):
    requirements = tmp_path / "peer.txt"
    requirements.write_text("numpy==2.4.6\ntorch==2.13.0\n")
    create, install, torch = environments.list_commands(tmp_path / "home", requirements, uv)
    assert "venv" in create
    assert install[-3:] == ["--no-deps", "-r", str(requirements)]
    assert torch[-3:] == ["torch==2.13.0", "-c", str(requirements)]
    requirements.write_text("numpy==2.4.6\n")
    assert len(environments.list_commands(tmp_path / "home", requirements, uv)) == 2


@pytest.mark.parametrize(
    "name",
    [
        module.name
        for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")
        if not module.name.startswith(NEEDS_OTHERS)
    ],
)
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_sides_of_peers_import_nothing_of_ours():
    """They run in environments that have no Gristmill."""
    folder = Path(sys.modules["benchmarks"].__file__).parent / "sides"
    for name in ("datasets_map", "datatrove_runs", "chats_transformers", "stream_peers", "stream_rate"):
        text = (folder / f"{name}.py").read_text()
        assert "gristmill" not in text.replace("Gristmill", "").partition('"""')[2].partition('"""')[2], name
