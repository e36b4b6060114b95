"""`keep_stages`: after a change of the last filter or of `pack`, what is before it does not run again."""

import json
from pathlib import Path

import pytest
from gristmill_testing.small_tokenizers import trained

from gristmill import steps
from gristmill.pipeline.publishing.clean import clean
from gristmill.pipeline.stages.runner import UnitReuse

COUNTING = """
from pathlib import Path


def is_kept(record):
    with (Path(__file__).parent / "calls").open("a") as calls:
        calls.write("x")
    return record["n"] % 3 > 0
"""


@pytest.fixture
def folder(tmp_path):
    trained(tmp_path / "tokenizer")
    (tmp_path / "own.py").write_text(COUNTING)
    lines = [json.dumps({"n": n, "text": f"sack {n} of wheat " * (1 + n % 5)}) + "\n" for n in range(200)]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    return tmp_path


def read(folder):
    return {"web": steps.Read(read={split: str(folder / f"{split}.jsonl") for split in ("train", "validation")})}


def recipe(mill, folder, *, min_chars=20, row_length=32, **keys):
    last = [
        steps.Filter(call=f"{folder}/own.py:is_kept"),
        steps.GopherQuality(
            min_words=2, min_stop_words=0, min_mean_word_length=1.0, min_alphabetic_word_ratio=0.1
        ),  # leaves scores in the work folder
        steps.Length(min_chars=min_chars),
        steps.Tokenize(tokenizer=str(folder / "tokenizer")),
        steps.Pack(row_length=row_length, min_utilisation=0),
    ]
    return mill.recipe(read(folder), last, **{"keep_stages": True} | keys)


def count_calls(folder):
    calls = folder / "calls"
    num_calls = len(calls.read_text()) if calls.exists() else 0
    calls.unlink(missing_ok=True)
    return num_calls


def list_kept(folder):
    return {path for path in folder.rglob("*.arrow") if path.parent.name == "stored"}


@pytest.mark.parametrize("work", [None, "scratch"])
def test_only_what_follows_a_change_runs_again(mill, folder, work):
    keys = {} if work is None else {"work": str(folder / work)}
    mill.run(recipe(mill, folder, **keys))
    num_first, kept = count_calls(folder), list_kept(folder)
    assert len(kept) == 4  # documents and tokens of two splits
    packed = mill.run(recipe(mill, folder, row_length=64, **keys), update=True)
    assert packed.reuse == UnitReuse(num_reused=2, num_units=3)
    assert list_kept(folder) == kept
    filtered = mill.run(recipe(mill, folder, row_length=64, min_chars=40, **keys), update=True)
    assert filtered.reuse == UnitReuse(num_reused=1, num_units=3)
    assert len(list_kept(folder)) == 4
    assert count_calls(folder) < num_first / 2  # the sample of each plan alone
    fresh = mill.run(recipe(mill, folder, row_length=64, min_chars=40, **keys), overwrite=True)
    assert fresh.manifest.dataset_hash == filtered.manifest.dataset_hash
    assert fresh.books == filtered.books
    clean(mill.output)
    assert not list_kept(folder)


def test_records_are_those_without_the_key(mill, folder):
    kept, plain = (
        mill.run(recipe(mill, folder, keep_stages=keeps), overwrite=True, workers=workers, backend=backend)
        for keeps, workers, backend in ((True, 2, "threads"), (False, "auto", "serial"))
    )
    assert kept.books == plain.books
    assert not list_kept(folder)
    assert kept.manifest.dataset_hash == plain.manifest.dataset_hash


def test_documents_are_kept_before_the_last_filter(mill, folder):
    def run(max_chars, **options):
        filters = [steps.Filter(call=f"{folder}/own.py:is_kept"), steps.Length(max_chars=max_chars)]
        return mill.run(mill.recipe(read(folder), filters, keep_stages=True), **options)

    run(60)
    count_calls(folder)
    updated = run(30, update=True)
    assert count_calls(folder) <= 100
    assert {len(row["text"]) <= 30 for row in updated.dataset()} == {True}
    assert Path(mill.output, ".gristmill", "stored").is_dir()
