"""`gristmill bench`: what is measured, what is recommended, and that nothing is left behind."""

import json
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from gristmill_testing.screens import run_gristmill
from gristmill_testing.scripts import interrupt
from gristmill_testing.small_tokenizers import trained
from hypothesis import given
from hypothesis import strategies as st

from gristmill import load_recipe
from gristmill.cli.running.try_settings import _print_bench, bench_command
from gristmill.core.errors import UsageError
from gristmill.pipeline.tune_settings import Bench, Measurement, Setting, _list_settings, run_bench

RECIPE = """
sources: {web: {read: in.jsonl}}
steps:
  - tokenize: {tokenizer: tokenizer}
  - pack: {row_length: 64}
output: out
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    lines = [json.dumps({"text": f"text number {number} " * 20}) for number in range(3000)]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "recipe.yaml").write_text(RECIPE)
    trained(folder / "tokenizer")
    return folder


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path, monkeypatch):
    """Every temporary folder of a test is below this one, which is empty at its end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert list(folder.iterdir()) == []


def test_every_setting_is_measured_and_nothing_is_written(project):
    shown = []
    bench = run_bench(
        load_recipe(project / "recipe.yaml"),
        seconds=120,
        workers=(1, 2),
        backends=("processes", "threads"),
        slice_sizes=(),
        batch_sizes=(4, 8),
        show=shown.append,
    )
    settings = [measurement.setting for measurement in bench.measurements]
    assert settings == shown
    assert settings[:2] == [Setting(1), Setting(2)]
    assert [setting.backend for setting in settings[2:]] == ["threads"]
    for measurement in bench.measurements:
        assert measurement.is_whole
        assert (measurement.records, measurement.bytes) == (3000, (project / "in.jsonl").stat().st_size)
        assert measurement.memory_bytes > 10 << 20
        assert measurement.seconds > 0
    assert bench.measurements[0].speed_up == 1.0
    assert [batch.batch_size for batch in bench.batches] == [4, 8]
    assert all(batch.tokens_per_second > 0 for batch in bench.batches)
    assert not (project / "out").exists()


def test_the_settings_that_are_tried():
    bench = Bench(measurements=[make_measurement(Setting(1), 100), make_measurement(Setting(2), 190)])
    settings = list(_list_settings(bench, (1, 2), ("processes", "threads", "serial"), (4 << 20, 64 << 20)))
    assert settings == [
        Setting(1),
        Setting(2),
        Setting(2, "threads"),
        Setting(1, "serial"),
        Setting(2, slice_bytes=4 << 20),
        Setting(2, slice_bytes=64 << 20),
    ]


def test_one_backend_in_this_process(project):
    """Its CPU time is that of the job, not of all that the process has done before."""
    (project / "few.jsonl").write_text('{"text": "a text"}\n')
    (project / "few.yaml").write_text(
        "sources: {web: {read: few.jsonl}}\nsteps: [write: {format: jsonl}]\noutput: out\n"
    )
    recipe = load_recipe(project / "few.yaml")
    bench = run_bench(recipe, seconds=60, workers=(1,), backends=("serial", "serial"), batch_sizes=())
    assert bench.num_settings == len(bench.measurements) == 1
    assert bench.measurements[0].cpu_share < 3


@pytest.mark.full
def test_an_interrupt_returns_what_was_measured(project):
    def interrupt_second(setting):
        if setting == Setting(2):
            raise KeyboardInterrupt

    recipe = load_recipe(project / "recipe.yaml")
    bench = run_bench(
        recipe, seconds=600, workers=(1, 2), backends=("processes",), slice_sizes=(), show=interrupt_second
    )
    assert bench.was_interrupted
    assert [measurement.setting for measurement in bench.measurements] == [Setting(1)]
    assert bench.flags == ["--workers", "1"]
    assert bench.left_out == [Setting(2)]
    assert bench.batches, "batches come before other settings"


@pytest.mark.soak
def test_ctrl_c_prints_what_was_measured(project):
    words = ("bench", "recipe.yaml", "--workers", "1,2", "--backends", "processes", "--seconds", "600")
    with run_gristmill(*words, folder=project) as screen:
        screen.wait_for("measuring: processes: 2")
        interrupt(screen.process)
        screen.read_to_end()
        assert screen.process.returncode == 130
        assert "interrupted: 1 of 5 settings were measured" in screen.text
        assert "recommended: " in screen.text
        assert "Traceback" not in screen.text
    assert not (project / "out").exists()


@pytest.mark.full
def test_a_run_is_stopped_when_its_time_is_up(project):
    """The input would take longer: a record of it never ends."""
    (project / "functions.py").write_text(
        "import time\n"
        "def hold(record):\n"
        "    while 'number 2999 ' in record['text']: time.sleep(0.01)\n"
        "    return record\n"
    )
    (project / "slow.yaml").write_text(RECIPE.replace("steps:", "steps:\n  - map: {call: functions.py:hold}"))
    words = [str(project / "slow.yaml"), "--seconds", "1", "--workers", "1", "--json", "--slice-bytes", ""]
    plot = project / "plot.svg"
    result = CliRunner().invoke(bench_command, [*words, "--backends", "processes", "--plot", str(plot)])
    assert result.exit_code == 0, result.exception
    data = json.loads(result.stdout)
    [measurement] = data["measurements"]
    assert not measurement["is_whole"]
    assert data["left_out"] == []
    assert data["lacks_batches"] != bool(data["batches"])
    assert measurement["records"] == 3000  # read; the last one is never done
    assert data["command"].endswith("slow.yaml --workers 1")
    assert plot.read_text().startswith("<svg ")
    assert "Memory of all workers" in plot.read_text()


def test_wrong_use(project, monkeypatch):
    recipe = str(project / "recipe.yaml")
    monkeypatch.setattr("gristmill.cli.running.try_settings.sysconfig.get_path", lambda name: "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    for words, message in (
        (["--plot", "a.gif"], "no name of a picture"),
        (["--plot", "no/folder/a.svg"], "no folder"),
        (["--profile", "a.svg"], "py-spy, which is not installed"),
        (["--workers", "0"], "numbers from 1"),
    ):
        error = CliRunner().invoke(bench_command, [recipe, *words]).exception
        assert isinstance(error, UsageError)
        assert message in str(error)
    assert CliRunner().invoke(bench_command, [recipe, "--backends", "x"]).exit_code == 2
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    error = CliRunner().invoke(bench_command, [recipe, "--plot", "a.png"]).exception
    assert "resvg-py, which is not installed" in str(error)


@pytest.mark.slow
@pytest.mark.skipif(not Path(sys.executable).with_name("py-spy").exists(), reason="py-spy is not installed")
def test_a_flame_graph(project):
    words = ["--seconds", "3", "--workers", "1", "--backends", "processes", "--slice-bytes", ""]
    path = project / "flame.svg"
    result = CliRunner().invoke(bench_command, [str(project / "recipe.yaml"), *words, "--profile", str(path)])
    assert result.exit_code == 0, result.exception
    assert "gristmill" in path.read_text()


def make_measurement(setting, speed):
    return Measurement(
        setting=setting,
        job="running",
        seconds=1.0,
        records=1,
        bytes=speed,
        memory_bytes=1,
        cpu_share=1.0,
        cause="computing",
        is_whole=True,
    )


settings = st.builds(
    Setting,
    st.integers(1, 64),
    st.sampled_from(["processes", "threads"]),
    st.sampled_from(["auto", 4 << 20]),
)


@given(st.dictionaries(settings, st.integers(1, 10**6), min_size=1))
def test_the_recommended_setting_is_nearly_the_fastest(speeds):
    bench = Bench(measurements=[make_measurement(*pair) for pair in speeds.items()])
    best = bench.best
    assert best.bytes * 1.05 >= max(speeds.values())
    assert bench.flags[:2] == ["--workers", str(best.setting.workers)]
    assert ("--backend" in bench.flags) == (best.setting.backend != "processes")
    assert bench.bottleneck.startswith("computing")


def test_few_workers_are_enough_if_more_are_not_faster():
    speeds = {Setting(1): 100, Setting(2): 190, Setting(4): 195, Setting(2, slice_bytes=4 << 20): 198}
    bench = Bench(measurements=[make_measurement(*pair) for pair in speeds.items()])
    assert bench.flags == ["--workers", "2"]
    speeds[Setting(2, "threads", "auto")] = 300
    bench = Bench(measurements=[make_measurement(*pair) for pair in speeds.items()])
    assert bench.flags == ["--workers", "2", "--backend", "threads"]


@pytest.mark.parametrize("speed_of_two", [190, 337])
def test_nothing_is_recommended_from_noise(capsys, speed_of_two):
    """Two workers cannot be 3.37 times as fast as one: the one was slowed by something else."""
    measurements = [
        msgspec.structs.replace(make_measurement(Setting(workers), speed), speed_up=speed / 100)
        for workers, speed in ((1, 100), (2, speed_of_two))
    ]
    bench = Bench(measurements=measurements, num_settings=2)
    busy = Bench(measurements=[msgspec.structs.replace(measurements[1], cause="machine")] * 2, num_settings=2)
    assert (bench.is_noise, busy.is_noise) == (speed_of_two == 337, True)
    for shown in (bench, busy):
        _print_bench(shown, "recipe.yaml", ())
        assert ("--workers" in capsys.readouterr().out) != shown.is_noise


def test_one_setting_is_no_choice(capsys):
    bench = Bench(
        measurements=[make_measurement(Setting(1), 0)], num_settings=6, left_out=[Setting(2), Setting(1, "threads")]
    )
    _print_bench(bench, "recipe.yaml", ())
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "out of time: 1 of 6 settings were measured, and not processes: 2, slices auto; threads: 1, slices auto" in text
    )
    assert "recommended: nothing yet" in text
    assert "0 bytes/s" not in text  # no task has ended: the rate is not known, but not 0
