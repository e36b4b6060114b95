"""The table of measured numbers in the README, made from the result files: `make readme-table`.

    python benchmarks/readme_table.py            # rewrite the table in README.md

A row is one comparison of one result file. Which ones, and in which order, `ROWS` says; everything else, the numbers
and the commands included, is as the benchmark wrote it.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TABLE = re.compile(r"(<!-- begin: make readme-table -->\n).*?(<!-- end -->)", re.DOTALL)
ROWS = [
    ("tokenize_pack", "`datasets.map`"),
    ("tokenize_pack", "datatrove"),
    ("quality", "datatrove"),
    ("documents", "datatrove"),
    ("pack", "TRL, windows"),
    ("pack", "TRL, one window"),
    ("dedup", "datasketch, `update`"),
    ("dedup", "datasketch, `update_batch`"),
    ("stream", "datasets + DataLoader, 0"),
    ("stream", "mosaicml-streaming, 0"),
]
"""Result file, and how the peer's name begins there."""


def main():
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    if not TABLE.search(text):
        sys.exit("README.md has no place for the table: <!-- begin: make readme-table --> … <!-- end -->")
    readme.write_text(put_table(text), encoding="utf-8")


def put_table(readme):
    """The README's text with the table of today's result files."""
    table = make_table()
    return TABLE.sub(lambda match: match[1] + table + match[2], readme)


def make_table():
    results = {name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name, _ in ROWS}
    lines = ["| work | beside | Gristmill is | measured | command |", "|---|---|---|---|---|"]
    lines += [_make_row(name, results[name], peer) for name, peer in ROWS]
    lines += ["", "Commands:", ""]
    lines += [f"{number}. `{results[name]['command']}`" for number, name in enumerate(_list_commands(), 1)]
    return "\n".join(lines) + "\n"


def _make_row(name, result, peer):
    comparison = next(item for item in result["comparisons"] if item["peer"].startswith(peer))
    ratio = f"**{comparison['ratio']:g} ×** as fast"
    if comparison["theirs"]:
        ratio += f": {comparison['ours']}, not {comparison['theirs']}"
    when = f"{result['date']}, {result['machine']}, load: {result['load']}"
    number = _list_commands().index(name) + 1
    return f"| {comparison['work']} | {comparison['peer']} | {ratio} | {when} | {number} |"


def _list_commands():
    return list(dict.fromkeys(name for name, _ in ROWS))


if __name__ == "__main__":
    main()
