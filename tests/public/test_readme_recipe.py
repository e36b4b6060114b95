"""The recipe of the README runs as it is printed, on data of the kinds that it names."""

import json
import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

import gristmill as gm
from gristmill import steps
from gristmill.recipe.load import load_recipe

README = (Path(__file__).parents[2] / "README.md").read_text()
MODEL = "Qwen/Qwen2.5-0.5B"
WORDS = re.findall(r"\w+", "the be to of and that have with river mill bread flour wheel water morning valley stone")


def make_page(rng):
    return ". ".join(" ".join(rng.choices(WORDS, k=12)).capitalize() for _ in range(12)) + "."


def test_the_recipe_runs_on_data_of_these_kinds(tmp_path):
    recipe = next(text for text in re.findall(r"^```yaml\n(.*?)^```$", README, re.M | re.S) if "decontaminate" in text)
    rng = random.Random(1)
    question = " ".join(f"item{number}" for number in range(20)) + "?"
    web = [make_page(rng) for _ in range(60)]
    web[0] = web[0] + " " + question + " " + web[1]
    books = [make_page(rng) for _ in range(20)]
    web[2:4] = books[:2]  # copies, of which those of the books stay
    (tmp_path / "data/books").mkdir(parents=True)
    lines = "".join(json.dumps({"text": text, "number": number}) + "\n" for number, text in enumerate(web))
    (tmp_path / "data/web-1.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    pq.write_table(pa.table({"content": books}), tmp_path / "data/books/a.parquet")
    (tmp_path / "functions.py").write_text("def is_prose(record):\n    return '.' in record['text']\n")
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/gsm8k_test.jsonl").write_text(json.dumps({"question": question, "answer": "#### 7"}) + "\n")
    gm.train_tokenizer(
        steps.Read(read=str(tmp_path / "data/books/*.parquet"), text="content"), tmp_path / "tok", vocab_size=300
    )
    # A name on the Hub, which a test does not ask; everything else is as printed.
    assert MODEL in recipe
    (tmp_path / "recipe.yaml").write_text(recipe.replace(MODEL, "tok"))
    result = gm.run(load_recipe(tmp_path / "recipe.yaml"), backend="serial", progress=False)
    kept = {
        source: next(account.records_out for account in accounts if account.step == "deduplicate")
        for source, accounts in result.books.items()
    }
    assert kept["books"] == len(books)
    assert 20 < kept["web"] <= 58  # half of them, without the copies
    assert result.tokens > 1000
