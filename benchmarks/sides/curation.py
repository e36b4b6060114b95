"""Sides of the contests of curation: `python -m benchmarks.sides.curation WORK …`.

* `ours RECIPE INPUT OUTPUT`: a recipe with `decontaminate`; prints which documents are gone.
* `datatrove INPUT_FOLDER INPUT QUESTIONS OUTPUT`: datatrove's index and filter of n-grams.
* `html INPUT_FOLDER OUTPUT`: resiliparse alone on the lines of two files, a process each.
* `tune OUTPUT`: `gristmill tune`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    work, *words = sys.argv[1:]
    {"ours": run_ours, "datatrove": run_datatrove, "html": extract_html, "html-part": extract_part}[work](*words)


def run_ours(recipe: str, corpus: str, output: str) -> None:
    began = time.perf_counter()
    command = [sys.executable, "-m", "gristmill", "run", recipe, "--workers", "2", "--quiet"]
    subprocess.run(command, check=True)
    report(time.perf_counter() - began, corpus, sorted(Path(output).rglob("train/*/*.jsonl")))


def run_datatrove(folder: str, corpus: str, questions: str, output: str) -> None:
    import numpy as np
    from datatrove.pipeline.decont import n_grams
    from datatrove.pipeline.readers import JsonlReader
    from loguru import logger

    from benchmarks.sides.datatrove_runs import run, write_to

    logger.remove()
    began = time.perf_counter()
    config = n_grams.NGramsDecontConfig(find_query_ngrams=True)
    n_grams.NGramsDecontIndexer._requires_dependencies = []  # lighteval, for tasks by their names only
    indexer = n_grams.NGramsDecontIndexer(f"{output}/index", config=config)
    hashes = set()
    for line in Path(questions).read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        hashes.update(indexer.compute_hashes(item["answer"], item["question"]))
    Path(output, "index").mkdir(parents=True)
    np.array(sorted(hashes), dtype=config.hash_config.np_descr).tofile(f"{output}/index/questions.index.hashes")
    run(
        "decont", output, [JsonlReader(folder), n_grams.NGramsDecontFilter(f"{output}/index", config), write_to(output)]
    )
    report(time.perf_counter() - began, corpus, sorted(Path(output, "data").glob("*.jsonl")))


def report(seconds: float, corpus: str, outputs: list[Path]) -> None:
    """Print the time, the share of documents with an item that are gone, and the number of others that are."""
    left = {json.loads(line)["id"] for path in outputs for line in path.read_text(encoding="utf-8").splitlines()}
    num_planted = num_found = num_lost = 0
    with Path(corpus).open(encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            is_gone = record["id"] not in left
            num_planted += "item" in record
            num_found += "item" in record and is_gone
            num_lost += "item" not in record and is_gone
    facts = {"recall": num_found / num_planted, "lost": num_lost, "planted": num_planted}
    print(json.dumps({"inner": seconds, **facts}))


def extract_html(folder: str, output: str) -> None:
    Path(output).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.sides.curation", "html-part"]
    parts = sorted(Path(folder).glob("*.jsonl"))
    processes = [subprocess.Popen([*command, str(part), f"{output}/{part.name}"]) for part in parts]
    sys.exit(max(process.wait() for process in processes))


def extract_part(path: str, output: str) -> None:
    """Extract the texts of a file, with the options of the step `html`, and write them: no engine, no checks."""
    import msgspec
    from resiliparse.extract.html2text import extract_plain_text

    options = {"preserve_formatting": True, "main_content": True, "alt_texts": False, "links": False}
    with Path(path).open("rb") as lines, Path(output).open("wb") as file:
        for line in lines:
            record = msgspec.json.decode(line)
            record["text"] = extract_plain_text(record["text"], **options)
            file.write(msgspec.json.encode(record) + b"\n")


if __name__ == "__main__":
    main()
