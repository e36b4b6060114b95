"""Dropped records on request, and the funnel: neither tasks nor workers nor a stop show in them."""

import json

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from gristmill_testing.quality_reference import scores_of

from gristmill import steps
from gristmill.core.errors import NotUpToDateError, UsageError
from gristmill.core.recipe import Source
from gristmill.pipeline.inspecting.explain import explain
from gristmill.pipeline.inspecting.trace import trace_input
from gristmill.pipeline.stages.outputs import dropped as dropped_module
from gristmill.recipe.load import parse_recipe
from gristmill.shards.dataset import open_dataset


def recipe(mill, corpus, keep, **settings):
    return mill.recipe(
        {
            "web": Source(steps.Read(read=str(corpus / "web/*.jsonl")), [steps.Sample(fraction=0.6)]),
            "books": steps.Read(read=str(corpus / "books/*")),
        },
        [
            steps.GopherQuality(min_stop_words=None, min_words=80, max_mean_word_length=4.6),
            steps.Filter(call=f"{corpus}/functions.py:is_even"),
            steps.Write(format="jsonl"),
        ],
        keep_dropped=keep,
        **settings,
    )


def lines_of(mill, name):
    return [json.loads(line) for line in (mill.output / "dropped" / f"{name}.jsonl").read_text().splitlines()]


def test_all_are_there_with_their_reasons(mill, corpus):
    result = mill.run(recipe(mill, corpus, "all"))
    counted = {}
    for accounts in result.books.values():
        for account in accounts:
            for reason, count in account.dropped.items():
                key = f"{account.step}-{reason}"
                counted[key] = counted.get(key, 0) + count
    found = {file.path.removeprefix("dropped/").removesuffix(".jsonl"): file for file in result.manifest.dropped}
    assert set(found) == set(counted) == {
        "sample-not_sampled", "gopher_quality-min_words", "gopher_quality-max_mean_word_length", "filter-rejected"
    }  # fmt: skip
    for name, count in counted.items():
        assert len(lines_of(mill, name)) == count
    for entry in lines_of(mill, "gopher_quality-min_words")[:50]:
        record = json.loads(entry["record"])
        scores = scores_of(record["text"])
        assert scores["words"] < 80
        assert ("max_mean_word_length" in entry["failed"]) == (scores["mean_word_length"] > 4.6)
        assert next(iter(entry["failed"])) == entry["reason"] == "min_words"
        assert entry["failed"] == {rule: pytest.approx(scores[rule[4:]]) for rule in entry["failed"]}
        assert entry["thresholds"].keys() == entry["failed"].keys()
        assert entry["thresholds"]["min_words"] == 80
        assert entry["thresholds"].get("max_mean_word_length", 4.6) == 4.6
        assert entry["place"] == f"{entry['source']}:{entry['file']}@{entry['position']}"
        assert entry["source"] in ("web", "books")
        if entry["source"] == "web":
            file = (corpus / "web" / entry["file"]).read_bytes()
            assert file[entry["position"] :].startswith(entry["record"].encode())


def test_samples_are_those_with_the_lowest_hashes(mill, corpus):
    mill.run(recipe(mill, corpus, "samples"))
    samples = lines_of(mill, "gopher_quality-min_words")
    assert [sum(entry["source"] == source for entry in samples) for source in ("web", "books")] == [20, 20]
    mill.fresh_files(recipe(mill, corpus, "all"))
    everything = {json.dumps(entry) for entry in lines_of(mill, "gopher_quality-min_words")}
    assert {json.dumps(entry) for entry in samples} < everything


@pytest.mark.parametrize("keep", ["samples", "all"])
def test_the_same_bytes_however_tasks_are_cut(mill, corpus, small_units, keep):
    whole = mill.fresh_files(recipe(mill, corpus, keep))
    assert any(path.startswith("dropped/") for path in whole)
    options = {"backend": "processes", "workers": 2} if keep == "samples" else {}
    assert mill.fresh_files(recipe(mill, corpus, keep, slice_bytes=4 << 20), **options) == whole


def test_behind_a_barrier_and_updated(mill, corpus, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for name in "ab":
        (data / f"{name}.jsonl").write_text("".join(json.dumps({"text": f"{name} {n} " * n}) + "\n" for n in range(90)))

    def made(**settings):
        return mill.recipe(
            {"x": steps.Read(read=str(data))},
            [steps.Shuffle(), steps.Length(min_chars=50, max_chars=300), steps.Write(format="jsonl")],
            keep_dropped="samples",
            **settings,
        )

    first = mill.fresh_files(made())
    assert {"dropped/length-too_long.jsonl", "dropped/length-too_short.jsonl"} <= set(first)
    assert json.loads(first["dropped/length-too_short.jsonl"].splitlines()[0])["file"] in ("a.jsonl", "b.jsonl")
    (data / "c.jsonl").write_text(json.dumps({"text": "no"}) + "\n")
    mill.run(made(), update=True)
    written = [content for path, content in mill.files(work=False).items() if "too_short" in path]
    assert b'"c.jsonl"' in b"".join(written)


def test_an_update_keeps_what_still_fits(mill, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.jsonl").write_text("".join(json.dumps({"text": "x" * n}) + "\n" for n in range(60)))

    def made():
        return mill.recipe({"x": steps.Read(read=str(data))}, [steps.Length(min_chars=30)], keep_dropped="all")

    before = mill.fresh_files(made())
    (data / "b.jsonl").write_text(json.dumps({"text": "new"}) + "\n")
    mill.run(made(), update=True)
    [name] = [file.path for file in open_dataset(mill.output).manifest.dropped]
    lines = (mill.output / name).read_bytes()
    assert lines.startswith(before["dropped/length-too_short.jsonl"])
    assert b'"new' in lines
    assert len(lines.splitlines()) == 31


def test_a_recipe_that_asks_for_them_later_is_not_up_to_date(mill, corpus):
    mill.run(recipe(mill, corpus, None))
    assert not (mill.output / "dropped").exists()
    with pytest.raises(NotUpToDateError):
        mill.run(recipe(mill, corpus, "samples"))


def test_records_by_columns_and_large_ones_by_reference(mill, monkeypatch):
    monkeypatch.setattr(dropped_module, "MAX_RECORD_BYTES", 200)
    records = [{"text": "short", "n": 1}, {"text": "x" * 500, "n": 2}, {"text": "fine " * 5, "n": 3}]
    made = mill.recipe(
        {"x": steps.Read(read=records, columns=["n"])},
        [steps.Length(min_chars=10, max_chars=100), steps.Write(format="parquet")],
        keep_dropped="all",
    )
    mill.run(made)
    [short], [long] = lines_of(mill, "length-too_short"), lines_of(mill, "length-too_long")
    assert json.loads(short["record"]) == {"text": "short", "n": 1}
    assert long["record"] is None
    assert long["bytes"] > 500


def test_only_samples_or_all():
    with pytest.raises(UsageError, match="keep_dropped"):
        parse_recipe("{output: o, sources: {a: {read: a}}, keep_dropped: some}")
    assert parse_recipe("{output: o, sources: {a: {read: a}}, keep_dropped: all}").keep_dropped == "all"


def test_the_funnel(mill, corpus):
    result = mill.run(recipe(mill, corpus, None))
    report = json.loads((mill.output / "report.json").read_text())
    assert report["dataset_hash"] == result.manifest.dataset_hash
    for source, accounts in result.books.items():
        funnel = report["funnel"][source]
        assert [stage["step"] for stage in funnel] == [account.step for account in accounts]
        assert [stage["documents"] for stage in funnel] == [account.records_out for account in accounts]
        sizes = [stage["text_bytes"] for stage in funnel]
        assert sizes == sorted(sizes, reverse=True)
    quality = next(stage for stage in report["funnel"]["books"] if stage["step"] == "gopher_quality")
    assert quality["failed"]["min_words"] == quality["dropped"]["min_words"]
    assert quality["failed"]["max_mean_word_length"] > quality["dropped"]["max_mean_word_length"]
    texts = [record["text"] for record in open_dataset(mill.output)]
    left = sum(report["funnel"][source][-1]["text_bytes"] for source in report["funnel"])
    assert left == sum(len(text.encode()) for text in texts)


WHY = [
    (steps.Length(min_chars=10), {"too_short": 6}, {"too_short": 10}),
    (steps.Length(max_chars=5), {"too_long": 6}, {"too_long": 5}),
    (steps.C4(), {"min_sentences": 0}, {"min_sentences": 3}),
    (steps.C4(max_characters=5), {"max_characters": 6}, {"max_characters": 5}),
    (steps.C4(require_terminal_punctuation=None, min_words_per_line=None), {"drop_curly_brackets": True}, {}),
    (steps.Toxicity(lists={"": ["bad"]}, max_density=0.25), {"max_density": 0.5}, {"max_density": 0.25}),
    (steps.Language(languages=["en"]), {"no_letters": "und"}, {}),
    (steps.Scores(min_words=3), {"min_words": 2}, {"min_words": 3}),
    (steps.GopherQuality(), {"empty": 0}, {}),
]
LENGTH_REASONS = {"min_chars": "too_short", "max_chars": "too_long"}
"""The only rules that are not called like the reason for which they drop."""
STAYS = "It was the first of many good days for us all. We went out to the sea. Then we went home again."
TEXTS = ["a bad {", "1 - 2", "", "bad ok", STAYS]


@pytest.mark.parametrize(("step", "failed", "thresholds"), WHY, ids=lambda value: str(value)[:40])
def test_each_step_says_which_value_was_held_against_which_threshold(mill, tmp_path, step, failed, thresholds):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    chain = [step, steps.Write(format="jsonl")]
    recipe = mill.recipe({"x": steps.Read(read=str(tmp_path / "a.jsonl"))}, chain, keep_dropped="all", allow_empty=True)
    mill.run(recipe)
    [reason] = failed
    entries = lines_of(mill, f"{step.name}-{reason}")
    assert failed in [entry["failed"] for entry in entries]
    assert all(entry["thresholds"] == thresholds for entry in entries if entry["failed"] == failed)
    # What `explain` says of the same record is the same.
    for entry in entries:
        found = explain(recipe, entry["place"])
        findings = [finding for finding in found.steps[0].findings if not finding.passed]
        broken = {LENGTH_REASONS.get(finding.rule, finding.rule): finding.value for finding in findings}
        if "dropped" not in broken.values() and "no_letters" not in entry["failed"]:
            assert broken == entry["failed"]


def test_the_record_is_text_whatever_it_was_read_from_and_its_place_leads_back(mill, tmp_path):
    texts = ["one", "two" * 9, "three"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    pq.write_table(pa.table({"text": texts, "n": [1, 2, 3]}), tmp_path / "b.parquet")
    (tmp_path / "c.txt").write_text("tiny")
    sources = {name: steps.Read(read=str(tmp_path / file)) for name, file in FILES.items()}
    recipe = mill.recipe(sources, [steps.Length(min_chars=9), steps.Write(format="arrow")], keep_dropped="all")
    mill.run(recipe)
    entries = lines_of(mill, "length-too_short")
    assert len(entries) == 5
    dataset = open_dataset(mill.output)
    for entry in entries:
        record = json.loads(entry["record"])
        assert entry["bytes"] > 0
        found = explain(recipe, entry["place"])
        assert (found.source, found.position) == (entry["source"], entry["position"])
        assert found.record["text"] == record["text"]
        assert found.leaves_at == "length"
        place = trace_input(dataset, entry["place"])
        assert (place.origin.source, place.origin.position) == (entry["source"], entry["position"])
        original = place.original if isinstance(place.original, dict) else json.loads(place.original)
        assert original["text"] == record["text"]
    # One type in every line, so that other readers of JSON lines take the file.
    assert (
        pyarrow.json.read_json(mill.output / "dropped/length-too_short.jsonl").schema.field("record").type == "string"
    )
    for wrong in ("a:a.jsonl@5", "a:nothing.jsonl@0", "a.jsonl@x"):
        with pytest.raises(UsageError):
            explain(recipe, wrong)
    for wrong in ("nothing.jsonl@0", "x"):
        with pytest.raises(UsageError):
            trace_input(dataset, wrong)


FILES = {"a": "a.jsonl", "b": "b.parquet", "c": "c.txt"}


def test_places_tell_sources_with_equal_file_names_apart(mill, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "part.jsonl").write_text(f'{{"text": "{name}"}}\n{{"text": "stays"}}\n')
    sources = {name: steps.Read(read=str(tmp_path / name)) for name in "ab"}
    chain = [steps.Length(min_chars=2), steps.Write(format="jsonl")]
    recipe = mill.recipe(sources, chain, keep_dropped="all")
    mill.run(recipe)
    for entry in lines_of(mill, "length-too_short"):
        assert explain(recipe, entry["place"]).record["text"] == entry["source"]


@pytest.mark.parametrize(
    ("global_steps", "name"),
    [
        ([steps.Limit(max_records=7)], "limit-over_limit"),
        ([steps.Length(min_chars=1), steps.Limit(max_records=7)], "limit-over_limit"),
        ([steps.Mix(weights={"a": 0.7, "b": 0.3}, size=20, by="documents")], "mix-not_chosen"),
        ([steps.Mix(weights={"a": 0.9, "b": 0.1}, size=200, by="documents", max_epochs=4)], "mix-not_chosen"),
        ([steps.Deduplicate(kind="lines")], "deduplicate-duplicate"),
        ([steps.Deduplicate(kind="paragraphs")], "deduplicate-duplicate"),
        ([steps.Deduplicate(kind="substring", min_words=5)], "deduplicate-duplicate"),
        ([steps.Shuffle(), steps.Limit(max_records=7), steps.Deduplicate(kind="lines")], "limit-over_limit"),
    ],
)
def test_what_barriers_drop_is_kept_as_it_came_to_them(mill, tmp_path, small_units, global_steps, name):
    texts = {}
    for source in ("a", "b"):
        lines = [f"{source} {n % 25} has these words and these only\n\nwith {n % 25} in the end" for n in range(60)]
        texts[source] = set(lines)
        (tmp_path / f"{source}.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    sources = {source: steps.Read(read=str(tmp_path / f"{source}.jsonl")) for source in texts}
    chain = [*global_steps, steps.Write(format="jsonl")]
    result = mill.run(mill.recipe(sources, chain, keep_dropped="all"))
    counted = {}
    for source, accounts in result.books.items():
        for account in accounts:
            for reason, count in account.dropped.items():
                counted[f"{account.step}-{reason}", source] = count
    assert any(key == name for key, _ in counted)
    for (file, source), count in counted.items():
        entries = [entry for entry in lines_of(mill, file) if entry["source"] == source]
        assert len({entry["place"] for entry in entries}) == len(entries) == count
        assert {json.loads(entry["record"])["text"] for entry in entries} <= texts[source]
    manifest = mill.run(mill.recipe(sources, chain, keep_dropped="samples"), overwrite=True).manifest
    for (file, source), count in counted.items():
        [path] = [mill.output / stored.path for stored in manifest.dropped if file in stored.path]
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        assert sum(entry["source"] == source for entry in entries) == min(20, count)
