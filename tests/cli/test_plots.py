"""Pictures that commands write: they hold the numbers that the commands print."""

import importlib.util
import json
import re
import sys
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from gristmill_testing.small_tokenizers import trained
from gristmill_testing.streams import write_packed

from gristmill.cli.datasets.export import mix_command
from gristmill.cli.training.stream import stream_command
from gristmill.cli.training.tokenizer import tokenizer_command
from gristmill.core.errors import UsageError
from gristmill.report.charts import Chart, draw_bars, draw_pie, make_picture, write_picture


def run(command, *words):
    result = CliRunner().invoke(command, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.exception
    return json.loads(result.output)


def read_texts(path):
    """All texts of a picture. It refers to nothing outside of itself."""
    text = path.read_text()
    assert not re.search(r"href|url[(]|@import", text)
    return [element.text for element in ET.fromstring(text).iter() if element.text]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return write_packed(tmp_path_factory.mktemp("plots") / "out", {"web": [40, 30], "code": [23]})


def test_a_training_step(out, tmp_path):
    rows = run(stream_command, "where", out, 1, "--batch-size", 4, "--plot", tmp_path / "step.svg")
    texts = read_texts(tmp_path / "step.svg")
    assert "Training step 1: 4 rows" in texts
    for row in rows:
        assert f"row {row['row']:,}: {row['source']}, epoch {row['epoch']}" in texts
        num_tokens = sum(document["tokens"] for document in row["documents"])
        assert any(text.endswith(f"{num_tokens:,} tokens") for text in texts)
    # Every document of a row has the colour of its source, as in the ring above.
    shapes = re.findall(r'class="(c\d)"><title>row [\d,]+: (\w+)', (tmp_path / "step.svg").read_text())
    assert len(set(shapes)) == len({row["source"] for row in rows})


def test_a_mix(out, tmp_path):
    other = write_packed(tmp_path / "other", {"books": [50]})
    inputs = (f"a={out}:0.6", f"b={other}:0.4")
    words = (tmp_path / "mixed", *inputs, "--size", 60, "--by", "rows", "--plot", tmp_path / "mix.svg")
    shares = run(mix_command, *words)
    texts = read_texts(tmp_path / "mix.svg")
    for share in shares:
        assert f"{share['taken']:,} of {share['wanted']:,}, {share['epochs']:.2f} epochs" in texts
        assert f"{share['source']} {share['taken'] / 60:.1%}" in texts


def test_a_tokenizer(tmp_path):
    trained(tmp_path / "tokenizer")
    (tmp_path / "a.jsonl").write_text('{"text": "mills and corn"}\n')
    words = ("check", tmp_path / "tokenizer", tmp_path / "a.jsonl", "--plot", tmp_path / "a.svg")
    report = run(tokenizer_command, *words)
    texts = read_texts(tmp_path / "a.svg")
    assert f"{report['bytes_per_token']:.2f}" in texts
    assert f"{report['num_round_trips']} of {report['num_adversarial']}" in texts


@pytest.mark.parametrize("name", ["a.gif", "a", "a.png"])
def test_what_cannot_be_written_is_refused_first(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    words = [str(tmp_path / "mixed"), "a=no/such/folder:1", "--size", "5", "--plot", str(tmp_path / name)]
    error = CliRunner().invoke(mix_command, words).exception
    assert isinstance(error, UsageError)
    assert ("resvg-py" in str(error)) == (name == "a.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(importlib.util.find_spec("resvg_py") is None, reason="resvg-py is not installed")
def test_png(tmp_path):
    write_picture(str(tmp_path / "a.PNG"), "a", [Chart("b", draw_bars("b", []))])
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")


def test_markup_in_names_stays_text():
    name = "<script>alert(1)</script>&\x00"
    root = ET.fromstring(make_picture(name, [Chart(name, draw_bars(name, []), [(0, name)])], note=name))
    assert not [element for element in root.iter() if element.tag.endswith("script")]


def test_a_legend_of_many_names_is_within_the_picture():
    names = [f"a long name of a source {number}" for number in range(8)]
    chart = Chart("Shares", draw_pie("shares", [(name, 1.0) for name in names]), list(enumerate(names)))
    picture = make_picture("a title", [chart])
    places = [int(x) for x in re.findall(r'<text x="(\d+)"[^>]*>a long name', picture)]
    assert len(places) == 8
    assert max(places) + 7 * len(names[0]) < 800
