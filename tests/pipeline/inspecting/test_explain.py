"""One record through a recipe, with the outcome of every step."""

import json

import pytest

from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.pipeline.inspecting.explain import CHANGED, DROPPED, KEPT, NOT_KNOWN, QUARANTINED, explain

PROSE = "This is a document with words that have a meaning, and it is all of it in English. " * 5


@pytest.fixture
def project_recipe(mill, tmp_path):
    records = [{"text": PROSE, "n": 0}, {"text": "too short", "n": 1}, {"text": "{ " * 99, "n": 2}]
    lines = [json.dumps(record) for record in records]
    (tmp_path / "a.jsonl").write_text("\n".join([lines[0], "not JSON", *lines[1:]]))
    return mill.recipe(
        {"web": steps.Read(read=str(tmp_path / "*.jsonl"))},
        [
            steps.Language(languages=["en"]),
            steps.GopherQuality(by_language={"en": {"min_words": 20}}),
            steps.GopherRepetition(max_duplicate_line_ratio=None),
            steps.Split(validation=1),
            steps.Length(min_chars=20),
            steps.Write(format="jsonl"),
        ],
        max_quarantine=1.0,
    )


def outcomes(found):
    return {outcome.step: outcome.outcome for outcome in found.steps}


@pytest.mark.full
def test_every_step_is_shown(project_recipe, tmp_path):
    found = explain(project_recipe, "a.jsonl", 0)
    assert outcomes(found) == {
        "language": CHANGED,
        "gopher_quality": KEPT,
        "gopher_repetition": DROPPED,
        "split": NOT_KNOWN,
        "length": KEPT,
    }
    assert found.leaves_at == "gopher_repetition"
    quality = {finding.rule: finding for finding in found.steps[1].findings}
    assert quality["min_words"].value == len(PROSE.split())
    assert quality["min_words"].threshold == 20
    assert all(finding.passed and finding.definition for finding in quality.values())
    repetition = {finding.rule: finding.passed for finding in found.steps[2].findings}
    assert "max_duplicate_line_ratio" not in repetition
    assert not repetition["max_duplicate_10_gram_ratio"]
    assert found.record["text"] == PROSE


def test_what_is_dropped_early_is_judged_by_the_others_too(project_recipe, tmp_path):
    found = explain(project_recipe, str(tmp_path / "a.jsonl"), 3)
    assert found.leaves_at == "language"
    assert found.steps[0].reason == "no_letters"
    assert outcomes(found)["gopher_quality"] == DROPPED  # its column language is there all the same
    assert found.is_certain
    assert outcomes(found)["gopher_repetition"] == DROPPED


def test_what_depends_on_other_records_is_not_certain(mill, project_recipe, tmp_path):
    for last, leaves_at in ((20, None), (10**6, "length")):
        recipe = mill.recipe(project_recipe.sources, [steps.Split(validation=1), steps.Length(min_chars=last)])
        found = explain(recipe, "a.jsonl", 0)
        assert (found.leaves_at, found.is_certain) == (leaves_at, False)


def test_kept_scores_of_what_is_dropped_are_columns_for_the_next(mill, project_recipe):
    sources = project_recipe.sources
    chain = [steps.Code(keep_scores=True, max_mean_line_length=1), steps.Select(columns=["text", "score_longest_line"])]
    found = explain(mill.recipe(sources, chain), "a.jsonl", 0)
    assert list(outcomes(found).values()) == [DROPPED, CHANGED]


def test_records_that_cannot_be_read(project_recipe):
    found = explain(project_recipe, "a.jsonl", 1)
    assert found.leaves_at == "read"
    assert found.steps[0].outcome == QUARANTINED
    assert "invalid_json" in found.steps[0].reason


def test_a_record_of_a_dataset_is_followed_back(mill, project_recipe):
    mill.run(mill.recipe(project_recipe.sources, [steps.Length(min_chars=20)], max_quarantine=1.0))
    found = explain(project_recipe, str(mill.output), 1)
    assert found.record["text"] == "{ " * 99
    with pytest.raises(UsageError, match="no record 2"):
        explain(project_recipe, str(mill.output), 2)


@pytest.mark.parametrize(
    ("place", "number", "message"), [("b.jsonl", 0, "did you mean"), ("a.jsonl", 9, "no record 9")]
)
def test_what_is_not_there_is_said(project_recipe, place, number, message):
    with pytest.raises(UsageError) as raised:
        explain(project_recipe, place, number)
    assert message in str(raised.value)


@pytest.fixture
def with_duplicates(mill, tmp_path):
    text = " ".join(f"word{number}" for number in range(60))
    texts = [text, text + " and more", "another text", "another text", "x"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return mill.recipe(
        {"web": steps.Read(read=str(tmp_path / "a.jsonl"))},
        [
            steps.Deduplicate(kind="exact"),
            steps.Length(min_chars=3),
            steps.Deduplicate(),
            steps.Write(format="jsonl"),
        ],
    )


def test_what_deduplicate_removes_is_known_once_it_has_run(mill, with_duplicates):
    for number in range(5):
        found = explain(with_duplicates, "a.jsonl", number)
        assert found.undecided_at == "deduplicate"
        assert not found.is_certain
    mill.run(with_duplicates)
    expected = [[KEPT, KEPT, DROPPED], [KEPT] * 3, [KEPT] * 3, [DROPPED, KEPT, NOT_KNOWN], [KEPT, DROPPED, NOT_KNOWN]]
    for number, ways in enumerate(expected):
        found = explain(with_duplicates, "a.jsonl", number)
        assert [outcome.outcome for outcome in found.steps] == ways
        assert found.leaves_at == (next((outcome.step for outcome in found.steps if outcome.outcome == DROPPED), None))
        assert found.is_certain
        assert (found.removed is not None) == (number in (0, 3))
    changed = mill.recipe(
        with_duplicates.sources, [steps.Deduplicate(kind="exact"), steps.Write(format="jsonl")], seed=9
    )
    assert outcomes(explain(changed, "a.jsonl", 1)) == {"deduplicate": NOT_KNOWN}
    assert explain(changed, "a.jsonl", 3).leaves_at == "deduplicate"


def test_parts_of_a_record_are_removed_one_by_one(mill, tmp_path):
    (tmp_path / "functions.py").write_text(
        "import pyarrow as pa\n"
        "def pieces(batch):\n"
        "    rows = []\n"
        "    for record in batch.to_pylist():\n"
        "        for part, piece in enumerate(record['text'].split('|')):\n"
        "            rows.append({**record, 'text': piece, 'origin': {**record['origin'], 'part': part}})\n"
        "    return pa.RecordBatch.from_pylist(rows, schema=batch.schema)\n"
    )
    lines = [{"text": "one text|two"}, {"text": "other|one text"}, {"text": "one text|two"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pieces = steps.MapBatches(call=f"{tmp_path}/functions.py:pieces")
    recipe = mill.recipe(
        {"web": steps.Read(read=str(tmp_path / "a.jsonl"))},
        [pieces, steps.Deduplicate(max_source_loss=1.0), steps.Write()],
    )
    mill.run(recipe)
    found = [explain(recipe, "a.jsonl", number) for number in range(3)]
    assert [outcomes(some)["deduplicate"] for some in found] == [KEPT, CHANGED, DROPPED]
