"""`decontaminate` in a recipe: planted items are found, clean pages are not, and nothing but the recipe decides it."""

import json
import random

import pytest

from gristmill.core.errors import TooMuchContaminationError, UsageError
from gristmill.core.recipe import Source
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.report.view.describe import MARKED
from gristmill.report.view.line_rows import LineRows
from gristmill.report.view.rows import count_rows
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Decontaminate, Length, Read, Select, Split, Write

WORDS = [f"w{n}" for n in range(4000)]


def new_text(rng, length):
    return " ".join(rng.choices(WORDS, k=length))


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Two sources with items of two benchmarks in known documents, and the truth: record number -> items."""
    rng = random.Random(3)
    folder = tmp_path_factory.mktemp("planted")
    questions = [new_text(rng, rng.choice([6, 9, 12, 13, 14, 30, 80])) for _ in range(40)]
    records = [{"question": question, "answer": str(number)} for number, question in enumerate(questions)]
    records += [{"question": "too short", "answer": "no"}]
    choices = [{"question": new_text(rng, 20), "choices": ["this", "that"], "answer": 1} for _ in range(10)]
    (folder / "ask.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "pick.json").write_text(json.dumps(choices))
    truth, lines = {}, []
    for number in range(600):
        text, items = new_text(rng, rng.randrange(20, 200)), []
        if number % 6 == 0:
            kind, item = rng.randrange(4), rng.randrange(40)
            question = questions[item]
            cut = len(text) // 2
            text = [
                question,
                question.upper().replace(" ", ", "),
                f"{text[:cut]} {question} {text[cut:]}",
                f"{question} {item}",
            ][kind]
            items = [f"ask/{item}"]
        elif number % 50 == 1:
            text, items = f"{text} {choices[number % 10]['question']} (b) that", [f"pick/{number % 10}"]
        elif number % 50 == 2:  # less than 40 % of the words of a long item
            text = " ".join(max(questions, key=len).split()[:31])
        truth[number] = items
        lines.append({"text": text, "n": number})
    for name, part in (("web", lines[:400]), ("books", lines[400:])):
        (folder / name).mkdir()
        for start in range(0, len(part), 100):
            rows = part[start : start + 100]
            (folder / name / f"{start:04}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder, truth


@pytest.fixture
def tiny_units(mill):
    mill.layout = UnitLayout(unit_bytes=60_000, min_group_bytes=20_000)


def make_step(folder, **keys):
    return Decontaminate(benchmarks={"ask": str(folder / "ask.jsonl"), "pick": str(folder / "pick.json")}, **keys)


def make_sources(folder):
    return {name: Read(read=str(folder / name / "*.jsonl")) for name in ("web", "books")}


def test_tags_are_the_truth(mill, planted, tiny_units):
    folder, truth = planted
    result = mill.run(mill.recipe(make_sources(folder), [make_step(folder), Write(format="jsonl")]))
    found = {record["n"]: record["contaminated_by"] for record in open_dataset(mill.output)}
    assert found == truth
    shares = {record["n"]: record["contamination"] for record in open_dataset(mill.output)}
    assert all((share > 0.5) == bool(truth[number]) for number, share in shares.items())
    [step] = result.manifest.decontaminated
    documents = {
        benchmark: sum(counts["documents"] for counts in sources.values()) for benchmark, sources in step.found.items()
    }
    assert documents == {
        name: sum(any(item.startswith(name) for item in items) for items in truth.values()) for name in ("ask", "pick")
    }
    assert step.benchmarks["ask"].unchecked == {"too_short_to_check": ["ask/40"]}
    report = json.loads((mill.output / "report.json").read_text())
    assert report["decontamination"][0]["found"] == step.found


def test_evidence_is_kept_in_pairs(mill, planted):
    folder, truth = planted
    mill.run(mill.recipe(make_sources(folder), [make_step(folder), Write(format="jsonl")], keep_dropped="all"))
    lines = [json.loads(line) for line in (mill.output / "dropped/decontaminate-ask.jsonl").read_text().splitlines()]
    assert len(lines) == sum(any(item.startswith("ask/") for item in items) for items in truth.values())
    for line in lines:
        assert line["passage"].lower().replace(",", "") == line["item_text"].lower()
        assert line["file"].endswith(".jsonl")
        assert line["coverage"] == 1.0
    page = (mill.output / "report.html").read_text()
    shown = LineRows("Dropped", open_dataset(mill.output), open_dataset(mill.output).manifest.dropped)
    sides = [shown.describe_row(number)["sides"] for number in range(count_rows(shown))]
    for line in lines:
        around = [(line["before"], 0), (line["passage"], MARKED), (line["after"], 0)]
        item = {"title": f"item {line['item']}", "pieces": [(line["item_text"], 0)]}
        assert [item, {"title": "document", "pieces": around}] in sides
    assert any(f"{line['before']}<mark>{line['passage']}</mark>{line['after']}" in page for line in lines)


def test_drop(mill, planted):
    folder, truth = planted
    step = make_step(folder, action="drop", max_source_loss=0.5)
    result = mill.run(mill.recipe(make_sources(folder), [step, Write(format="jsonl")]))
    assert {record["n"] for record in open_dataset(mill.output)} == {number for number in truth if not truth[number]}
    dropped = sum(account.dropped["contaminated"] for books in result.books.values() for account in books)
    assert dropped == sum(map(bool, truth.values()))


def test_a_source_that_would_lose_too_much_fails_and_can_go_on(mill, planted):
    folder, _ = planted
    steps = [make_step(folder, action="drop"), Write(format="jsonl")]
    with pytest.raises(TooMuchContaminationError, match="source"):
        mill.run(mill.recipe(make_sources(folder), steps))
    mill.run(mill.recipe(make_sources(folder), [make_step(folder, action="drop", max_source_loss=1.0), steps[1]]))


def test_cut_leaves_what_is_around_and_nothing_to_find(mill, planted):
    folder, truth = planted
    mill.run(mill.recipe(make_sources(folder), [make_step(folder, action="cut"), Write(format="jsonl")]))
    cut = {record["n"]: record["text"] for record in open_dataset(mill.output)}
    whole = {
        json.loads(line)["n"]: json.loads(line)["text"]
        for path in folder.glob("*/*.jsonl")
        for line in path.read_text().splitlines()
    }
    assert all(cut[number] == whole[number] for number in truth if not truth[number])
    assert any(number in cut and cut[number] and cut[number] != whole[number] for number in truth if truth[number])
    again = mill.folder / "again.jsonl"
    again.write_text("".join(json.dumps({"text": text}) + "\n" for text in cut.values()))
    second = mill.recipe({"web": Read(read=str(again))}, [make_step(folder), Write(format="jsonl")])
    mill.run(second, overwrite=True)
    assert not any(record["contaminated_by"] for record in open_dataset(mill.output))


def test_the_same_bytes_for_any_workers(mill, planted, tiny_units):
    folder, _ = planted
    recipe = mill.recipe(make_sources(folder), [make_step(folder), Write(format="parquet")])
    expected = mill.fresh_files(recipe)
    assert mill.fresh_files(recipe, backend="processes", workers=3) == expected


def test_held_out_records_are_not_changed(mill, planted):
    folder, truth = planted
    steps = [Split(validation=0.3), make_step(folder, action="drop", max_source_loss=1.0), Write(format="jsonl")]
    mill.run(mill.recipe(make_sources(folder), steps))
    dataset = open_dataset(mill.output)
    assert any(truth[record["n"]] for record in dataset.split("validation"))
    assert not any(truth[record["n"]] for record in dataset.split("train"))


def test_tags_beside_other_columns_and_steps(mill, planted):
    folder, truth = planted
    sources = {"web": Source(Read(read=str(folder / "web/*.jsonl")), steps=[Length(min_chars=1)])}
    steps = [make_step(folder), Select(columns=["n", "contaminated_by", "text"]), Write(format="arrow")]
    mill.run(mill.recipe(sources, steps))
    found = {record["n"]: list(record["contaminated_by"]) for record in open_dataset(mill.output)}
    assert found == {number: items for number, items in truth.items() if number < 400}


def test_n_grams_that_are_common_in_a_source_are_ignored_there(mill, tmp_path):
    rng = random.Random(1)
    notice, question = new_text(rng, 20), new_text(rng, 20)
    (tmp_path / "ask.jsonl").write_text("".join(json.dumps({"question": text}) + "\n" for text in (notice, question)))
    pages = [{"text": f"{notice} {new_text(rng, 30)}", "n": number} for number in range(150)]
    pages[7]["text"] += f" {question}"
    (tmp_path / "web.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages))
    (tmp_path / "other.jsonl").write_text(json.dumps({"text": f"here is {notice}", "n": -1}) + "\n")
    sources = {name: Read(read=str(tmp_path / f"{name}.jsonl")) for name in ("web", "other")}
    step = Decontaminate(benchmarks={"ask": str(tmp_path / "ask.jsonl")})
    result = mill.run(mill.recipe(sources, [step, Write(format="jsonl")]))
    found = {
        record["n"]: record["contaminated_by"] for record in open_dataset(mill.output) if record["contaminated_by"]
    }
    assert found == {7: ["ask/1"], -1: ["ask/0"]}
    assert result.manifest.decontaminated[0].common_ngrams == {"other": 0, "web": 13}


def test_a_changed_benchmark_is_not_up_to_date(mill, planted, tmp_path):
    folder, _ = planted
    benchmark = tmp_path / "ask.jsonl"
    benchmark.write_bytes((folder / "ask.jsonl").read_bytes())
    step = Decontaminate(benchmarks={"ask": str(benchmark)})
    recipe = mill.recipe({"web": Read(read=str(folder / "web/*.jsonl"))}, [step, Write(format="jsonl")])
    mill.run(recipe)
    assert mill.run(recipe).was_up_to_date
    benchmark.write_text(json.dumps({"question": "another question that is long enough"}) + "\n")
    assert not mill.run(recipe, update=True).was_up_to_date
    assert not any(record["contaminated_by"] for record in open_dataset(mill.output))


def test_a_record_with_such_a_key_is_refused(mill, planted, tmp_path):
    folder, _ = planted
    (tmp_path / "web.jsonl").write_text(json.dumps({"text": "a b c", "contaminated_by": 1}) + "\n")
    with pytest.raises(UsageError, match="contaminated_by"):
        mill.run(
            mill.recipe({"web": Read(read=str(tmp_path / "web.jsonl"))}, [make_step(folder), Write(format="jsonl")])
        )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Before it. ", " After it."),
        ("Before (see ", ") and after."),
        ("<p>", "</p> <p>After it.</p>"),
        ("one 5", "20 after"),
    ],
)
@pytest.mark.parametrize("end", ["?", ".", "?!", '"?', " ?", "。", ") or not (x)?", "&#63;", '"""'])
def test_cut_leaves_nothing_of_the_item(mill, tmp_path, before, after, end):
    question = "你好 Has she said (of late) that all of the clips were sold to friends in April" + end
    (tmp_path / "ask.jsonl").write_text(json.dumps({"question": question}) + "\n")
    (tmp_path / "web.jsonl").write_text(json.dumps({"text": before + question + after}) + "\n")
    step = Decontaminate(benchmarks={"ask": str(tmp_path / "ask.jsonl")}, action="cut")
    mill.run(
        mill.recipe({"web": Read(read=str(tmp_path / "web.jsonl"))}, [step, Write(format="jsonl")]), overwrite=True
    )
    [record] = open_dataset(mill.output)
    assert record["text"].replace("5 20", "520") == before + after
