"""The README's table of measured numbers, made from the result files: `make readme-table`.

Six comparisons that a reader cares about; `docs/performance.md` has all of them. The numbers are as the benchmark wrote
them.
"""

from __future__ import annotations

import re

from benchmarks.harness.environments import ROOT
from benchmarks.harness.results import PUBLISHED, load_result
from benchmarks.reports.terminal import format_rate

README = ROOT / "README.md"
TABLE = re.compile(r"(<!-- begin: make readme-table -->\n).*?(<!-- end -->)", re.DOTALL)

COMPARISONS = (
    ("tokenize", "tokenize-peers", "`datasets.map`", "JSON lines to packed rows, 400 MB"),
    ("recipe", "recipe-200", "datatrove", "filter, deduplicate, tokenize and pack, 200 MB"),
    ("chats", "chats-conversation", "transformers", "chats to packed rows with loss masks"),
    ("dedup", "dedup-texts", "datasketch, `update_batch`", "near-duplicates among texts in memory"),
    ("pack", "pack", "TRL", "best-fit packing into rows of 2,048 tokens"),
    ("stream", "stream", "datasets", "shuffled batches of packed rows as tensors"),
)
"""Result file, contest, how the name of the peer begins, and the work in the words of the table."""


def put_table(readme: str) -> str:
    """Return the README's text with the table of today's result files."""
    table = make_table()
    return TABLE.sub(lambda match: match[1] + table + match[2], readme)


def make_table() -> str:
    lines = ["| work | Gristmill is | its speed | the other's |", "|---|---|---|---|"]
    dates = set()
    for group, name, peer, work in COMPARISONS:
        contest = (load_result(PUBLISHED / f"{group}.json") or {"contests": {}})["contests"].get(name)
        if contest is None:
            continue
        claim = next(claim for claim in contest["claims"] if claim.get("peer", "").startswith(peer))
        ours, theirs = (format_rate(claim[key], contest["unit"]) for key in ("ours", "theirs"))
        lines.append(
            f"| {work} | **{claim['value']:.2g}\N{MULTIPLICATION SIGN}** faster than {peer} | {ours} | {theirs} |"
        )
        dates.add(contest["date"])
    return "\n".join([*lines, "", f"Measured on one machine with 2 cores, {min(dates)} to {max(dates)}."]) + "\n"


def format_load(load: dict) -> str:
    """Say how busy the machine was.

    >>> format_load({"start": 0.12, "end": 1.9, "others": 0.0})
    '0.12 before, 1.9 after'
    """
    if "described" in load:
        return load["described"]
    return f"{load['start']:g} before, {load['end']:g} after"


def write() -> None:
    README.write_text(put_table(README.read_text(encoding="utf-8")), encoding="utf-8")
