"""A run again, from its log of events."""

import json

import pytest
from click.testing import CliRunner

import gristmill as gm
from gristmill import Recipe, steps
from gristmill.cli.running.status import status_command
from gristmill.core.errors import UsageError
from gristmill.pipeline.monitoring.run_status import read_replay


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The log of a run with a barrier, and its books."""
    folder = tmp_path_factory.mktemp("replay")
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": f"text {n % 40}"}) + "\n" for n in range(50)))
    recipe = Recipe(
        sources={"web": steps.Read(read=str(folder / "in.jsonl"))},
        steps=[steps.Deduplicate(kind="exact"), steps.Length(min_chars=7), steps.Write(format="jsonl")],
        output=str(folder / "out"),
    )
    result = gm.run(recipe, backend="serial", progress=False, events=folder / "events.jsonl")
    return folder / "events.jsonl", result


def test_the_replay_ends_where_the_run_did(run):
    path, result = run
    *_, last = read_replay(path)
    accounts = {account.step: account for account in result.books["web"]}
    jobs = {job.name: job for job in last.ended} | {last.job: last}
    assert jobs["stage 1 of 2"].counts["records"] == accounts["read"].records_in == 50
    assert (last.job, last.done, last.total) == ("stage 2 of 2", 1, 1)
    assert last.counts["records"] == accounts["length"].records_in == 40
    assert last.counts["dropped"] == accounts["length"].dropped.total() == 10
    times = [status.written for status in read_replay(path)]
    assert times == sorted(times)


def test_the_command_shows_it_again(run):
    path, _ = run
    shown = CliRunner().invoke(status_command, [str(path), "--replay", "--speed", "1000"]).output
    assert "stage 1 of 2: 0%, 0 of 1 tasks" in shown
    assert shown.splitlines()[-1].startswith("stage 2 of 2: 100%, 1 of 1 tasks")
    assert "40 records" in CliRunner().invoke(status_command, [str(path)]).output
    data = json.loads(CliRunner().invoke(status_command, [str(path), "--json"]).output)
    assert data["status"]["job"] == "stage 2 of 2"


@pytest.mark.parametrize(
    ("content", "words"),
    [("no json\n", "line 1 is no event"), ('{"time": "x"}\n', "line 1 is no event"), ("", "no events of a run")],
)
def test_files_that_are_no_log(tmp_path, content, words):
    (tmp_path / "log").write_text(content)
    for options in ([], ["--replay"]):
        result = CliRunner().invoke(status_command, [str(tmp_path / "log"), *options])
        assert isinstance(result.exception, UsageError)
        assert words in str(result.exception)


def test_options_that_contradict(tmp_path):
    for options in (["--replay"], ["--replay", "--follow"], ["--json", "--follow"]):
        assert isinstance(CliRunner().invoke(status_command, [str(tmp_path), *options]).exception, UsageError)


def test_a_line_that_is_still_being_written(tmp_path):
    event = {"time": 1.0, "event": "job_started", "job": "stage 1", "total": 3}
    (tmp_path / "log").write_text(json.dumps(event) + "\n" + '{"time": 2.0, "ev')
    assert [status.job for status in read_replay(tmp_path / "log")] == ["stage 1"]


def test_a_clock_that_was_set_does_not_stop_the_replay(tmp_path, monkeypatch):
    events = [{"time": time, "event": "job_started", "job": "stage", "total": 3} for time in (1.0, 1e300, 2.0)]
    (tmp_path / "log").write_text("".join(json.dumps(event) + "\n" for event in events))
    waits = []
    monkeypatch.setattr("gristmill.cli.running.status.time.sleep", waits.append)
    result = CliRunner().invoke(status_command, [str(tmp_path / "log"), "--replay"])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) == 3
    assert max(waits) <= 60
