"""The README's table and picture of measured numbers, made from the result files: `make readme-table`.

Every claim that its contest marks for the front page is a row. The numbers are as the benchmark wrote them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from benchmarks.harness.environments import ROOT
from benchmarks.harness.results import PUBLISHED, load_result
from benchmarks.reports.svg import draw_bars
from benchmarks.reports.terminal import format_rate

if TYPE_CHECKING:
    from collections.abc import Iterator

README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "measured.svg"
TABLE = re.compile(r"(<!-- begin: make readme-table -->\n).*?(<!-- end -->)", re.DOTALL)
GROUPS = ("tokenize", "recipe", "quality", "documents", "chats", "dedup", "pack", "stream")
"""The result files, in the order of the table."""


def put_table(readme: str) -> str:
    """Return the README's text with the table of today's result files."""
    table = make_table()
    return TABLE.sub(lambda match: match[1] + table + match[2], readme)


def list_claims() -> Iterator[tuple[str, dict, dict]]:
    """Return group, contest and claim of every row."""
    for group in GROUPS:
        for contest in (load_result(PUBLISHED / f"{group}.json") or {"contests": {}})["contests"].values():
            for claim in contest["claims"]:
                if claim.get("front_page"):
                    yield group, contest, claim


def make_table() -> str:
    rows = list(list_claims())
    names = list(dict.fromkeys(contest["name"] for _, contest, _ in rows))
    lines = ["| | work | beside | times as fast | Gristmill | the other |", "|---|---|---|---|---|---|"]
    for _, contest, claim in rows:
        speeds = [format_rate(claim[key], contest["unit"]) for key in ("ours", "theirs")]
        cells = [str(names.index(contest["name"]) + 1), contest["work"], claim["peer"], f"**{claim['value']:.3g}**"]
        lines.append(f"| {' | '.join([*cells, *speeds])} |")
    lines += ["", "`make bench` measures all of it again.", ""]
    lines += ["<details><summary>How each row was measured</summary>", "", "Best runs of interleaved rounds:", ""]
    described = {contest["name"]: (group, contest) for group, contest, _ in rows}
    for number, (group, contest) in enumerate(described.values(), 1):
        where = f"{contest['date']}, {contest['machine']}, load {format_load(contest['load'])}"
        lines.append(f"{number}. `make bench ONLY={group}`: {contest['data']}.  \n   {where}.")
    return "\n".join([*lines, "", "</details>"]) + "\n"


def format_load(load: dict) -> str:
    """Say how busy the machine was.

    >>> format_load({"start": 0.12, "end": 1.9, "others": 0.0})
    '0.12 before, 1.9 after'
    """
    if "described" in load:
        return load["described"]
    return f"{load['start']:g} before, {load['end']:g} after"


def draw_picture() -> str:
    bars = []
    for _, contest, claim in list_claims():
        work = contest["work"].partition(",")[0].replace("`", "")
        peer = re.split(r"[,']", claim["peer"].replace("`", ""))[0]
        bars.append((f"{_SHORT.get(contest['name'], work)} / {peer}", claim["value"]))
    return draw_bars("Times as fast as", bars)


_SHORT = {
    "tokenize-peers": "tokenize and pack, 400 MB",
    "recipe-200": "whole recipe, 200 MB",
    "gopher-40": "Gopher filters, 40 MB",
    "gopher-400": "Gopher filters, 400 MB",
    "zstd": "length filter, JSONL.zst",
    "chats-conversation": "chats with masks",
    "chats-conversation-gemma": "chats, Gemma's kind",
    "chats-conversation-llama2": "chats, Llama 2's kind",
    "dedup-texts": "near-duplicates",
    "pack": "packing",
    "stream": "streaming",
}


def write() -> None:
    README.write_text(put_table(README.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(draw_picture(), encoding="utf-8")
