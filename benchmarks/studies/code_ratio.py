"""How well `code_ratio` tells source code from prose: `benchmarks/studies/code_ratio.py KIND:NAME=PATH[:SUFFIX]…`.

KIND is code, prose or markdown. PATH is a folder, whose files with the suffix are read, or JSON lines with `text`
(and `id`, for the suffix). Documents below 200 characters are skipped, at most 300 of each name are used, chosen by the
hash of their text. `--half 1` uses the half that the points of lines were not fitted to.

Code: the share of files at or above 0.5. Prose: the share of documents at or below 0.2. Markdown: the mean distance
between the score and the share of characters on lines of closed fences.
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from gristmill.text.quality.counting import SCORES, RequiredPasses, TextCounter

MAX_DOCUMENTS = 300
MIN_CHARACTERS = 200
SCORE = SCORES["code_ratio"]


def documents_at(path, suffix):
    if path.is_dir():
        for file in sorted(path.rglob(f"*{suffix}")):
            if file.is_file():
                yield file.read_text(encoding="utf-8", errors="replace")
    else:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                if record.get("id", "").removesuffix("#0").endswith(suffix):
                    yield record["text"]


def digest_of(text):
    return hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()


def chosen_documents(paths, half):
    texts = {text for path, suffix in paths for text in documents_at(path, suffix) if len(text) >= MIN_CHARACTERS}
    wanted = [text for text in texts if half is None or digest_of(text)[0] % 2 == half]
    return sorted(wanted, key=digest_of)[:MAX_DOCUMENTS]


def fenced_share(text):
    """Divide the characters on lines of fences and between them by those of all lines."""
    total = fenced = 0
    mark = None
    for line in filter(None, map(str.strip, text.split("\n"))):
        total += len(line)
        is_mark = line[:3] in ("```", "~~~") and mark in (None, line[:3])
        fenced += len(line) * (is_mark or mark is not None)
        if is_mark:
            mark = line[:3] if mark is None else None
    return fenced / total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="+", metavar="KIND:NAME=PATH[:SUFFIX]")
    parser.add_argument("--half", type=int, choices=(0, 1))
    setting = parser.parse_args()
    groups = {}
    for group in setting.groups:
        kind_and_name, _, where = group.partition("=")
        path, _, suffix = where.partition(":")
        groups.setdefault(tuple(kind_and_name.split(":")), []).append((Path(path), suffix))
    counting = TextCounter(RequiredPasses.of([SCORE]))
    print("| kind | | documents | median | 5 % are below | 95 % are below | right |\n|---|---|---|---|---|---|---|")
    for (kind, name), paths in groups.items():
        texts = chosen_documents(paths, setting.half)
        values = SCORE.value(counting.count(pa.array(texts, pa.large_string())))
        low, median, high = np.quantile(values, [0.05, 0.5, 0.95])
        if kind == "markdown":
            right = f"off by {np.abs(values - [fenced_share(text) for text in texts]).mean():.3f}"
        else:
            right = f"{np.mean(values >= 0.5 if kind == 'code' else values <= 0.2):.1%}"
        print(f"| {kind} | {name} | {len(texts)} | {median:.2f} | {low:.2f} | {high:.2f} | {right} |")


if __name__ == "__main__":
    main()
