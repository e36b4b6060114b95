"""The report in a real browser: every chart is there, its numbers are those of the books, nothing in the data runs."""

import json
import re
import shutil
from pathlib import Path

import pytest
from gristmill_testing.reports import EVIL
from gristmill_testing.small_tokenizers import trained

import gristmill as gm
from gristmill import steps
from gristmill.report import page
from gristmill.report.write import write_report
from gristmill.shards.dataset import open_dataset

CSS = (Path(page.__file__).parent / "assets/report.css").read_text()


@pytest.fixture(scope="module")
def shown(browser, web):
    opened = browser.open(f"file://{web}/report.html")
    yield opened
    opened.close()


def test_nothing_in_the_data_is_markup(shown, web):
    assert shown.run("window.hacked") is None
    assert shown.problems == []
    assert shown.requests == [f"file://{web}/report.html"]
    assert shown.run("document.querySelectorAll('script').length") == 1
    assert shown.run("document.querySelectorAll('img').length") == 0
    text = shown.run("document.getElementById('panel-kept').textContent")
    assert EVIL.replace("\x1b", "\\x1b")[:60] in text


def test_all_charts_have_shapes_a_title_and_a_table(shown):
    charts = shown.run(
        "[...document.querySelectorAll('figure.chart')].map(f => ({title: f.querySelector('.title').textContent, "
        "shapes: [...f.querySelectorAll('svg rect, svg circle')].filter(s => s.getBoundingClientRect().width).length, "
        "rows: f.querySelectorAll('tbody tr').length, unit: f.querySelector('.unit').textContent}))"
    )
    titles = {chart["title"] for chart in charts}
    assert titles >= {
        "Funnel of all sources", "Funnel of web", "Funnel of more", "What each rule removed", "Sources",
        "Sources as a pie", "Lengths of documents", "Clusters of duplicates", "Time by stage", "Memory by worker",
    }  # fmt: skip
    for chart in charts:
        assert chart["shapes"], chart
        assert chart["rows"], chart
        assert chart["unit"], chart


def test_the_keyboard_is_enough(shown):
    shown.run("document.getElementById('tab-kept').focus()")
    shown.press("ArrowRight")
    assert shown.run("document.activeElement.id") == "tab-dropped"
    assert shown.run("document.getElementById('panel-kept').hidden")
    assert not shown.run("document.getElementById('panel-dropped').hidden")
    before = shown.run("getComputedStyle(document.body).backgroundColor")
    shown.run("document.getElementById('theme').focus()")
    shown.press("Enter")
    assert shown.run("getComputedStyle(document.body).backgroundColor") != before
    shown.press("Enter")


@pytest.mark.parametrize("width", [320, 390, 1200, 2200])
def test_no_width_needs_sideways_scrolling(shown, width):
    shown.resize(width, 900)
    assert shown.run("document.documentElement.scrollWidth") <= width


def test_paper_has_everything(shown):
    shown.send("Emulation.setEmulatedMedia", media="print")
    assert shown.run(
        "[...document.querySelectorAll('[role=tabpanel]')].every(p => p.getBoundingClientRect().height > 0)"
    )
    shown.run("dispatchEvent(new Event('beforeprint'))")
    assert shown.run("[...document.querySelectorAll('details')].every(d => d.open)")
    shown.resize(480, 900)  # paper has no scroll bars
    ends = "[...document.querySelectorAll('main, .scroll table')].map(part => part.getBoundingClientRect().right)"
    page_end, *table_ends = shown.run(ends)
    assert max(table_ends) <= page_end
    shown.resize(1200, 900)
    shown.send("Emulation.setEmulatedMedia", media="")


def contrast(first, second):
    def luminance(color):
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_that_of_wcag_aa():
    """4.5 for text on every ground that it is written on, 3 for shapes."""
    themes = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block)) for block in re.findall(r"\{[^{}]*--k0[^{}]*\}", CSS)]
    assert len(themes) >= 3
    for theme in themes:
        if "panel" not in theme or "good" not in theme:  # paper: black on white
            continue
        for text in ("text", "quiet", "accent", "good", "bad"):
            for ground in ("page", "panel"):
                assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground, theme)
        for ground in ("insert", "delete"):
            assert contrast(theme["text"], theme[ground]) >= 4.5
        assert contrast(theme["page"], theme["accent"]) >= 4.5  # the selected tab
        for number in range(8):
            assert contrast(theme[f"k{number}"], theme["page"]) >= 3, number


def make_dataset(folder, lines):
    (folder / "a.jsonl").write_text("".join(lines))
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(folder / "a.jsonl"))},
        steps=[steps.Length(min_chars=1), steps.Write(format="jsonl")],
        output=str(folder / "out"),
        allow_empty=True,
    )
    gm.run(recipe, backend="serial", progress=False)
    return folder / "out"


@pytest.mark.parametrize("lines", [[], ['{"text": "one"}\n']], ids=["empty", "one record"])
def test_small_datasets(browser, tmp_path, lines):
    out = make_dataset(tmp_path, lines)
    opened = browser.open(f"file://{out}/report.html", dark=True)
    assert opened.problems == []
    assert opened.run("document.querySelector('.cards dd').firstChild.data") == str(len(lines))
    opened.close()


def test_a_page_stays_small(web, tmp_path):
    shutil.copytree(web, tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    report = write_report(dataset.folder, dataset.manifest, "test", samples=1000)
    assert report.page.bytes < 1_000_000
    assert report.samples.num_records > 100


def test_json_in_the_page_is_json_on_the_disk(web):
    report = json.loads((web / "report.json").read_text())
    assert report["report_version"] == 3
    assert report["page"]["bytes"] == (web / "report.html").stat().st_size
    assert report["run"]["jobs"][0]["workers"][0]["peak_bytes"] > 1 << 20


def test_text_that_steps_after_tokenize_remove_is_not_called_left(tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"text number {n} " * 9}) + "\n" for n in range(90)))
    trained(tmp_path / "tokenizer")
    for name, step, words in (
        ("cut", [steps.Limit(max_records=4)], " of it up to tokenize, 4 records left, "),
        ("whole", [], " of it left, "),
    ):
        recipe = gm.Recipe(
            sources={"web": steps.Read(read=str(tmp_path / "in.jsonl"))},
            steps=[steps.Tokenize(tokenizer=str(tmp_path / "tokenizer")), *step, steps.Pack(row_length=64)],
            output=str(tmp_path / name),
        )
        gm.run(recipe, backend="serial", progress=False)
        assert words in (tmp_path / name / "report.html").read_text()
