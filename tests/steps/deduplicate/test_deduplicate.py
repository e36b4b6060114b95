"""What the step accepts, and how it says what it does not."""

import json

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import RECORD, documents
from gristmill.pipeline.planning import fingerprint
from gristmill.recipe.load import parse_recipe
from gristmill.steps import Deduplicate
from gristmill.steps.deduplicate.deduplicate import DUPLICATE_COUNT, with_counts
from gristmill.steps.deduplicate.pieces import LINES, PARAGRAPHS, hash_pieces
from gristmill.text.comparison_words import find_word_spans
from gristmill.text.quality.counting import RequiredPasses, TextCounter


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"kind": "fuzzy"}, "kind"),
        ({"verify": "texts"}, "verify"),
        ({"threshold": 0.0}, "threshold"),
        ({"threshold": 1.5}, "threshold"),
        ({"threshold": float("nan")}, "threshold"),
        ({"max_source_loss": -0.1}, "max_source_loss"),
        ({"max_source_loss": float("nan")}, "max_source_loss"),
        ({"ngram": 0}, "ngram"),
        ({"ngram": 65}, "ngram"),
        ({"bands": 0}, "bands"),
        ({"rows": -1}, "rows"),
        ({"bands": 5000, "rows": 5}, "bands"),
        ({"max_cluster": 0}, "max_cluster"),
        ({"partition_bytes": 0}, "partition_bytes"),
        ({"prefer": ["web", "web"]}, "prefer"),
        ({"threshold": 0.4}, "threshold"),
        ({"against": {"red": "a.jsonl"}}, "against"),
    ],
)
def test_what_is_refused(parameters, named):
    with pytest.raises(UsageError, match=named):
        Deduplicate(**parameters)


def test_a_threshold_that_the_bands_would_miss_is_refused_with_one_that_they_would_not():
    with pytest.raises(UsageError, match="only 7%") as caught:
        Deduplicate(threshold=0.4)
    rows = int(caught.value.help.split()[3])
    assert Deduplicate(threshold=0.4, rows=rows).estimate_recall(0.4) >= 0.5
    assert Deduplicate(threshold=0.4, kind="exact").kind == "exact"


def test_in_a_recipe_the_nearest_key_is_named():
    text = "{output: out, sources: {web: {read: a.jsonl}}, steps: [deduplicate: {treshold: 0.9}]}"
    with pytest.raises(UsageError, match="treshold") as caught:
        parse_recipe(text)
    assert "threshold" in caught.value.help


def test_limits_and_memory_are_in_no_fingerprint():
    same = [Deduplicate(), Deduplicate(max_cluster=5, max_source_loss=1.0, partition_bytes=1)]
    assert len({json.dumps(fingerprint.describe_steps([step])) for step in same}) == 1
    others = [Deduplicate(threshold=0.9), Deduplicate(prefer=["web"]), Deduplicate(verify="signature")]
    assert len({json.dumps(fingerprint.describe_steps([step])) for step in [*same, *others]}) == 4


def test_against_is_known_by_its_content(tmp_path):
    (tmp_path / "bench.jsonl").write_text('{"question": "why?"}\n')
    step = Deduplicate(against={"read": "bench.jsonl", "text": "question"})
    found = step.resolve(str(tmp_path))
    described = fingerprint.describe_steps([found])
    assert str(tmp_path) not in json.dumps(described)
    (tmp_path / "bench.jsonl").write_text('{"question": "why, then?"}\n')
    assert fingerprint.describe_steps([step.resolve(str(tmp_path))]) != described
    assert msgspec.structs.replace(found, max_cluster=3).files == found.files
    with pytest.raises(UsageError):
        Deduplicate(against="missing.jsonl").resolve(str(tmp_path))
    with pytest.raises(UsageError, match="text"):
        Deduplicate(against="bench.jsonl").resolve(str(tmp_path))


def test_columns():
    batch = documents(["a", "b"])
    assert Deduplicate().output_schema(batch.schema) == batch.schema
    counted = with_counts(batch, np.array([1, 3]))
    assert counted.column(DUPLICATE_COUNT).to_pylist() == [1, 3]
    assert Deduplicate(count=True).output_schema(batch.schema) == counted.schema
    with pytest.raises(UsageError, match="already"):
        Deduplicate(count=True).output_schema(counted.schema)
    with pytest.raises(UsageError, match="text"):
        Deduplicate().output_schema(pa.schema({"title": pa.string()}))
    lines = pa.array([b'{"a": 1.50}', b"{}"], pa.large_binary())
    counted = with_counts(batch.append_column(RECORD, lines), np.array([1, 3]))
    assert counted.column(RECORD).to_pylist() == [b'{"a":1.50,"duplicate_count":1}', b'{"duplicate_count":3}']
    with pytest.raises(UsageError, match="already has the key duplicate_count"):
        with_counts(batch.append_column(RECORD, pa.array([b"{}", b'{"duplicate_count": 9}'])), np.array([1, 3]))


SPACES = " \u00a0\u2003\u3000"
MARKED_LETTERS = st.builds(
    lambda letter, marks: letter + marks,
    st.characters(categories=["L", "Nd"]) | st.sampled_from("กມမខ大かｶ한ཀꀀ𠀀𛀁1"),
    st.text("\u0301\u0e34\u0ebc\u1031\u102c\u17b6\u0f72", max_size=2),
)


@given(st.lists(MARKED_LETTERS | st.sampled_from(SPACES), min_size=1, max_size=30).map("".join))
@example("ภาษาไทยไม่มีช่องว่าง")
@example("မြန်မာဘာသာ")
@example("ភាសាខ្មែរ")
@example("ພາສາລາວ")
@example("한국어는 띄어쓰기를 한다")
def test_one_definition_of_a_word(text):
    """Without punctuation, all parts count the same words: quality scores, lines, near duplicates."""
    texts = pa.array([text], pa.large_string())
    num_words = int(TextCounter(RequiredPasses()).count(texts)["words"][0])
    assert len(find_word_spans(text)) == num_words
    for kind in (LINES, PARAGRAPHS):
        assert len(hash_pieces(texts, kind, num_words)) == (num_words > 0)
        assert len(hash_pieces(texts, kind, num_words + 1)) == 0
