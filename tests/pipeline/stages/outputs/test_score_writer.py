"""Score files: the scores of all documents, the same bytes for any workers, reused by updates."""

import json
import math
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import DamagedDatasetError
from gristmill.core.records import Records, StepResult, make_origins
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.stages.outputs.observers import StepPlace
from gristmill.pipeline.stages.outputs.score_writer import ScoreWriter, describe_stage
from gristmill.pipeline.stages.outputs.split_files import OutputStem
from gristmill.shards.manifest_file import load_manifest
from gristmill.shards.score_file import BIN_EDGES, ScoreTable, find_bins
from gristmill.shards.verify import verify
from gristmill.steps import (
    Deduplicate,
    GopherQuality,
    GopherRepetition,
    Language,
    Length,
    MapBatches,
    Read,
    Scores,
    Toxicity,
    Write,
)

WORDS = ["the", "be", "to", "of", "and", "that", "stone", "wheat", "flour", "river", "12", "#", "...", "mill"]


def write_documents(path, count, seed):
    rng = random.Random(seed)
    lines = (
        {
            "text": " ".join(rng.choices(WORDS, k=rng.randrange(0, 120))) + "\n- item" * rng.randrange(4),
            "language": rng.choice(["en", "de", None]),
        }
        for _ in range(count)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(6):
        write_documents(folder / f"part-{number}.jsonl", 60, number)
    return folder


FILTERS = (
    Length(min_chars=30),
    GopherQuality(min_words=20, by_language={"de": {"min_words": 60}}),
    Toxicity(lists={"": ["river"]}, max_density=0.2),
    GopherRepetition(),
)


def read_tables(mill):
    return [ScoreTable(mill.output, file) for file in load_manifest(mill.output).scores]


def file_hashes(manifest):
    return [(file.source, file.stage, file.xxh3, file.rows, file.histograms) for file in manifest.scores]


def test_every_document_that_reaches_a_filter_has_its_scores_and_its_reason(mill, data):
    manifest = mill.run(mill.recipe({"web": Read(read=f"{data}/*.jsonl")}, [*FILTERS, Write(format="jsonl")])).manifest
    (table,) = read_tables(mill)
    accounts = {account.step: account for account in manifest.books["web"]}
    for step in table.layout.steps:
        has_reached = table.has_reached(step)
        account = accounts[step.step]
        assert has_reached.sum() == account.records_in
        codes = table.values(step, "reason")[has_reached]
        dropped = {
            reason: int((codes == code).sum()) for code, reason in enumerate(step.reasons, 1) if (codes == code).any()
        }
        assert dropped == dict(account.dropped)
        # What the rules say of the kept numbers is what the filter did.
        tables = table.values(step, "table")[has_reached] if step.languages else np.zeros(len(codes), np.int64)
        fixed = codes > 0
        for rule in step.rules:
            fixed &= codes != 1 + step.reasons.index(rule.reason)
            values = table.values(step, rule.score)[has_reached]
            limits = np.array([np.nan if limit is None else limit for limit in rule.thresholds])[tables]
            breaks = (values < limits if rule.name.startswith("min_") else values > limits) & ~fixed
            failed = account.counters[f"failed:{rule.name}"] or breaks.sum() * (step.step in ("length", "toxicity"))
            assert breaks.sum() == failed, rule.name
    assert verify(mill.output)


def test_the_scores_are_those_that_the_filter_adds_as_columns(mill, data):
    recipe = mill.recipe(
        {"web": Read(read=f"{data}/*.jsonl")}, [GopherQuality(keep_scores=True, min_words=20), Write(format="jsonl")]
    )
    mill.run(recipe)
    (table,) = read_tables(mill)
    (step,) = table.layout.steps
    kept = table.values(step, "reason") == 0
    records = [
        json.loads(line)
        for path in sorted(mill.output.glob("train/web/*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    for score in step.scores:
        values = table.values(step, score.name)[kept]
        assert sorted(values.tolist()) == sorted(record[f"score_{score.name}"] for record in records)


def test_the_same_bytes_for_any_workers_and_slices(mill, data, monkeypatch):
    write_documents(data / "large.jsonl", 9000, 99)
    chain = [*FILTERS, Deduplicate(kind="exact"), Scores(max_digit_ratio=0.1), Write(format="jsonl")]
    recipe = mill.recipe({"web": Read(read=f"{data}/*.jsonl")}, chain)
    first = file_hashes(mill.run(recipe, overwrite=True).manifest)
    assert [(source, stage) for source, stage, *_ in first] == [("web", 1), ("web", 2)]
    again = mill.run(mill.recipe({"web": Read(read=f"{data}/*.jsonl")}, chain, slice_bytes=300_000),
                     backend="processes", workers=2, overwrite=True)  # fmt: skip
    assert file_hashes(again.manifest) == first


def test_an_update_takes_the_scores_of_unchanged_files_from_the_dataset(mill, data):
    mill.layout = UnitLayout(unit_bytes=4000, min_group_bytes=1500, file_open_bytes=0)
    recipe = mill.recipe({"web": Read(read=f"{data}/*.jsonl")}, [*FILTERS, Write(format="jsonl")])
    mill.run(recipe)
    assert not list(mill.output.glob(".gristmill/**/*.scores"))  # what is kept for updates is the file itself
    write_documents(data / "part-3a.jsonl", 40, 77)
    updated = mill.run(recipe, update=True)
    assert verify(mill.output)
    assert file_hashes(mill.run(recipe, overwrite=True).manifest) == file_hashes(updated.manifest)


def test_no_file_without_a_score_filter_or_without_the_wish(mill, data):
    sources = {"web": Read(read=f"{data}/*.jsonl")}
    assert not mill.run(mill.recipe(sources, [Length(min_chars=9), Write(format="jsonl")])).manifest.scores
    without = mill.recipe(sources, [GopherQuality(), Write(format="jsonl")], keep_scores=None, allow_empty=True)
    assert not mill.run(without, overwrite=True).manifest.scores
    assert not (mill.output / "scores").exists()


def test_the_language_is_that_of_the_step_language(mill, data):
    chain = [Language(), Scores(max_digit_ratio=0.9), Write(format="jsonl")]
    mill.run(mill.recipe({"web": Read(read=f"{data}/*.jsonl")}, chain))
    (table,) = read_tables(mill)
    assert [step.step for step in table.layout.steps] == ["language", "scores"]
    kept = [
        json.loads(line)
        for path in sorted(mill.output.glob("train/web/*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    reached = table.has_reached(table.layout.steps[1]) & (table.values(table.layout.steps[1], "reason") == 0)
    languages = table.table.column("language").filter(pa.array(reached)).to_pylist()
    assert sorted(languages) == sorted(record["language"] for record in kept)


def copy_records(batch):
    """Each record twice; the copy is part 1."""
    origin = batch.column("origin")
    ones = pa.array([1] * batch.num_rows, pa.uint32())
    copies = pa.StructArray.from_arrays(
        [origin.field("file"), origin.field("position"), ones], fields=list(origin.type)
    )
    index = batch.schema.get_field_index("origin")
    return pa.concat_batches([batch, batch.set_column(index, "origin", copies)])


def test_records_that_a_step_creates_have_rows_of_their_own(mill, data):
    chain = [
        Scores(max_digit_ratio=0.9),
        MapBatches(call=copy_records),
        Scores(max_digit_ratio=0.2),
        Write(format="jsonl"),
    ]
    manifest = mill.run(mill.recipe({"web": Read(read=f"{data}/*.jsonl")}, chain)).manifest
    (table,) = read_tables(mill)
    first, second = table.layout.steps
    assert (first.prefix, second.prefix) == ("scores", "scores-2")
    accounts = [account for account in manifest.books["web"] if account.step == "scores"]
    assert [table.has_reached(step).sum() for step in (first, second)] == [account.records_in for account in accounts]
    assert (table.values(second, "reason") > 0).sum() == accounts[1].dropped.total()


def test_a_damaged_file_is_named(mill, data):
    mill.run(mill.recipe({"web": Read(read=f"{data}/*.jsonl")}, [Scores(max_digit_ratio=0.9), Write(format="jsonl")]))
    (file,) = load_manifest(mill.output).scores
    path = mill.output / file.path
    content = path.read_bytes()
    for damaged in (content[:-30], b"", content[:200] + b"\xff" * 40 + content[240:]):
        path.write_bytes(damaged)
        with pytest.raises(DamagedDatasetError, match=r"stage-1\.arrow"):
            ScoreTable(mill.output, file)
        assert [problem.path for problem in verify(mill.output).problems] == [file.path]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.floats(),
            st.floats(0, 1),
            st.sampled_from(BIN_EDGES.tolist()).flatmap(
                lambda edge: st.sampled_from([edge, math.nextafter(edge, -math.inf), math.nextafter(edge, math.inf)])
            ),
        )
    )
)
def test_bins_are_those_of_a_search_in_their_edges(numbers):
    values = np.array(numbers, np.float64)
    assert find_bins(values).tolist() == np.searchsorted(BIN_EDGES, values, side="right").tolist()


def test_rows_follow_records_whose_order_a_step_changes(tmp_path):
    """By origins, where a step does not say what it dropped."""
    steps = [Scores(max_digit_ratio=0.9), Length(), Scores(max_digit_ratio=0.5)]
    writer = ScoreWriter(describe_stage("web", 0, [steps]), steps, OutputStem(tmp_path, "x", "r", syncs=False))
    first, second, third = (StepPlace("web", number, step) for number, step in enumerate(steps))
    texts = pa.array(["one 11111", "two 2", "three"], pa.large_string())
    origins = make_origins(1, pa.array([10, 20, 30], pa.uint64()))
    batch = pa.RecordBatch.from_arrays([origins, texts], names=["origin", "text"])
    writer.after_step(first, Records(batch), steps[0].apply(batch, 0))
    shuffled = batch.take(pa.array([2, 0]))
    writer.after_step(second, Records(batch), StepResult(shuffled, {"some": 1}))
    writer.after_step(third, Records(shuffled), steps[2].apply(shuffled, 0))
    rows = writer._cell[0].to_pylist()
    assert [row["scores-2.digit_ratio"] for row in rows] == [5 / 9, None, 0.0]
    assert [row["scores-2.reason"] for row in rows] == [2, None, 0]
