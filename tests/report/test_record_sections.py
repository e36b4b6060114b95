"""Sections of records and of measured times."""

import json
import re
import shutil

import pyarrow.parquet as pq
import pytest
from PIL import Image

import gristmill as gm
from gristmill import steps
from gristmill.report.model import JobTimes, RunTimes, WorkerTimes
from gristmill.report.record_sections import make_times
from gristmill.report.write import load_report, write_report
from gristmill.shards.dataset import open_dataset


@pytest.fixture(scope="module")
def shown(browser, web):
    opened = browser.open(f"file://{web}/report.html")
    yield opened
    opened.close()


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


def test_clusters_mark_the_words_that_differ(browser, tmp_path):
    words = [f"word{number}" for number in range(90)]
    texts = [" ".join(words), " ".join([*words[:70], "other", *words[71:]]), "nothing like the other two " * 9]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(tmp_path / "in.jsonl"))},
        steps=[steps.Deduplicate(threshold=0.7), steps.Write(format="jsonl")],
        output=str(tmp_path / "out"),
    )
    gm.run(recipe, backend="serial", progress=False)
    [row] = pq.read_table(tmp_path / "out/dropped/duplicates.parquet").to_pylist()
    opened = browser.open(f"file://{tmp_path}/out/report.html")
    opened.run("document.getElementById('tab-clusters').click()")
    marked = opened.run("['ins', 'del'].map(tag => document.querySelector(`#panel-clusters ${tag}`).textContent)")
    assert sorted(marked) == ["other", "word70"]
    shown = opened.run("document.getElementById('panel-clusters').textContent")
    assert f"similarity {row['similarity']:.3f}" in shown
    opened.close()


def test_images_are_small_pictures_with_the_value_that_dropped_them(browser, tmp_path):
    (tmp_path / "photos").mkdir()
    for number in range(3):
        image = Image.new("RGB", (300, 200), (250, 240, 0))
        image.paste((0, 40 * number, 90), (10 + 60 * number, 20, 150 + 40 * number, 170))
        image.save(tmp_path / f"photos/{number}.png")
    Image.open(tmp_path / "photos/0.png").resize((270, 180)).save(tmp_path / "photos/9.png")
    Image.new("RGB", (43, 80), (1, 2, 3)).save(tmp_path / "photos/small.png")
    recipe = gm.Recipe(
        sources={"photos": steps.Read(read=str(tmp_path / "photos"))},
        steps=[steps.Images(min_width=64), steps.Deduplicate(kind="image"), steps.Write(format="arrow")],
        output=str(tmp_path / "out"),
        keep_dropped="samples",
    )
    gm.run(recipe, backend="serial", progress=False)
    opened = browser.open(f"file://{tmp_path}/out/report.html")
    assert "min_width 43 (limit 64)" in opened.run("document.getElementById('panel-dropped').textContent")
    opened.run("document.getElementById('tab-clusters').click()")
    sizes = opened.run("[...document.querySelectorAll('#panel-clusters img')].map(i => i.naturalWidth)")
    assert sizes
    assert max(sizes) <= 96
    assert opened.problems == []
    opened.close()


def test_equal_errors_are_shown_once(browser, tmp_path):
    lines = ['{"text": "good"}'] * 50 + ["{broken"] * 7 + ['{"text": 5}'] * 2
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(tmp_path / "in.jsonl"))},
        steps=[steps.Write(format="jsonl")],
        output=str(tmp_path / "out"),
    )
    gm.run(recipe, backend="serial", progress=False)
    assert [sample.num_alike for sample in load_report(tmp_path / "out").samples.quarantined] == [7, 2]
    assert "7 records with this error" in (tmp_path / "out/report.html").read_text()
