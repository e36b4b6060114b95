"""A run that fails leaves a report with its reason and the records that it refused; the next run removes it."""

import json

import pytest
from click.testing import CliRunner

import gristmill as gm
from gristmill import steps
from gristmill.cli.datasets.inspect import inspect_command
from gristmill.cli.running.status import status_command
from gristmill.core.errors import GristmillError, QuarantineError, TooManyBadError
from gristmill.pipeline.inspecting.viewing import open_collections
from gristmill.pipeline.publishing.clean import clean
from gristmill.report.view.rows import count_rows
from gristmill.report.write import load_report

GOOD = [json.dumps({"text": f"good text {number}"}) for number in range(200)]
BAD = [f"{{broken {number}" for number in range(60)]


def make_recipe(folder, lines, **settings):
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "other.jsonl").write_text("\n".join(GOOD) + "\n")
    return gm.Recipe(
        sources={name: steps.Read(read=str(folder / f"{name}.jsonl")) for name in ("in", "other")},
        steps=[steps.Length(min_chars=12), steps.Write(format="jsonl")],
        output=str(folder / "out"),
        keep_dropped="samples",
        **settings,
    )


def run(recipe):
    return gm.run(recipe, backend="serial", progress=False)


def test_too_many_quarantined(tmp_path):
    lines = [line for pair in zip(GOOD, BAD, strict=False) for line in pair]
    with pytest.raises(QuarantineError) as raised:
        run(make_recipe(tmp_path, lines))
    out = tmp_path / "out"
    assert f"gristmill view {out}" in raised.value.help
    report = load_report(out)
    assert report.failure.message == raised.value.message
    assert report.quarantined == {"in": {"invalid_json": 60}}
    [sample] = report.samples.quarantined  # equal errors are shown once
    assert (sample.reason.partition(":")[0], sample.num_alike) == ("invalid_json", 60)
    assert {sample.reason for sample in report.samples.dropped} == {"too_short"}
    page = (out / "report.html").read_text()
    assert "The run failed: source in: 60 of 120 records were quarantined" in page
    assert {name: count_rows(rows) for name, rows in open_collections([out]).items()} == {
        "out · quarantined": 60,
        "out · dropped": 20,
    }
    shown = CliRunner().invoke(inspect_command, [str(out), "--quarantine", "-n", "1"]).output
    assert "record: {broken 0" in shown
    assert CliRunner().invoke(status_command, [str(out)]).output.startswith(f"{out}: the run")
    run(make_recipe(tmp_path, lines, max_quarantine=0.9))
    assert load_report(out).failure is None
    assert "The run failed" not in (out / "report.html").read_text()


def test_a_task_that_fails_tells_its_last_records(tmp_path):
    with pytest.raises(TooManyBadError):
        run(make_recipe(tmp_path, [*GOOD, *BAD, *BAD], max_quarantine=0.5))
    [sample] = load_report(tmp_path / "out").samples.quarantined
    assert (sample.text, sample.num_alike) == ("{broken 48", 12)
    clean(tmp_path / "out")
    assert not (tmp_path / "out/report.html").exists()


def test_a_failed_update_leaves_the_report_of_the_dataset(tmp_path):
    run(make_recipe(tmp_path, GOOD))
    page = (tmp_path / "out/report.html").read_bytes()
    with pytest.raises(GristmillError):
        gm.run(make_recipe(tmp_path, [*GOOD, *BAD]), backend="serial", progress=False, update=True)
    assert (tmp_path / "out/report.html").read_bytes() == page


def test_a_stopped_run(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("gristmill.pipeline.execution.publish.publish", stop)
    with pytest.raises(KeyboardInterrupt):
        run(make_recipe(tmp_path, GOOD))
    report = load_report(tmp_path / "out")
    assert report.failure.is_stopped
    assert report.totals.records_in == 400
    assert "The run was stopped." in (tmp_path / "out/report.html").read_text()
