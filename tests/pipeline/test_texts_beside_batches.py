"""Texts that stay Python strings on their way through the steps: the same shards and books as from an Arrow column."""

import json
from dataclasses import replace

import pytest

from gristmill.readers.texts.json_lines import JsonLinesReader
from gristmill.steps import Html, Length, Pack, Read, Tokenize, Write
from gristmill.text.tokenizers.train import save_tokenizer, train_bpe

TEXTS = ["", "a", "größe", "粉と水", "grist " * 40, "🌾" * 7, "mill " * 9]


@pytest.fixture
def source(tmp_path):
    lines = [json.dumps({"n": number, "text": text}, ensure_ascii=number % 2 == 0) for number, text in enumerate(TEXTS)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, "{bad", '{"n": 1}', "", *lines]))
    return {"web": Read(read=f"{tmp_path}/a.jsonl")}


@pytest.fixture
def tokenizer(tmp_path):
    save_tokenizer(train_bpe(TEXTS * 5, vocab_size=270), tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


def run_both_ways(mill, monkeypatch, recipe):
    """Return what a run makes with texts as strings and with a column."""
    strings = mill.run(recipe, overwrite=True, backend="serial").manifest
    parse = JsonLinesReader.parse
    num_cells = 0

    def make_column(reader, raw):
        nonlocal num_cells
        cell = parse(reader, raw)
        num_cells += cell.texts is not None
        return replace(cell, rows=cell.batch, texts=None)

    monkeypatch.setattr(JsonLinesReader, "parse", make_column)
    column = mill.run(recipe, overwrite=True, backend="serial").manifest
    assert num_cells
    return strings, column


@pytest.mark.parametrize(
    "length", [Length(min_chars=2), Length(min_chars=0), Length(max_chars=6), Length(min_chars=100)]
)
@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_json_lines_are_filtered_without_a_column(mill, monkeypatch, source, length, compression):
    recipe = mill.recipe(source, [length, Write(format="jsonl", compression=compression)])
    strings, column = run_both_ways(mill, monkeypatch, recipe)
    assert strings.dataset_hash == column.dataset_hash
    assert strings.books == column.books


def test_filtered_texts_reach_the_tokenizer(mill, monkeypatch, source, tokenizer):
    recipe = mill.recipe(source, [Length(min_chars=2), Tokenize(tokenizer=tokenizer), Pack(row_length=16)])
    strings, column = run_both_ways(mill, monkeypatch, recipe)
    assert strings.dataset_hash == column.dataset_hash
    assert strings.books == column.books


def test_other_outputs_need_the_column(mill, monkeypatch, source):
    recipe = mill.recipe(source, [Length(min_chars=2), Write(format="arrow")])
    strings, column = run_both_ways(mill, monkeypatch, recipe)
    assert strings.dataset_hash == column.dataset_hash


@pytest.mark.parametrize("steps", [[Html()], [Length(min_chars=9), Html(), Length(min_chars=3)]], ids=len)
@pytest.mark.parametrize(
    "output", [Write(format="jsonl", compression="none"), Write(format="arrow")], ids=["jsonl", "arrow"]
)
def test_pages_become_texts_without_a_column_of_pages(mill, monkeypatch, tmp_path, steps, output):
    pytest.importorskip("resiliparse")
    pages = ["<p>Größe &amp; <b>Maß</b></p>", "no page", "<p> </p>", "<div>" * 2001, "", "<main><li>one<li>two</main>"]
    lines = [json.dumps({"n": number, "body": {"html": page, "x": 1}}) for number, page in enumerate(pages)]
    (tmp_path / "pages.jsonl").write_text("\n".join([*lines, '{"n": 7}']))
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/pages.jsonl", text="body.html")}, [*steps, output])
    strings, column = run_both_ways(mill, monkeypatch, recipe)
    assert strings.dataset_hash == column.dataset_hash
    assert strings.books == column.books
