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
    numbers = {name: number for number, name in enumerate(dict.fromkeys(name for name, _ in ROWS), 1)}
    lines = ["| | work | beside | times as fast | Gristmill | the other |", "|---|---|---|---|---|---|"]
    lines += [_make_row(numbers[name], results[name], peer) for name, peer in ROWS]
    lines += ["", "Each line is printed by one command:", ""]
    lines += [_describe_run(number, results[name]) for name, number in numbers.items()]
    return "\n".join(lines) + "\n"


def _make_row(number, result, peer):
    comparison = next(item for item in result["comparisons"] if item["peer"].startswith(peer))
    ratio = f"**{comparison['ratio']:,.4g}**"
    cells = [str(number), comparison["work"], comparison["peer"], ratio, comparison["ours"], comparison["theirs"]]
    return f"| {' | '.join(cells)} |"


def _describe_run(number, result):
    where = f"{result['date']}, {result['machine']}, load {result['load']}"
    return f"{number}. `{result['command']}`  \n   {where}. {result['data']}."


if __name__ == "__main__":
    main()
