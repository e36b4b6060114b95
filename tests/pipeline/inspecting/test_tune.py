"""Tuning by kept scores: what it says of other thresholds is what runs with them keep."""

import json
import random

import numpy as np
import pytest

from gristmill.core.errors import UsageError
from gristmill.pipeline.inspecting.tune import QUANTILES, ThresholdChange, list_overrides, tune
from gristmill.recipe.dump import dump_recipe
from gristmill.recipe.load import parse_recipe
from gristmill.shards.manifest_file import load_manifest
from gristmill.steps import GopherQuality, GopherRepetition, KeepBest, Length, Read, Scores, Write

WORDS = ["the", "be", "to", "of", "and", "stone", "wheat", "flour", "river", "12", "#", "...", "mill"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = random.Random(5)
    path = tmp_path_factory.mktemp("tune") / "a.jsonl"
    lines = (
        {
            "text": " ".join(rng.choices(WORDS, k=rng.randrange(0, 90))) + "\n- item" * rng.randrange(4),
            "language": rng.choice(["en", "de", "de", None]),
        }
        for _ in range(900)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(mill, data, *steps):
    sources = {"web": Read(read=str(data), columns=["language"])}
    result = mill.run(mill.recipe(sources, [*steps, Write(format="jsonl")]), overwrite=True)
    return result.manifest.books["web"][len(steps)].records_out


def change(name, value):
    step, *language, rule = name.split(".")
    return ThresholdChange(step=step, rule=rule, value=value, language=language[0] if language else None)


DE = {"de": {"min_words": 60}}


@pytest.mark.parametrize(
    ("changes", "then"),
    [
        ({"gopher_quality.min_words": 20}, GopherQuality(min_words=20, by_language=DE)),
        ({"gopher_quality.min_words": None}, GopherQuality(min_words=None, by_language=DE)),
        ({"gopher_quality.de.min_words": 12}, GopherQuality(min_words=40, by_language={"de": {"min_words": 12}})),
        (
            {"gopher_quality.max_bullet_line_ratio": 0.5, "gopher_quality.min_alphabetic_word_ratio": 0.7},
            GopherQuality(
                min_words=40, max_bullet_line_ratio=0.5, min_alphabetic_word_ratio=0.7, by_language=DE
            ),
        ),
    ],
)  # fmt: skip
def test_a_filter_keeps_what_was_foretold(mill, data, changes, then):
    before = run(mill, data, GopherQuality(min_words=40, by_language=DE))
    (source,) = tune(mill.output, [change(*item) for item in changes.items()]).sources
    assert (source.kept, source.unscored, source.documents) == (before, 0, 900)
    assert source.kept_then == run(mill, data, then) != before


@pytest.mark.parametrize(
    ("amount", "changes", "then"),
    [
        ({"share": 0.25}, {"gopher_quality.min_words": 20}, {"share": 0.25}),
        ({"count": 40}, {"gopher_quality.min_words": 20, "keep_best.count": 60}, {"count": 60}),
        ({"share": 0.25, "per": "source", "order": "lowest"}, {}, {"share": 0.25, "per": "source", "order": "lowest"}),
    ],
)
def test_the_cut_of_the_best_is_forecast(mill, data, amount, changes, then):
    by, quality = "score_words", {"min_words": 40, "keep_scores": True}
    run(mill, data, GopherQuality(**quality), KeepBest(by=by, **amount))
    tuning = tune(mill.output, [change(*item) for item in changes.items()])
    min_words = changes.get("gopher_quality.min_words", 40)
    kept = run(mill, data, GopherQuality(**quality | {"min_words": min_words}), KeepBest(by=by, **then))
    [best] = tuning.best
    assert best.source == ("web" if "per" in amount else None)
    assert (best.kept, best.threshold) == (kept, load_manifest(mill.output).best[0].threshold)


def test_only_what_a_best_step_has_can_be_changed(mill, data):
    run(mill, data, GopherQuality(keep_scores=True), KeepBest(by="score_words", share=0.5))
    for name, value, error in (
        ("keep_best.count", 5, "no scores for keep_best.count"),
        ("keep_best.share", 2, "share"),
    ):
        with pytest.raises(UsageError, match=error):
            tune(mill.output, [change(name, value)])


def test_of_several_filters_the_outcome_lies_between(mill, data):
    before = run(mill, data, Length(min_chars=60), GopherQuality(min_words=40), GopherRepetition())
    (source,) = tune(mill.output, [change("gopher_quality.min_words", 10)]).sources
    after = run(mill, data, Length(min_chars=60), GopherQuality(min_words=10), GopherRepetition())
    assert source.kept_then == before < after <= before + source.unscored
    # Stricter thresholds need no new scores: the outcome is exact.
    (source,) = tune(mill.output, [change("gopher_quality.min_words", 70), change("length.min_chars", 300)]).sources
    assert source.unscored == 0
    assert source.kept_then == run(mill, data, Length(min_chars=300), GopherQuality(min_words=70), GopherRepetition())


@pytest.mark.parametrize("by_language", [{}, {"de": {"min_words": 60}, "en": {"max_bullet_line_ratio": None}}])
def test_every_other_threshold_keeps_what_it_says(mill, data, by_language):
    filters = {"min_words": 40, "max_bullet_line_ratio": 0.6}
    before = run(mill, data, Scores(**filters, by_language=by_language))
    dataset = mill.output
    (source,) = tune(dataset).sources
    assert [rule.rule for rule in source.rules] == list(filters)
    others = [(rule.rule, threshold, count) for rule in source.rules for threshold, count in rule.would_keep.items()]
    assert any(count != before for _, _, count in others)
    for rule, threshold, count in others:
        (changed,) = tune(dataset, [change(f"scores.{rule}", json.loads(threshold))]).sources
        assert changed.kept_then == count
    for rule, threshold, count in others:
        assert run(mill, data, Scores(**(filters | {rule: json.loads(threshold)}), by_language=by_language)) == count


def test_numbers_of_rules_by_hand(mill, data):
    run(mill, data, Scores(min_words=40, min_letter_ratio=0.6))
    (source,) = tune(mill.output).sources
    texts = [json.loads(line)["text"] for line in data.read_text().splitlines()]
    words = np.array([len(text.split()) for text in texts])
    letters = np.array([sum(c.isalpha() for c in t.strip()) / max(len(t.strip()), 1) for t in texts])
    short, odd = (words < 40) & (words > 0), (letters < 0.6) & (words > 0)
    first, second = source.rules
    assert (first.broken, second.broken) == (short.sum(), odd.sum())
    assert (first.alone, second.alone) == ((short & ~odd).sum(), (odd & ~short).sum())
    assert source.overlaps == [("scores.min_words", "scores.min_letter_ratio", (short & odd).sum())]
    assert first.quantiles == np.quantile(words, QUANTILES, method="lower").tolist()
    languages = np.array([json.loads(line)["language"] or "" for line in data.read_text().splitlines()])
    assert list(source.by_language) == ["de", "en"]
    for language, counts in source.by_language.items():
        rows = languages == language
        kept = rows & ~short & ~odd & (words > 0)
        assert counts == {"documents": rows.sum(), "kept": kept.sum(), "kept_then": kept.sum()}
        assert first.quantiles_by_language[language] == np.quantile(words[rows], QUANTILES, method="lower").tolist()
    near_kept = [example.value for example in first.examples if example.is_kept]
    assert near_kept == sorted(words[~short & ~odd & (words > 0)].tolist())[:3]
    content = data.read_bytes()
    for example in first.examples:
        position = int(example.place.partition("@")[2])
        record = json.loads(content[position:].splitlines()[0])
        assert len(record["text"].split()) == example.value
        assert example.is_kept == (example.value >= 40)


def test_changes_become_overrides_of_the_recipe():
    text = """
    output: o
    sources: {a: {read: a, steps: [scores: {max_digit_ratio: 0.5}]}, b: {read: b}}
    steps: [gopher_quality, scores: {max_digit_ratio: 0.3}]
    """
    recipe = parse_recipe(text)
    wanted = [change("gopher_quality.de.min_words", 30), change("scores-2.max_digit_ratio", 0.25)]
    overrides = list_overrides(recipe, wanted)
    assert overrides == ["steps.0.gopher_quality.by_language.de.min_words=30", "steps.1.scores.max_digit_ratio=0.25"]
    changed = parse_recipe(text, overrides=overrides)
    assert changed.steps[0].by_language == {"de": {"min_words": 30}}
    assert parse_recipe(dump_recipe(changed)) == changed
    # The first of its name is another step in each source.
    assert list_overrides(recipe, [change("scores.max_digit_ratio", None)]) == [
        "sources.a.steps.0.scores.max_digit_ratio=null",
        "steps.1.scores.max_digit_ratio=null",
    ]
    with pytest.raises(UsageError, match="no step c4"):
        list_overrides(recipe, [change("c4.min_words", 3)])


def test_what_cannot_be_tuned_is_named(mill, data):
    run(mill, data, Scores(min_words=40))
    with pytest.raises(UsageError, match=r"no scores for scores\.min_wrods") as error:
        tune(mill.output, [change("scores.min_wrods", 3)])
    assert "scores.min_words" in error.value.help
    run(mill, data, Length(min_chars=40))
    with pytest.raises(UsageError, match="has no kept scores"):
        tune(mill.output)
