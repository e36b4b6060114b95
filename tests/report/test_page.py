"""The report in a real browser: every chart is there, its numbers are those of the books, nothing in the data runs."""

import json
import re
import shlex
import shutil
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from gristmill_testing.reports import EVIL

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
    assert titles >= {"Lengths of documents", "Clusters of duplicates", "Memory by worker"}
    for chart in charts:
        assert chart["shapes"] or chart["title"] == "Memory by worker", chart  # which is folded
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


def test_a_command_leads_to_the_records_of_a_rule(shown):
    shown.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    shown.run("document.querySelector('#rules button[data-copy*=too_short]').click()")
    shown.wait("window.copied")
    command = shlex.split(shown.run("window.copied"))
    assert command[:2] == ["gristmill", "view"]
    path, _, place = command[2].partition("#")
    assert path.endswith("out")
    assert parse_qs(place) == {"show": ["dropped"], "reason": ["length: too_short"]}


def test_eighty_sources_are_one_table(browser, tmp_path):
    for number in range(80):
        lines = (json.dumps({"text": f"text {n} of {number} " * (n % 5 + 1)}) for n in range(number + 5))
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    recipe = gm.Recipe(
        sources={f"dump-{number:02}": steps.Read(read=str(tmp_path / f"{number}.jsonl")) for number in range(80)},
        steps=[steps.Length(min_chars=20), steps.Write(format="arrow")],
        output=str(tmp_path / "out"),
    )
    gm.run(recipe, backend="serial", progress=False)
    opened = browser.open(f"file://{tmp_path}/out/report.html", width=1280)
    cells = opened.run(
        "[...document.querySelectorAll('#panel-records tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    assert [row[0] for row in cells] == [*(f"dump-{number}" for number in range(79, 59, -1)), "60 others", "all 80"]
    came, removed, left = ([int(row[column].replace(",", "")) for row in cells] for column in (2, 3, 4))
    assert came[-1] == sum(came[:-1]) == sum(number + 5 for number in range(80))
    assert [first + second for first, second in zip(came, removed, strict=True)] == left
    assert opened.run("document.documentElement.scrollHeight") < 6000
    opened.close()
