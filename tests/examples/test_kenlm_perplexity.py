"""The example with KenLM: a real model, read by the real library, decides what is kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

kenlm = pytest.importorskip("kenlm", reason="the language models of this example")

SCRIPT = Path(__file__).parents[2] / "examples/kenlm_perplexity.py"
ARPA = """
\\data\\
ngram 1=6
ngram 2=4

\\1-grams:
-3.0\t<unk>\t0
-9.0\t<s>\t-0.3
-1.0\t</s>
-0.8\tfresh\t-0.3
-0.8\tbread\t-0.3
-1.2\ttoday\t-0.3

\\2-grams:
-0.2\t<s> fresh
-0.2\tfresh bread
-0.3\tbread today
-0.2\ttoday </s>

\\end\\
"""
TEXTS = ["fresh bread today", "fresh bread today\n\nfresh bread", "zxcv qwer asdf uiop", "bread fresh"]


@pytest.mark.full
def test_likely_documents_are_kept(tmp_path):
    model = tmp_path / "tiny.arpa"
    model.write_text(ARPA.lstrip())
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    command = [sys.executable, str(SCRIPT), "--src", "web.jsonl", "--dst", "out", "--model", str(model)]
    subprocess.run([*command, "--max-perplexity", "40", "--backend", "serial"], cwd=tmp_path, check=True)
    lines = (tmp_path / "out/train/web/shard-00000.jsonl").read_text().splitlines()
    kept = {record["text"]: record["perplexity"] for record in map(json.loads, lines)}
    assert list(kept) == [TEXTS[0], TEXTS[1], TEXTS[3]]
    # One line alone has the perplexity that the library computes itself.
    assert kept[TEXTS[0]] == pytest.approx(kenlm.Model(str(model)).perplexity(TEXTS[0]), abs=0.01)
