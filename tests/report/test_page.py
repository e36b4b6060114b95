"""The report in a real browser: every chart is there, its numbers are those of the books, nothing in the data runs."""

import json
import re
import shutil
from pathlib import Path

import pytest
from gristmill_testing.reports import EVIL

import gristmill as gm
from gristmill import steps
from gristmill.core.quantities import format_bytes
from gristmill.report import page
from gristmill.report.model import JobTimes, RunTimes, WorkerTimes
from gristmill.report.record_sections import make_times
from gristmill.report.write import load_report, write_report
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


def test_the_numbers_are_those_of_the_books(shown, web):
    manifest = open_dataset(web).manifest
    cards = dict(
        shown.run(
            "[...document.querySelectorAll('.cards > div')].map(d => [...d.children].map(c => c.firstChild.data))"
        )
    )
    books = manifest.books
    assert cards["records in"] == f"{sum(accounts[0].records_in for accounts in books.values()):,}"
    assert cards["records out"] == f"{sum(accounts[-1].records_out for accounts in books.values()):,}"
    assert cards["dropped"] == f"{sum(a.dropped.total() for accounts in books.values() for a in accounts):,}"
    assert cards["books"] == "balance"
    lines = shown.run(
        "[...document.querySelectorAll('#books tbody tr')].map(r => [...r.cells].slice(0, 7).map(c => c.textContent))"
    )
    assert lines == [
        [source, account.step, *(
            f"{n:,}" for n in (
                account.records_in, account.created, account.records_out,
                account.dropped.total(), account.quarantined.total(),
            )
        )]
        for source in sorted(books) for account in books[source]
    ]  # fmt: skip
    total = shown.run(
        "[...document.querySelector('#funnel figure').querySelectorAll('tbody tr')].map(r => r.cells[2].textContent)"
    )
    assert total == [f"{sum(a.records_out for a in accounts):,}" for accounts in zip(*books.values(), strict=True)]
    rules = shown.run(
        "[...document.querySelectorAll('#rules tbody tr')].map(r => [...r.cells].slice(0, 4).map(c => c.textContent))"
    )
    assert sum(int(count.replace(",", "")) for _, _, kind, count in rules if kind == "dropped") == sum(
        account.dropped.total() for accounts in books.values() for account in accounts
    )


def test_funnels_begin_with_bytes_and_end_with_tokens(web, mixed_rows):
    for folder, ending in ((web, " of it left."), (mixed_rows, " tokens.")):
        report = load_report(folder)
        for name, source in report.sources.items():
            text = sum(step.text_bytes for step in report.funnel[name][:1])
            words = f"{format_bytes(source.input_bytes)} of files, {format_bytes(text)} of text, "
            rest = (folder / "report.html").read_text().partition(words)[2].partition("<")[0]
            assert rest.endswith(ending), (name, rest)
            assert (f"{source.tokens:,} tokens" in rest) == bool(source.tokens)


def test_samples_say_why(shown, web):
    report = load_report(web)
    reasons = {(sample.step, sample.reason) for sample in report.samples.dropped}
    assert ("length", "too_short") in reasons
    assert {step for step, _ in reasons} == {"length", "gopher_quality"}
    text = shown.run("document.getElementById('panel-dropped').textContent")
    assert "too_short 5 (limit 20)" in text
    assert shown.run("document.querySelectorAll('#panel-changed ins, #panel-changed del').length") > 0
    assert len(report.samples.quarantined) == 2
    assert shown.run("document.getElementById('holds').textContent").startswith(
        f"This page holds {report.samples.num_records} records"
    )


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


def make_worker(number, node, peak_bytes, cpu_seconds=1.0):
    return WorkerTimes(
        name=f"actor {number}",
        tasks=2,
        cpu_seconds=cpu_seconds,
        peak_bytes=peak_bytes,
        node=node * 56,
        host=f"host-{node}",
    )


def test_time_and_memory_by_node():
    first = [make_worker(1, "a", 10_000_000), make_worker(2, "a", 20_000_000), make_worker(3, "b", 0, 0.0)]
    second = [make_worker(1, "a", 25_000_000, 0.5)]
    jobs = [
        JobTimes(name=name, seconds=1.0, tasks=6, deaths=0, records=0, bytes=0, workers=workers)
        for name, workers in (("stage 1", first), ("stage 2", second))
    ]
    shown = make_times(RunTimes(finished="", seconds=2.0, backend="ray", jobs=jobs))
    cells = re.findall(r"<td[^>]*>(.*?)</td>", re.sub(r"<th scope=.row.>(.*?)</th>", r"<td>\1</td>", shown))
    by_node = [cells[at : at + 4] for at, cell in enumerate(cells) if cell.startswith("host-")]
    assert by_node == [
        ["host-a (aaaaaaaa)", "30.0 MB", "2.50", "6"],
        ["host-b (bbbbbbbb)", "not measured", "0.00", "2"],
    ]
    by_worker = [cells[at : at + 4] for at, cell in enumerate(cells) if cell.startswith("actor ")]
    assert by_worker[0] == ["actor 1, node aaaaaaaa", "25.0 MB", "1.50", "4"]
    assert len(by_worker) == 3


def test_a_page_lists_the_largest_of_many_workers():
    workers = [make_worker(number, "a", number << 20) for number in range(1, 2001)]
    job = JobTimes(name="stage 1", seconds=1.0, tasks=6, deaths=0, records=0, bytes=0, workers=workers)
    shown = make_times(RunTimes(finished="", seconds=2.0, backend="ray", jobs=[job]))
    assert "The 64 with most memory of 2,000" in shown
    assert "actor 1937, " in shown
    assert "actor 1936, " not in shown
    assert len(shown) < 100_000


def test_no_records_if_none_are_wanted(web, tmp_path):
    shutil.copytree(web, tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    report = write_report(dataset.folder, dataset.manifest, "test", samples=0)
    assert report.samples.num_records == 0
    content = (tmp_path / "out/report.html").read_text() + (tmp_path / "out/report.json").read_text()
    assert "Document 1" not in content
    assert "words and more words" not in content
    assert dataset.verify()


def test_json_in_the_page_is_json_on_the_disk(web):
    report = json.loads((web / "report.json").read_text())
    assert report["report_version"] == 2
    assert report["page"]["bytes"] == (web / "report.html").stat().st_size
    assert report["run"]["jobs"][0]["workers"][0]["peak_bytes"] > 1 << 20
