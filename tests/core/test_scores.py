"""Rules and scores are stored: what is equal has equal bytes."""

import msgspec

from gristmill.core.scores import MeasuredScore, StepScores, ThresholdRule


def make_rule(*thresholds):
    return ThresholdRule(name="min_words", score="words", reason="few_words", thresholds=list(thresholds))


def test_a_threshold_has_one_form():
    whole, decimal = make_rule(50, None), make_rule(50.0, None)
    assert whole == decimal
    assert msgspec.json.encode(whole) == msgspec.json.encode(decimal)
    assert [type(threshold) for threshold in whole.thresholds] == [float, type(None)]


def test_scores_come_back_from_their_bytes():
    scores = StepScores(
        step="length", scores=[MeasuredScore(name="words", is_whole=True)], rules=[make_rule(3)], languages=["de"]
    )
    encoded = msgspec.json.encode(scores)
    assert msgspec.json.decode(encoded, type=StepScores) == scores
    assert b'"language_column"' in encoded  # fields with default values are written too
