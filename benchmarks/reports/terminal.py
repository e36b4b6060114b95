"""The table on the terminal: one line for each claim, with ratio, spread and peak memory."""

from __future__ import annotations

_COLUMNS = ("work", "compared with", "value", "spread", "target", "", "ours", "theirs", "peak MiB")


def format_table(contests: list[dict]) -> str:
    """Lay out the claims of contests under each other."""
    lines = [list(_COLUMNS)]
    for contest in contests:
        for number, claim in enumerate(contest["claims"]):
            lines.append([contest["name"] if not number else "", *_cells(contest, claim)])
        lines += [[contest["name"], name, "failed", "", "", "", "", "", ""] for name in contest["failures"]]
    widths = [min(44, max(len(line[column]) for line in lines)) for column in range(len(_COLUMNS))]
    rows = ["  ".join(cell[:44].ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(row.rstrip() for row in [rows[0], "  ".join("-" * width for width in widths), *rows[1:]])


def _cells(contest: dict, claim: dict) -> list[str]:
    peaks = [_peak(contest, claim["side"])]
    name = claim.get("peer") or claim["what"]
    if claim["side"] != "gristmill":
        name = f"{claim['side']}: {name}"
    if "peer" in claim:
        peaks.append(_peak(contest, claim["peer"]))
        speeds = [format_rate(claim[key], contest["unit"]) for key in ("ours", "theirs")]
        value, spread = f"{claim['value']:.3g}x", f"{claim['low']:.3g} to {claim['high']:.3g}"
    else:
        speeds = ["", ""]
        value, spread = f"{claim['value']:.3g} {claim['unit']}", f"{claim['low']:.3g} to {claim['high']:.3g}"
    target = claim["target"] or ""
    outcome = claim["outcome"].upper() if claim["outcome"] == "missed" else claim["outcome"]
    return [name, value, spread, target, outcome, *speeds, " / ".join(peaks)]


def _peak(contest: dict, side: str) -> str:
    return f"{max(run['peak_mib'] for run in contest['runs'][side]):,.0f}"


def format_rate(cost: float, unit: str) -> str:
    """Say how much is done in a second, or how long one unit takes where that is what a reader expects.

    >>> format_rate(0.01, "MB"), format_rate(0.0004, "chats"), format_rate(2.5, "run")
    ('100 MB/s', '2,500 chats/s', '2.5 s')
    """
    if unit == "run":
        return f"{cost:.3g} s"
    rate = 1 / cost
    return f"{rate:,.0f} {unit}/s" if rate >= 100 else f"{rate:.3g} {unit}/s"
