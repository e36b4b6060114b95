"""The numbers and plots of `docs/performance.md` and `benchmarks/figures.md`, made from the result files.

The command is `make readme-table`. The text of the pages is written by people. Between two comments that name a table
stands what this module makes; the plots are files in `docs/images`.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.cluster import AIMS, RESULTS
from benchmarks.harness.environments import ROOT
from benchmarks.harness.results import PUBLISHED, load_result
from benchmarks.reports.readme import format_load
from benchmarks.reports.svg import draw_lines
from benchmarks.reports.terminal import format_rate

PAGES = (ROOT / "docs" / "performance.md", ROOT / "benchmarks" / "figures.md")
IMAGES = ROOT / "docs" / "images"
BLOCK = re.compile(r"(<!-- begin: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
GROUPS = (
    "tokenize",
    "recipe",
    "quality",
    "documents",
    "chats",
    "dedup",
    "curation",
    "pack",
    "stream",
    "samples",
    "seeing",
    "start",
)
X_AXES = {"size": "MB of JSON lines", "files": "files", "workers": "workers"}


def put_tables(page: str) -> str:
    """Return a page's text with the tables of today's result files."""
    return BLOCK.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], page)


def write() -> None:
    for page in PAGES:
        page.write_text(put_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    for name, picture in draw_plots().items():
        IMAGES.mkdir(parents=True, exist_ok=True)
        (IMAGES / name).write_text(picture, encoding="utf-8")


def make_figures() -> str:
    """Make the table of all claims, those without a target included."""
    lines = ["| work | compared with | value | rounds | target | | peak memory |", "|---|---|---|---|---|---|---|"]
    for group in GROUPS:
        for contest in _contests(group):
            lines += [_make_figure(contest, claim) for claim in contest["claims"]]
    return _or_missing(lines, "make bench")


def _make_figure(contest: dict, claim: dict) -> str:
    name = claim.get("peer") or claim["what"]
    unit = "\N{MULTIPLICATION SIGN}" if "peer" in claim else f" {claim['unit']}"
    outcome = f"**{claim['outcome']}**" if claim["outcome"] == "missed" else claim["outcome"]
    runs = contest["runs"].get(claim["side"], [])
    peak = f"{max(run['peak_mib'] for run in runs):,.0f} MiB" if runs else ""
    spread = f"{claim['low']:.3g} to {claim['high']:.3g}" if runs else "one"
    cells = [contest["work"], name, f"{claim['value']:.3g}{unit}", spread, claim["target"] or "", outcome, peak]
    return f"| {' | '.join(cells)} |"


def make_stages() -> str:
    lines = ["| stage | ours | what bounds it | the bound | share of the bound |", "|---|---|---|---|---|"]
    for contest in _contests("stages"):
        for claim in contest["claims"]:
            speeds = [format_rate(claim[key], contest["unit"]) for key in ("ours", "theirs")]
            stage = contest["work"].removesuffix(", one process, CPU time")
            share = f"{claim['value']:.3g}" if claim["value"] >= 0.1 else f"{claim['value']:.2g}"
            lines.append(f"| {stage} | {speeds[0]} | {claim['peer']} | {speeds[1]} | {share} |")
    if len(lines) > 2:
        contest = _contests("stages")[0]
        lines += ["", f"{contest['date']}, {contest['machine']}, load {format_load(contest['load'])}: CPU time."]
    return _or_missing(lines, "make bench ONLY=stages")


def make_scaling() -> str:
    result = load_result(PUBLISHED / "scaling.json")
    lines = ["| | | MB | seconds | CPU s | CPU s a GB | largest worker | parent |", "|---|---|---|---|---|---|---|---|"]
    for series, points in (result or {"series": {}})["series"].items():
        for value, point in points.items():
            memory = [f"{point[key]:,} MiB" for key in ("worker_mib", "parent_mib")]
            numbers = [f"{point['mb']:,.0f}", f"{point['wall']:.1f}", f"{point['cpu']:.1f}"]
            cost = f"{point['cpu'] / point['mb'] * 1000:.1f}"
            lines.append(f"| {series} | {int(float(value)):,} | {' | '.join([*numbers, cost, *memory])} |")
    return _or_missing(lines, "make bench-scaling") + "".join(
        f"\n![{series}](images/scaling-{series}.svg)\n" for series in (result or {"series": {}})["series"]
    )


def draw_plots() -> dict[str, str]:
    result = load_result(PUBLISHED / "scaling.json") or {"series": {}}
    plots = {}
    for series, points in result["series"].items():
        cost = [(float(value), point["cpu"] / point["mb"] * 1000) for value, point in points.items()]
        wall = [(float(value), point["wall"] / point["mb"] * 1000) for value, point in points.items()]
        lines = {"CPU seconds a GB": cost, "seconds a GB": wall}
        plots[f"scaling-{series}.svg"] = draw_lines(f"Cost by {series}", X_AXES[series], "seconds a GB", lines)
    return plots


def make_instructions() -> str:
    result = load_result(PUBLISHED / "instructions.json") or {"instructions": {}}
    lines = ["| kernel | million instructions |", "|---|---|"]
    lines += [f"| `{name}` | {count / 1e6:.2f} |" for name, count in result["instructions"].items()]
    return _or_missing(lines, "make bench-instructions RECORD=1")


def make_cluster() -> str:
    """Make the table of what runs beyond one machine cost, with the command of each part."""
    results = load_result(RESULTS) or {}
    lines = ["| work | value | target | | measured |", "|---|---|---|---|---|"]
    for aim in AIMS:
        if aim.command in results:
            result = results[aim.command]
            value = result["figures"][aim.figure]
            target = f"at {'least' if aim.is_least else 'most'} {aim.bound:g}"
            outcome = "met" if aim.is_met(value) else "**missed**"
            measured = f"{result['date']}, load {result['load']}: `{result['command']}`"
            lines.append(f"| {aim.what} | {value:.3g} | {target} | {outcome} | {measured} |")
    return _or_missing(lines, "python -m benchmarks.cluster store --record")


TABLES = {
    "figures": make_figures,
    "stages": make_stages,
    "scaling": make_scaling,
    "cluster": make_cluster,
    "instructions": make_instructions,
}


def _contests(group: str) -> list[dict]:
    return list((load_result(Path(PUBLISHED, f"{group}.json")) or {"contests": {}})["contests"].values())


def _or_missing(lines: list[str], command: str) -> str:
    if len(lines) == 2:
        return f"Not measured yet on a quiet machine: `{command}`.\n"
    return "\n".join(lines) + "\n"
