"""Every step: travels, is written down and read back, gives the same twice, closes its books, and judges each record
alone."""

import inspect
import json
import pickle
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from gristmill_testing.golden_inputs import stored_png
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import steps
from gristmill.core.books import Account
from gristmill.core.records import ORIGIN, RECORD, RECORD_TYPE, documents
from gristmill.core.step import GlobalStep, LocalStep
from gristmill.recipe.dump import dump_recipe
from gristmill.recipe.load import STEPS, parse_recipe, step_class
from gristmill.runtime.functions import Function
from gristmill.text.classifiers.linear_model import train_model

FOLDER = str(Path(__file__).parent)
CALLS = str(Path(__file__).parent / "record_functions.py")

MODEL = Path(tempfile.mkdtemp()) / "quality.model"
MODEL.write_bytes(train_model(["ab 0"], ["b 1"], epochs=1).to_bytes())

EXAMPLES = {
    "c4": [{"min_words_per_line": 1, "min_sentences": None, "require_terminal_punctuation": None}],
    "code": [{}, {"keep_scores": True, "max_code_ratio": 0.5}],
    "fineweb": [{"max_short_line_ratio": None, "max_lines_per_word": 0.5, "min_terminal_line_ratio": None}],
    "decontaminate": [
        {"benchmarks": {"ask": "ask.jsonl"}},
        {"benchmarks": {"ask": {"read": ["a.json"], "question": "q"}}, "action": "drop", "ngram": 8},
    ],
    "deduplicate": [
        {},
        {"kind": "exact", "prefer": ["web"], "count": True},
        {"against": "bench.jsonl", "threshold": 0.9},
        {"kind": "paragraphs", "min_words": 3},
        {"kind": "exact", "by": "url"},
    ],
    "fim": [{}, {"rate": 1.0, "spm": 0.25, "tokens": {"prefix": "<p>", "suffix": "<s>", "middle": "<m>"}}],
    "filter": [{"call": f"{CALLS}:keep"}],
    "gopher_quality": [
        {
            "min_words": 1,
            "min_stop_words": 1,
            "min_mean_word_length": 1,
            "stop_words": ["ab", "a"],
            "keep_scores": True,
        },
        {"min_words": None, "language_column": "url", "by_language": {"de": {"min_stop_words": None}}},
    ],
    "gopher_repetition": [{}],
    "images": [{"min_width": 2}, {"resize": 3, "reencode": "webp"}],
    "scores": [{}, {"max_digit_ratio": 0.5, "min_letter_ratio": 0.1, "min_paragraphs": 1, "keep_scores": True}],
    "language": [{}, {"languages": ["en"], "min_score": 0.2}],
    "length": [{}, {"min_chars": 2, "max_chars": 4}],
    "html": [{}, {"main_content": False, "links": True}],
    "cap": [{"by": "url", "max": 2}, {"by": "host", "max": 9, "keep": "best", "score": "n"}],
    "keep_best": [{"by": "n", "share": 0.5}, {"by": "n", "count": 3, "per": "source", "order": "lowest"}],
    "limit": [{"max_records": 3}],
    "map": [{"call": f"{CALLS}:change"}, {"call": f"{CALLS}:score", "columns": {"score": "int64"}}],
    "map_batches": [{"call": f"{CALLS}:change_batch"}, {"call": f"{CALLS}:keep_rows"}, {"call": f"{CALLS}:twice"}],
    "mix": [
        {"weights": {"web": 1.0}, "size": 9},
        {"epochs": {"web": 1.5}, "by": "documents"},
        {"weights": {"web": 0.5}, "size": 9, "by": "rows", "max_epochs": 2.5},
    ],
    "normalize": [{}, {"unicode": "NFKC", "entities": True, "whitespace": True}],
    "pii": [{}, {"kinds": ["phone", "key"], "placeholders": {"key": "[key]"}}],
    "url": [{"words": ["b"]}, {"domains": ["b.org"], "require": True}],
    "pack": [{"row_length": 8}, {"row_length": 3, "strategy": "concat", "long_documents": "drop"}],
    "quality_model": [{"model": str(MODEL)}, {"model": str(MODEL), "min_score": 0.5, "buckets": [0.2, 0.6]}],
    "read": [{"read": "a.jsonl"}, {"read": ["a", "b"], "columns": ["url"]}],
    "repetition": [{"max_longest_character_run": 2, "max_longest_word_run": 1}],
    "rename": [{"columns": {"url": "link"}}],
    "render": [
        {"template": "chatml"},
        {"tokenizer": "mine", "train_on": "marked", "max_tokens": 8, "date": "2026-01-31"},
    ],
    "sample": [{"fraction": 0.5}, {"fraction": 1.0, "salt": "no"}],
    "select": [{"columns": ["url", "text"]}],
    "shuffle": [{}],
    "split": [{"validation": 0.25}, {"validation": 3, "test": 2, "by": "origin"}, {"test": 0.5, "by": "url"}],
    "tokenize": [{"tokenizer": "mine"}, {"tokenizer": "mine", "add_bos": True, "special_tokens_in_text": "reject"}],
    "toxicity": [{"lists": {"": ["ab"]}, "max_density": 0.5}],
    "write": [{}, {"format": "jsonl", "compression": "zstd"}],
}
EVERY = [
    pytest.param(steps.Read if name == "read" else step_class(name), parameters, id=f"{name}-{index}")
    for name, examples in EXAMPLES.items()
    for index, parameters in enumerate(examples)
]


def is_local(step_type, parameters):
    """Whether the step is applied to batches; a `split` by numbers becomes a global step when it is resolved."""
    is_global = step_type is steps.Split and isinstance(step_type(**parameters).resolve("."), GlobalStep)
    return issubclass(step_type, LocalStep) and not is_global


LOCAL = [case for case in EVERY if is_local(*case.values)]

TEXT = st.text("ab012é🌾\n\x00", max_size=6)  # 0, 1 and 2 are what the functions fail at
ROWS = st.lists(st.tuples(TEXT, st.one_of(st.none(), st.sampled_from(["de", "b.org"]))), max_size=12)


PICTURES = [None, b"", b"no image", stored_png(1, 4, 9), stored_png(4, 4, 0), stored_png(9, 4, 200)]


def make_batch(rows, *, with_json, step_type=None):
    texts = [text for text, _ in rows]
    urls = pa.array([url for _, url in rows], pa.string())
    batch = documents(texts, url=urls)
    if with_json:
        # "link" in some records: a rename must refuse just these
        lines = [
            json.dumps({"text": text, "url": url, "id": 1.50} | ({"link": 1} if text.startswith("0") else {})).encode()
            for text, url in rows
        ]
        batch = batch.append_column(RECORD, pa.array(lines, RECORD_TYPE))
    if step_type is steps.Images:
        pictures = [PICTURES[len(text) % len(PICTURES)] for text in texts]
        batch = batch.append_column("png", pa.array(pictures, pa.large_binary()))
    return batch


def account_of(step, batch, applied):
    quarantined = Counter(bad.reason for bad in applied.quarantined)
    return Account(
        step.name, batch.num_rows, applied.created, applied.batch.num_rows, Counter(applied.dropped), quarantined
    )


def test_every_step_is_here():
    assert sorted(EXAMPLES) == sorted([*STEPS, "read"])


@pytest.mark.parametrize(("step_type", "parameters"), EVERY)
def test_name_class_and_page(step_type, parameters):
    step = step_type(**parameters)
    assert step_type.__name__ in steps.__all__
    assert step.name == "read" or step_class(step.name) is step_type
    assert ">>>" in inspect.getdoc(step_type)


@pytest.mark.parametrize(("step_type", "parameters"), EVERY)
def test_pickles_and_is_frozen(step_type, parameters):
    step = step_type(**parameters)
    assert pickle.loads(pickle.dumps(step)) == step
    for field in step.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(step, field, None)


@pytest.mark.parametrize(("step_type", "parameters"), EVERY)
def test_round_trip_through_yaml(step_type, parameters):
    source = msgspec.json.encode({"read": "a.jsonl"} | (parameters if step_type is steps.Read else {})).decode()
    listed = [] if step_type is steps.Read else [{step_type(**parameters).name: parameters}]
    text = f"output: out\nsources: {{web: {source}}}\nsteps: {msgspec.json.encode(listed).decode()}\n"
    recipe = parse_recipe(text, folder=FOLDER)
    made = recipe.sources["web"].read if step_type is steps.Read else recipe.steps[0]
    assert made == step_type(**parameters)
    again = parse_recipe(dump_recipe(recipe), folder=FOLDER)
    assert again == recipe


@pytest.mark.parametrize(("step_type", "parameters"), LOCAL)
@settings(max_examples=60, deadline=None)  # the first call imports the function's file
@given(rows=ROWS, with_json=st.booleans(), cut=st.integers(0, 12), seed=st.integers(0, 3))
def test_books_schema_identities_and_grouping(step_type, parameters, rows, with_json, cut, seed):
    step = step_type(**parameters)
    batch = make_batch(rows, with_json=with_json, step_type=step_type)
    applied = step.apply(batch, seed)

    assert account_of(step, batch, applied).is_balanced
    assert applied.batch.schema.equals(step.output_schema(batch.schema), check_metadata=True)
    applied.batch.validate(full=True)
    again = step.apply(make_batch(rows, with_json=with_json, step_type=step_type), seed)
    assert again.batch.equals(applied.batch)
    assert again.quarantined == applied.quarantined

    given_out = applied.batch.column(ORIGIN).to_pylist()
    known = {(origin["file"], origin["position"]) for origin in batch.column(ORIGIN).to_pylist()}
    assert {(origin["file"], origin["position"]) for origin in given_out} <= known
    assert len({tuple(origin.values()) for origin in given_out}) == len(given_out)

    first, second = step.apply(batch.slice(0, cut), seed), step.apply(batch.slice(cut), seed)
    assert pa.concat_batches([first.batch, second.batch]).equals(applied.batch)
    assert Counter(first.dropped) + Counter(second.dropped) == Counter(applied.dropped)
    assert first.created + second.created == applied.created
    assert first.quarantined + second.quarantined == applied.quarantined


@pytest.mark.parametrize(("step_type", "parameters"), EVERY)
def test_local_or_global(step_type, parameters):
    step = step_type(**parameters)
    if isinstance(step, GlobalStep):
        assert not isinstance(step, LocalStep)
    if isinstance(getattr(step, "call", None), Function):
        assert step.function.fingerprint()
