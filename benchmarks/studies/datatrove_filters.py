"""How much the filters of Gristmill and datatrove keep of the same documents.

`python -m benchmarks.studies.datatrove_filters FILE.jsonl… [--language en] [--documents 400] [--folder bench]` prints a
table for each file, with the rules that drop most. The files are JSON lines with `text` and, if `--language` is given,
`lang`. Default rules on both sides, except that C4 keeps lines without punctuation at their end. The environment of
datatrove, from `benchmarks/peers`, is made in the folder when it is missing; datatrove's side is this file, run there.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

NAMES = ("Gopher repetition", "Gopher quality", "C4", "FineWeb")


def count_ours(texts):
    from gristmill import steps
    from gristmill.core.records import documents

    filters = (
        steps.GopherRepetition(),
        steps.GopherQuality(),
        steps.C4(require_terminal_punctuation=False),
        steps.Fineweb(),
    )
    return [dict(step.apply(documents(texts), seed=0).dropped) for step in filters]


def count_theirs(texts):
    from datatrove.data import Document
    from datatrove.pipeline import filters
    from loguru import logger

    logger.remove()
    made = (
        filters.GopherRepetitionFilter(),
        filters.GopherQualityFilter(),
        filters.C4QualityFilter(filter_no_terminal_punct=False),
        filters.FineWebQualityFilter(),
    )
    counts = []
    for step in made:
        reasons = Counter()
        for number, text in enumerate(texts):
            result = step.filter(Document(text=text, id=str(number)))  # the filter of C4 changes its document
            if result is not True:
                reasons[result[1] if isinstance(result, tuple) else "dropped"] += 1
        counts.append(dict(reasons))
    return counts


def read_texts(path, language, limit):
    texts = []
    with Path(path).open(encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            if not language or record["lang"] == language:
                texts.append(record["text"])
            if len(texts) == limit:
                break
    return texts


def main():
    if sys.argv[1:] == ["--theirs"]:
        print(json.dumps(count_theirs(json.load(sys.stdin))))
        return
    from benchmarks.harness.environments import find_interpreter, variables_of

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--language", default="")
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--folder", type=Path, default=Path("bench"))
    words = parser.parse_args()
    command = [find_interpreter("datatrove", words.folder), "-m", "benchmarks.studies.datatrove_filters", "--theirs"]
    for path in words.files:
        texts = read_texts(path, words.language, words.documents)
        sent = json.dumps(texts).encode()
        result = subprocess.run(command, input=sent, stdout=subprocess.PIPE, check=True, env=variables_of("datatrove"))
        print(f"\n{Path(path).name}: {len(texts)} documents\n")
        print("| filter | datatrove | here | dropped there | dropped here |")
        print("|---|---|---|---|---|")
        for name, theirs, ours in zip(NAMES, json.loads(result.stdout), count_ours(texts), strict=True):
            shares = [f"{1 - sum(counts.values()) / len(texts):.1%}" for counts in (theirs, ours)]
            most = [", ".join(f"{k} {n}" for k, n in Counter(counts).most_common(3)) for counts in (theirs, ours)]
            print("|", " | ".join([name, *shares, *most]), "|")


if __name__ == "__main__":
    main()
