"""`deduplicate` where it hurts: all the same, all in one band, one that is huge, a million in little memory."""

import json
import random
import resource
import subprocess
import sys

import pytest

from gristmill.core.recipe import Recipe
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.shards.verify import verify
from gristmill.steps import Deduplicate, Read, Write

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


def run(folder, texts, step, **options):
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    recipe = Recipe(
        sources={"web": Read(read=f"{folder}/in.jsonl")}, steps=[step, Write(format="jsonl")], output=f"{folder}/out"
    )
    result = run_recipe(recipe, RunOptions(progress=False, **options))
    assert verify(folder / "out")
    return result.manifest.deduplicated[0]


@pytest.mark.parametrize("text", ["", " ".join(f"word{n}" for n in range(50))], ids=["empty", "identical"])
def test_a_hundred_thousand_copies(tmp_path, text):
    entry = run(tmp_path, [text] * 100_000, Deduplicate(max_source_loss=1.0), workers=2)
    assert entry.loss == {"web": {"in": 100_000, "duplicate": 99_999}}
    assert entry.counts["pairs"] == 0
    assert entry.largest[0].size == 100_000


def test_one_document_of_50_megabytes(tmp_path):
    rng = random.Random(1)
    words = [f"{rng.getrandbits(40):x}" for _ in range(200_000)]
    large = " ".join(rng.choices(words, k=5_000_000))
    assert len(large) > 50_000_000
    texts = [large, "small one", large + " and more", " ".join(words[:1000])]
    entry = run(tmp_path, texts, Deduplicate(), workers=2)
    assert entry.loss == {"web": {"in": 4, "near_duplicate": 1}}


def test_a_band_with_a_million_members_is_linear(tmp_path):
    """A common word is a common band where a shingle is a word and a band is a value."""
    rng = random.Random(2)
    texts = (f"the {rng.getrandbits(50):x}" for _ in range(1_000_000))
    entry = run(tmp_path, texts, Deduplicate(ngram=1, rows=1, bands=2), workers=2)
    assert entry.rows == 0
    assert entry.counts["largest_band_group"] > 400_000
    assert entry.counts["capped_band_groups"] >= 2
    assert entry.counts["pairs"] < 4_000_000  # of 10^11 that are possible


def test_a_million_documents_in_two_gibibytes_a_worker(tmp_path):
    script = """
import resource, sys
from gristmill.core.recipe import Recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.pipeline.run import run_recipe
from gristmill.steps import Deduplicate, Read, Write

folder = sys.argv[1]
recipe = Recipe(
    sources={"web": Read(read=f"{folder}/in.jsonl")},
    steps=[Deduplicate(), Write(format="jsonl")],
    output=f"{folder}/out",
)
result = run_recipe(recipe, RunOptions(workers=2, progress=False))
print(result.manifest.deduplicated[0].rows)
"""
    rng = random.Random(3)
    words = [f"{rng.getrandbits(28):x}" for _ in range(50_000)]
    kept = []
    num_copies = 0
    with (tmp_path / "in.jsonl").open("w") as file:
        for _ in range(1_000_000):
            if kept and rng.random() < 0.05:
                text = kept[rng.randrange(len(kept))] + " " + rng.choice(words)
                num_copies += 1
            else:
                text = " ".join(rng.choices(words, k=300))
                if len(kept) < 100_000:
                    kept.append(text)
            file.write(json.dumps({"text": text}) + "\n")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 0.99 * num_copies < int(done.stdout) < 1.3 * num_copies
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2 << 20  # KiB, of the largest of all processes
    assert verify(tmp_path / "out")
