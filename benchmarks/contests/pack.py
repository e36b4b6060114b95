"""Rows from token lists in memory, against TRL."""

from __future__ import annotations

from benchmarks.harness.contest import OURS, Contest, Ratio, Setting, Side

WINDOWS = "TRL, windows of 1,000 documents"
WHOLE = "TRL, one window"


def _sides(setting: Setting) -> list[Side]:
    count = str(int(setting.scaled(30_000)))
    words = ["-m", "benchmarks.sides.pack_rows"]
    return [
        Side(OURS, [*words, "gristmill", count]),
        Side(WINDOWS, [*words, "trl", count], "hugging-face", max_rounds=1),
        Side(WHOLE, [*words, "trl-whole", count], "hugging-face", max_rounds=1),
    ]


CONTESTS = [
    Contest(
        name="pack",
        work="pack documents into rows of 2,048, best fit, one thread",
        make_sides=_sides,
        claims=[Ratio(WINDOWS, 5, "inner"), Ratio(WHOLE, 5, "inner")],
        unit="M tokens",
        data=lambda setting: f"{setting.scaled(30_000):,.0f} documents of 24.5 M tokens at full size, in memory",
    )
]
