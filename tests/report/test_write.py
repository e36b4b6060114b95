"""When reports are written, what they hold, and that they are the same for the same dataset."""

import base64
import io
import json
import re
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import msgspec
import numpy as np
import pytest
from gristmill_testing.reports import read_without_times
from gristmill_testing.small_tokenizers import trained
from PIL import Image

import gristmill as gm
from gristmill import steps
from gristmill.cli.main import main
from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_share
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


def test_shares_of_sources_are_those_of_training(tmp_path):
    for name, count in (("web", 300), ("books", 60)):
        lines = "".join(json.dumps({"text": f"{name} {n}"}) + "\n" for n in range(count))
        (tmp_path / f"{name}.jsonl").write_text(lines)
    recipe = gm.Recipe(
        sources={name: steps.Read(read=str(tmp_path / f"{name}.jsonl")) for name in ("web", "books")},
        steps=[
            steps.Split(validation=0.2),
            steps.Mix(weights={"web": 0.6, "books": 0.4}, size=60, by="documents"),
            steps.Write(format="arrow"),
        ],
        output=str(tmp_path / "out"),
    )
    gm.run(recipe, backend="serial", progress=False)
    report = load_report(tmp_path / "out")
    assert report.splits["validation"].rows
    assert {name: (source.share, source.wanted_share) for name, source in report.sources.items()} == {
        "web": (0.6, 0.6),
        "books": (0.4, 0.4),
    }
    page = (tmp_path / "out/report.html").read_text()
    assert re.search(r"60\.00%</td><td[^>]*>60\.00%</td><td[^>]*>\+0\.00", page)
    assert "share of rows of train" in page


def test_numbers_of_chats(tmp_path):
    data, tokenizer = tmp_path / "chats.jsonl", tmp_path / "tokenizer"
    said = [("user", "assistant")[n % 2] for n in range(6)]
    chats = [[{"role": role, "content": f"number {n} " * 2} for role in said] for n in range(40)]
    data.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in [*chats, []]))
    trained(tokenizer, specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    recipe = gm.Recipe(
        sources={"chats": steps.Read(read=str(data))},
        steps=[
            steps.Render(template="chatml", tokenizer=str(tokenizer), max_tokens=120),
            steps.Tokenize(tokenizer=str(tokenizer)),
            steps.Pack(row_length=128),
        ],
        output=str(tmp_path / "out"),
    )
    result = gm.run(recipe, backend="serial", progress=False)
    counts = sum((account.counters for account in result.books["chats"]), Counter())
    assert counts["shortened_tokens"]
    report = load_report(tmp_path / "out")
    left_out = counts["shortened_tokens"] + counts["truncated_tokens"] + counts["dropped_tokens"]
    assert report.packing["chats"].left_out_tokens == left_out
    page = (tmp_path / "out/report.html").read_text()
    assert f">{left_out:,}<" in page
    totals = report.totals
    came = totals.records_in + totals.records_created
    assert f"{format_share(totals.records_out, came)} of {came:,}" in page
    for account in result.books["chats"]:
        for reason, count in (account.dropped + account.quarantined).items():
            share = format_share(count, account.records_in + account.created)
            assert re.search(f"{reason}.*?>{count:,}</td><td[^>]*>{share}</td>", page), reason


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


def test_images_are_pictures(tmp_path):
    (tmp_path / "photos").mkdir()
    for number in range(3):
        Image.new("RGB", (400, 200), (number, 90, 0)).save(tmp_path / f"photos/{number}.png")
    for kind in ("arrow", "parquet", "webdataset"):
        recipe = gm.Recipe(
            sources={"photos": steps.Read(read=str(tmp_path / "photos"))},
            steps=[steps.Write(format=kind)],
            output=str(tmp_path / kind),
        )
        gm.run(recipe, backend="serial", progress=False)
        [picture] = load_report(tmp_path / kind).samples.kept[0].pictures
        head, _, content = picture.partition(",")
        assert head == "data:image/jpeg;base64"
        assert Image.open(io.BytesIO(base64.b64decode(content))).size == (96, 48)
        assert f'src="{picture}"' in (tmp_path / kind / "report.html").read_text()


def test_a_mix_by_documents_is_not_compared_with_shares_of_tokens(tmp_path):
    for name, text in (("long", "one two three four five six seven eight "), ("short", "one ")):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": f"{text}{n}"}) + "\n" for n in range(40)))
    trained(tmp_path / "tokenizer")
    recipe = gm.Recipe(
        sources={name: steps.Read(read=str(tmp_path / f"{name}.jsonl")) for name in ("long", "short")},
        steps=[
            steps.Mix(weights={"long": 0.5, "short": 0.5}, size=20, by="documents"),
            steps.Tokenize(tokenizer=str(tmp_path / "tokenizer")),
            steps.Pack(row_length=32),
        ],
        output=str(tmp_path / "out"),
    )
    gm.run(recipe, backend="serial", progress=False)
    sources = load_report(tmp_path / "out").sources
    assert sources["long"].share > 0.6
    assert sources["long"].wanted_share is None
