"""When reports are written, what they hold, and that they are the same for the same dataset."""

import json
from contextlib import nullcontext
from pathlib import Path

import msgspec
import numpy as np
import pytest
from gristmill_testing.reports import read_without_times
from gristmill_testing.small_tokenizers import trained

import gristmill as gm
from gristmill import steps
from gristmill.cli.main import main
from gristmill.core.errors import UsageError
from gristmill.report.charts import make_bins
from gristmill.report.model import Report, make_schema
from gristmill.report.write import load_report
from gristmill.shards.dataset import open_dataset
from gristmill.storage.lock import FolderLock

SCHEMA = Path(__file__).parents[2] / "docs/reference/report.schema.json"


def test_the_published_schema_is_that_of_the_code():
    assert json.loads(SCHEMA.read_text()) == make_schema()


def make_recipe(folder, **settings):
    if not (folder / "a.jsonl").exists():
        (folder / "a.jsonl").write_text("".join(f'{{"text": "document {n}", "n": {n}}}\n' for n in range(300)))
    return gm.Recipe(
        sources={"web": steps.Read(read=str(folder / "a.jsonl"))},
        steps=[steps.Length(min_chars=11), steps.Write(format="arrow")],
        output=str(folder / "out"),
        **settings,
    )


def test_the_same_dataset_has_the_same_report(tmp_path):
    files = []
    for backend in ("serial", "threads"):
        gm.run(make_recipe(tmp_path), backend=backend, overwrite=True, progress=False)
        files.append([read_without_times(tmp_path / "out" / name) for name in ("report.json", "report.html")])
        assert b"document 2" in files[-1][1]
    assert files[0] == files[1]
    report = msgspec.json.decode((tmp_path / "out/report.json").read_bytes(), type=Report)
    assert report.run.jobs[0].records == 300


def test_lengths_are_those_of_the_documents(tmp_path, rows):
    gm.run(make_recipe(tmp_path), backend="serial", progress=False)
    lengths = load_report(tmp_path / "out").lengths
    texts = [record["text"] for record in open_dataset(tmp_path / "out")]
    assert (lengths.documents, lengths.is_sample) == (len(texts), False)
    assert (lengths.shortest, lengths.longest) == (min(map(len, texts)), max(map(len, texts)))
    assert sum(entry.count for entry in lengths.bins) == len(texts)
    dataset = open_dataset(rows)
    sizes = np.concatenate([record["lengths"] for record in dataset])
    report = load_report(rows)
    assert len(sizes) > 120  # some of the 120 documents are longer than a row
    assert (report.lengths.unit, report.lengths.documents, report.lengths.is_sample) == ("tokens", 120, False)
    assert report.lengths.mean == pytest.approx(sizes.sum() / 120)
    [packing] = report.packing.values()
    assert packing.tokens == sizes.sum()
    assert packing.rows == len(dataset)


def test_lengths_and_languages_of_documents_in_several_rows(tmp_path):
    """Against the same documents without `pack`."""
    english, german = "the people and the water of the river ", "der Wald und die Wiese sind nicht weit von hier "
    texts = [(german if n % 3 == 0 else english) * (n % 11 + 1) for n in range(60)]
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": f"{text}{n}"}) + "\n" for n, text in enumerate(texts))
    )
    trained(tmp_path / "tokenizer")
    keep_all = steps.GopherQuality(
        min_words=1, min_stop_words=None, min_alphabetic_word_ratio=None, max_mean_word_length=None
    )
    chain = [steps.Language(), keep_all, steps.Tokenize(tokenizer=str(tmp_path / "tokenizer"))]
    reports = []
    for name, pack in (("whole", []), ("packed", [steps.Pack(row_length=32)])):
        read = steps.Read(read=str(tmp_path / "a.jsonl"))
        recipe = gm.Recipe(sources={"web": read}, steps=[*chain, *pack], output=str(tmp_path / name))
        gm.run(recipe, backend="serial", progress=False)
        reports.append(load_report(tmp_path / name))
    whole, packed = reports
    assert packed.packing["web"].split_documents > 20
    assert packed.lengths == whole.lengths
    assert (whole.lengths.documents, whole.lengths.longest > 32) == (60, True)
    assert packed.languages == whole.languages
    assert {entry.language: entry.documents for entry in packed.languages} == {"en": 40, "de": 20}
    assert sum(entry.amount for entry in packed.languages) == packed.totals.tokens


def test_a_report_that_is_missing_is_made_by_the_next_run(tmp_path):
    gm.run(make_recipe(tmp_path), backend="serial", progress=False)
    times = load_report(tmp_path / "out").run
    (tmp_path / "out/report.html").unlink()
    assert [problem.path for problem in open_dataset(tmp_path / "out").verify().problems] == ["report.html"]
    assert gm.run(make_recipe(tmp_path), backend="serial", progress=False).was_up_to_date
    assert open_dataset(tmp_path / "out").verify()
    assert load_report(tmp_path / "out").run == times
    gm.run(make_recipe(tmp_path, report={"samples": 3}), backend="serial", progress=False)
    assert load_report(tmp_path / "out").samples.wanted == 3


@pytest.mark.parametrize("damage", ["lost", "unreadable"])
def test_records_are_not_shown_because_a_report_is_lost(tmp_path, capsys, damage):
    gm.run(make_recipe(tmp_path, report={"samples": 0}), backend="serial", progress=False)
    path = tmp_path / "out/report.json"

    def report(*options):
        with pytest.raises(SystemExit) as ended:
            main(["report", str(tmp_path / "out"), *options])
        assert ended.value.code == 0
        return load_report(tmp_path / "out").samples.num_records, capsys.readouterr().out

    if damage == "lost":
        path.unlink()
    else:
        path.write_bytes(b'{"samples": ')
    num_records, printed = report()
    assert num_records == 0
    assert "--samples 12" in printed
    assert "document 2" not in (tmp_path / "out/report.html").read_text()
    assert report("--samples", "3")[0] == 3
    num_records, printed = report()
    assert num_records == 3
    assert "--samples" not in printed


def test_a_report_is_refused_while_a_run_writes_its_own(tmp_path, capsys):
    """While a run holds the folder, its own report, with its times, is about to be written."""
    gm.run(make_recipe(tmp_path), backend="serial", progress=False)
    before = load_report(tmp_path / "out")
    for holder, code in ((FolderLock(tmp_path / "out"), 1), (nullcontext(), 0)):
        with holder, pytest.raises(SystemExit) as ended:
            main(["report", str(tmp_path / "out")])
        assert ended.value.code == code
        assert load_report(tmp_path / "out").run == before.run is not None
    assert str(tmp_path / "out") in capsys.readouterr().err


def test_an_error_in_the_report_costs_no_dataset(tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("gristmill.report.write.make_page", fail)
    gm.run(make_recipe(tmp_path), backend="serial", progress=False)
    assert "its report could not be made" in caplog.text
    assert open_dataset(tmp_path / "out").verify()


@pytest.mark.parametrize("report", [{"samples": -1}, {"samples": 1001}, {"example": 3}])
def test_wrong_settings(tmp_path, report):
    with pytest.raises(UsageError, match="report"):
        make_recipe(tmp_path, report=report)


def test_bins_hold_every_value():
    for smallest, largest in ((0, 0), (1, 1), (3, 4), (0, 10**9), (7, 7000)):
        bins = make_bins([smallest, largest])
        assert bins[0][0] <= max(1, smallest)
        assert bins[-1][1] > largest
        assert all(low < high for low, high in bins)
