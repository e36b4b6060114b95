"""The lines of the documents that send `accounting` to a tracker, executed."""

import re
from pathlib import Path
from types import ModuleType

import pytest
from gristmill_testing.streams import write_packed

from gristmill.stream import Stream

PAGE = Path(__file__).parents[2] / "docs/reference/streaming.md"
RESERVED = {"project", "run", "timestamp", "step", "time", "metrics"}
"""Names that trackio keeps for itself."""


@pytest.fixture
def stream(tmp_path):
    stream = Stream(write_packed(tmp_path / "out", {"web": [40], "code": [23]}), seed=7)
    for _, _batch in zip(range(3), stream.batches(4), strict=False):
        pass
    return stream


def find_lines(word):
    """The three lines of a tracker, from the page."""
    [block] = re.findall(rf"```text\n((?:[^`]*\n)?[^`]*\b{word}\b[^`]*)```", PAGE.read_text())
    assert len(block.strip().splitlines()) == 3
    return block


def test_tensorboard(stream, tmp_path, monkeypatch):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.chdir(tmp_path)
    names = {"stream": stream, "step": 5}
    exec(find_lines("SummaryWriter"), names)
    names["writer"].close()
    log = events.EventAccumulator("runs/data")
    log.Reload()
    written = {tag: log.Scalars(tag)[0].value for tag in log.Tags()["scalars"]}
    expected = stream.accounting.as_dict()
    assert set(written) == set(expected)
    assert written["data/web/share"] == pytest.approx(expected["data/web/share"])
    assert written["data/rows"] == 12
    assert {log.Scalars(tag)[0].step for tag in written} == {5}


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_trackers_with_the_interface_of_wandb(stream, tracker, monkeypatch):
    """Where neither is installed: `init(project=…)` and `log(dict, step=…)` are their documented functions."""
    calls = []
    module = ModuleType(tracker)
    module.init = lambda project, name=None, config=None: calls.append(("init", project))
    module.log = lambda data, step=None: calls.append((step, data))
    monkeypatch.setitem(__import__("sys").modules, tracker, module)
    exec(find_lines(tracker), {"stream": stream, "step": 5})
    assert calls[0][0] == "init"
    step, data = calls[1]
    assert step == 5
    assert data["data/rows"] == 12
    assert not {name for name in data if name in RESERVED or name.startswith("__")}
    assert all(isinstance(value, float) for value in data.values())


def test_wandb_itself(stream, tmp_path, monkeypatch):
    """Weights & Biases without a network: what it keeps to send later has the names and values of `as_dict`."""
    wandb = pytest.importorskip("wandb", reason="needs wandb: pip install wandb")
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_DIR", str(tmp_path)), ("WANDB_SILENT", "true")):
        monkeypatch.setenv(name, value)
    exec(find_lines("wandb"), {"stream": stream, "step": 5})
    wandb.finish()
    [log] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")  # what `wandb sync` would send
    # In its records a name is followed by a tag, a length and the value as JSON.
    kept = re.findall(rb"(data/[a-z_/]+)\x82\x01.([0-9.e+-]+)", log.read_bytes(), re.DOTALL)
    written = {name.decode(): float(value) for name, value in kept}
    expected = stream.accounting.as_dict()
    assert set(written) == set(expected)
    assert written["data/rows"] == 12
    assert written["data/web/share"] == pytest.approx(expected["data/web/share"])
