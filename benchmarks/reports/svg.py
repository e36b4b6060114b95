"""Plain SVG pictures, written by hand: lines over a logarithmic axis.

Colours follow the reader's light or dark theme. No library: a picture is a page of text that git can compare.
"""

from __future__ import annotations

import math
from html import escape

_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.small { font-size: 11px; fill: #57606a }
.title { font-weight: 600 }
.grid { stroke: #d0d7de; stroke-width: 1 }
.line { fill: none; stroke-width: 2 }
.s0 { stroke: #2f6fb2; fill: #2f6fb2 } .s1 { stroke: #c2571a; fill: #c2571a }
.s2 { stroke: #3b8132; fill: #3b8132 } .s3 { stroke: #8250df; fill: #8250df }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } .grid { stroke: #3d444d }
  .s0 { stroke: #58a6ff; fill: #58a6ff } .s1 { stroke: #f0883e; fill: #f0883e }
  .s2 { stroke: #7ee787; fill: #7ee787 } .s3 { stroke: #d2a8ff; fill: #d2a8ff }
}
"""


def draw_lines(title: str, x_label: str, y_label: str, series: dict[str, list[tuple[float, float]]]) -> str:
    """Draw lines over a logarithmic x axis, the y axis from 0."""
    width, height, left, top, bottom = 640, 320, 70, 40, 60
    points = [point for line in series.values() for point in line]
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    span = math.log10(high / low) or 1
    step = _choose_step(max(y for _, y in points))
    peak = step * math.ceil(max(y for _, y in points) / step)

    def place(x: float, y: float) -> tuple[float, float]:
        across = left + (width - left - 20) * math.log10(x / low) / span
        return across, height - bottom - (height - top - bottom) * y / peak

    parts = [_text(12, 22, title, "title")]
    for number in range(round(peak / step) + 1):
        _, y = place(low, number * step)
        parts.append(f'<line class="grid" x1="{left}" x2="{width - 20}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 8, y + 4, f"{number * step:g}", "small", "end"))
    for x in sorted({x for x, _ in points}):
        across, _ = place(x, 0)
        parts.append(_text(across, height - bottom + 16, _shorten(x), "small", "middle"))
    parts.append(_text((left + width) / 2, height - bottom + 34, x_label, "small", "middle"))
    parts.append(_text(12, top - 4, y_label, "small"))
    for number, (name, line) in enumerate(series.items()):
        style = f"s{number % 4}"
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        parts.append(f'<polyline class="line {style}" style="fill:none" points="{corners}"/>')
        parts += [f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in (place(*p) for p in line)]
        legend = left + number * 190
        parts.append(f'<rect class="{style}" x="{legend}" y="{height - 16}" width="10" height="10"/>')
        parts.append(_text(legend + 15, height - 7, name, "small"))
    return _document(width, height, parts)


def _choose_step(highest: float) -> float:
    """Return a round number, four to eight of which reach the highest value.

    >>> _choose_step(7.3), _choose_step(420)
    (1.0, 100.0)
    """
    power = 10 ** math.floor(math.log10(max(highest, 1e-9)))
    return next(power * part for part in (0.1, 0.2, 0.5, 1.0, 2.0) if highest / (power * part) <= 8)


def _shorten(value: float) -> str:
    """Write 10000 as 10k.

    >>> _shorten(100_000), _shorten(40)
    ('100k', '40')
    """
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'


def _document(width: int, height: int, parts: list[str]) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<style>{_STYLE}</style>\n'
    return head + "\n".join(parts) + "\n</svg>\n"
