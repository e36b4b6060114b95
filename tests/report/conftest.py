"""A dataset whose data tries to be a script."""

import json

import pytest
from gristmill_testing.reports import EVIL
from gristmill_testing.small_tokenizers import trained

import gristmill as gm
from gristmill import steps


@pytest.fixture(scope="session")
def web(tmp_path_factory):
    """A dataset of documents: dropped, changed and quarantined records, two sources, markup everywhere."""
    folder = tmp_path_factory.mktemp("report")
    name = "a<img src=x onerror=alert(1)>.jsonl"
    texts = [f"Document {n} of {EVIL} " + "words and more words " * (n % 7) for n in range(200)]
    lines = [json.dumps({"text": text}) for text in texts]
    (folder / name).write_text("\n".join([*lines, *lines[:6], '{"text": "short"}', "{broken " + EVIL, '{"text": 5}']))
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": f"Other  text {n}\r\n" * 9}) + "\n" for n in range(50)))
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(folder / "a*.jsonl")), "more": steps.Read(read=str(folder / "b.jsonl"))},
        steps=[
            steps.Length(min_chars=20),
            steps.Normalize(),
            steps.GopherQuality(min_words=12, min_stop_words=None),
            steps.Deduplicate(kind="exact"),
            steps.Split(validation=0.1),
            steps.Write(format="arrow"),
        ],
        output=str(folder / "out"),
        keep_dropped="samples",
        mixture={"web": 0.7, "more": 0.3},
    )
    gm.run(recipe, backend="serial", progress=False)
    return folder / "out"


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """A packed dataset of tokens."""
    folder = tmp_path_factory.mktemp("rows")
    (folder / "a.jsonl").write_text(
        "".join(json.dumps({"text": f"text number {n} " * (n % 9 + 1)}) + "\n" for n in range(120))
    )
    trained(folder / "tokenizer")
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(folder / "a.jsonl"))},
        steps=[steps.Tokenize(tokenizer=str(folder / "tokenizer")), steps.Pack(row_length=64)],
        output=str(folder / "out"),
    )
    gm.run(recipe, backend="serial", progress=False)
    return folder / "out"


@pytest.fixture(scope="session")
def mixed_rows(tmp_path_factory):
    """A packed dataset of two sources with scores and a mixture."""
    folder = tmp_path_factory.mktemp("mixed_rows")
    for name, count in (("web", 90), ("books", 60)):
        lines = (json.dumps({"text": f"{name} text number {n} " * (n % 9 + 1)}) + "\n" for n in range(count))
        (folder / f"{name}.jsonl").write_text("".join(lines))
    trained(folder / "tokenizer")
    recipe = gm.Recipe(
        sources={name: steps.Read(read=str(folder / f"{name}.jsonl")) for name in ("web", "books")},
        steps=[
            steps.GopherQuality(min_words=8, min_stop_words=None, min_alphabetic_word_ratio=None),
            steps.Split(validation=0.1),
            steps.Tokenize(tokenizer=str(folder / "tokenizer")),
            steps.Pack(row_length=64),
        ],
        output=str(folder / "out"),
        mixture={"web": 0.75, "books": 0.25},
    )
    gm.run(recipe, backend="serial", progress=False)
    return folder / "out"
