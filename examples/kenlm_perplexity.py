"""Keep documents that a KenLM language model finds likely, as CCNet does. `pip install kenlm`.

    python kenlm_perplexity.py --src "data/*.jsonl.zst" --dst out --model en.arpa.bin --max-perplexity 1000

KenLM scores single sentences, so each line of a document is one. The model is loaded once in each worker, at its first
batch: a model of gigabytes is mapped, and all workers share its memory.
"""

import argparse
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

import gristmill as gm
from gristmill import steps


@cache
def load_model(path: str) -> Any:
    """Load the model of this process."""
    import kenlm  # noqa: PLC0415

    return kenlm.Model(path)


def compute_perplexity(model: Any, text: str) -> float:
    """Compute the perplexity of a document: 10 to the mean negative logarithm of its words and ends of lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    num_words = sum(len(line.split()) + 1 for line in lines)
    logarithm = sum(model.score(line) for line in lines)
    return float(10 ** (-logarithm / num_words)) if num_words else float("inf")


def keep_likely(batch: pa.RecordBatch, path: str, max_perplexity: float) -> pa.RecordBatch:
    """Add the column `perplexity`, and leave out documents above the limit."""
    model = load_model(path)
    values = np.array([compute_perplexity(model, text) for text in batch.column("text").to_pylist()])
    scored = batch.append_column("perplexity", pa.array(np.round(values, 2)))
    return scored.filter(pa.array(values <= max_perplexity))


def main() -> None:
    """Run the recipe that the options describe."""
    parser = argparse.ArgumentParser(description="Keep documents that a language model finds likely.")
    parser.add_argument("--src", nargs="+", required=True, help="files, folders or patterns")
    parser.add_argument("--dst", required=True, help="folder of the dataset")
    parser.add_argument("--model", required=True, help="file of KenLM, as text (.arpa) or binary")
    parser.add_argument("--max-perplexity", type=float, default=1000)
    parser.add_argument("--backend", default="processes", choices=["processes", "threads", "serial"])
    options = parser.parse_args()
    function = partial(keep_likely, path=options.model, max_perplexity=options.max_perplexity)
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=options.src)},
        steps=[steps.MapBatches(call=function, columns={"perplexity": "float64"}), steps.Write(format="jsonl")],
        output=options.dst,
    )
    gm.run(recipe, backend=options.backend)


if __name__ == "__main__":
    main()
