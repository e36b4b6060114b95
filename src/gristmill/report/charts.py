"""Charts as SVG without a library: bars, stacked bars, a pie, a histogram and lines.

A chart has no fixed width. Positions along it are percentages and texts have their own size, so that the same SVG is
readable on a phone and on a wide screen. Colors are classes (`c0` to `c7`); the style sheet of the page gives them
their values for light, dark and print. A chart as a separate file (SVG, or PNG with `resvg-py`) carries a style sheet
with plain colors: light, on white, for print and slides. About 150 bytes a bar.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from gristmill.core.errors import UsageError, install_command
from gristmill.report.markup import Markup, element, escape_text, join, table
from gristmill.storage.commit import write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gristmill.report.markup import Row


NUM_COLORS = 8
MAX_BARS = 24
"""A chart shows this many bars; its table has the others."""
_BAR_HEIGHT = 12
_GAP = 0.3
"""Between parts of a bar, in percent of the width of the chart."""
_ROW_HEIGHT = 40
_LABEL_Y = 13
_RING_RADIUS = 40
_RING_LENGTH = 2 * math.pi * _RING_RADIUS
_WIDTH = 800
_MARGIN = 24
_TITLE_HEIGHT = 30
_COLORS = ("#2f6fb7", "#c25a12", "#2b8a57", "#8a52b0", "#b3394f", "#6f6a1e", "#147f8c", "#6b7686", "#e3b7ae")
_FONT = "font-family: system-ui, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"
_SUFFIXES = (".svg", ".png")
_LINE_STYLE = "stroke-width: 2; vector-effect: non-scaling-stroke"
_SCALED_LINE_STYLE = "stroke-width: 9"
"""For PNG: resvg scales lines with the chart that they are in."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: its name, and parts of it one after another, or (`is_grouped`) one below another."""

    label: str
    values: tuple[float, ...]
    text: str
    """The value in words, shown at the right."""
    colors: tuple[int, ...] = (0,)


def figure(
    title: str,
    unit: str,
    picture: Markup,
    heads: tuple[str, ...],
    rows: Sequence[Row],
    *,
    note: str = "",
    legend: Sequence[tuple[int, str]] = (),
) -> Markup:
    """Make a figure: title with unit, legend, picture, a note, and the table with its numbers."""
    caption = element(
        "figcaption", element("span", title, class_="title"), element("span", unit, class_="unit") if unit else None
    )
    keys = [element("li", element("i", class_=f"swatch s{color}"), text) for color, text in legend]
    numbers = element("details", element("summary", "Table"), table(heads, rows))
    return element(
        "figure",
        caption,
        element("ul", *keys, class_="legend") if keys else None,
        picture,
        element("p", note, class_="note") if note else None,
        numbers,
        class_="chart",
    )


def draw_bars(title: str, bars: Sequence[Bar], *, maximum: float | None = None, is_grouped: bool = False) -> Markup:
    """Draw horizontal bars, each below its label. Bars above `MAX_BARS` are left out; the largest should come first."""
    shown = bars[:MAX_BARS]
    longest = maximum or max((max(bar.values) if is_grouped else sum(bar.values) for bar in shown), default=0) or 1
    shapes: list[Markup] = []
    top = 0
    for bar in shown:
        shapes.append(element("text", _shorten(bar.label), x="0", y=top + _LABEL_Y, class_="label"))
        shapes.append(element("text", bar.text, x="100%", y=top + _LABEL_Y, text_anchor="end", class_="value"))
        start = 0.0
        for number, (value, color) in enumerate(zip(bar.values, bar.colors, strict=True)):
            width = max(0.0, value) / longest * 100
            y = top + 19 + (number * (_BAR_HEIGHT // 2 + 1) if is_grouped else 0)
            height = _BAR_HEIGHT // 2 if is_grouped else _BAR_HEIGHT
            tip = element("title", f"{bar.label}: {bar.text}")
            # Parts of one color are distinguished by a gap.
            has_gap = not is_grouped and bar.colors[number + 1 : number + 2] == (color,)
            drawn = max(width - _GAP, width / 2) if has_gap else width
            shapes.append(
                element(
                    "rect", tip, x=_percent(0 if is_grouped else start), y=y, width=_percent(drawn), height=height,
                    rx=2, class_=f"c{color}",
                )
            )  # fmt: skip
            start += width
        top += _ROW_HEIGHT
    return _make_svg(title, shapes, max(top, 1))


def draw_pie(title: str, slices: Sequence[tuple[str, float]]) -> Markup:
    """Draw a ring of slices, clockwise from the top, in the order of colors."""
    total = sum(value for _, value in slices)
    shapes = []
    start = 0.0
    for number, (label, value) in enumerate(slices):
        share = value / total if total else 0.0
        # The ring is a dashed circle: one dash for each slice. Not in hundredths by pathLength, which resvg ignores.
        shapes.append(
            element(
                "circle",
                element("title", f"{label}: {share:.1%}"),
                cx=60, cy=60, r=_RING_RADIUS, class_=f"ring r{number % NUM_COLORS}",
                stroke_dasharray=f"{max(share * _RING_LENGTH - 1, 0.5):.3f} {_RING_LENGTH:.3f}",
                stroke_dashoffset=f"{-start * _RING_LENGTH:.3f}",
                transform="rotate(-90 60 60)",
            )
        )  # fmt: skip
        start += share
    names = join(element("title", title), *shapes)
    return Markup(f'<svg class="pie" role="img" viewBox="0 0 120 120" aria-label="{escape_text(title)}">{names}</svg>')


def draw_histogram(title: str, bins: Sequence[tuple[str, float, str]]) -> Markup:
    """Draw vertical bars for `(label, value, text)`. Labels are shown as far as they have room."""
    tallest = max((value for _, value, _ in bins), default=0) or 1
    height, width = 150, 100 / max(len(bins), 1)
    every = max(1, math.ceil(len(bins) / 6))
    shapes = []
    for number, (label, value, text) in enumerate(bins):
        size = value / tallest * (height - 30)
        if value:
            size = max(size, 1.5)
        shapes.append(
            element(
                "rect", element("title", f"{label}: {text}"), x=_percent(number * width + width * 0.06),
                y=f"{height - 20 - size:.1f}", width=_percent(width * 0.88), height=f"{size:.1f}", rx=1, class_="c0",
            )
        )  # fmt: skip
        if number % every == 0:
            shapes.append(element("text", label, x=_percent(number * width), y=height - 5, class_="tick"))
    shapes.append(element("line", x1="0", x2="100%", y1=height - 20, y2=height - 20, class_="axis"))
    return _make_svg(title, shapes, height)


def draw_lines(
    title: str,
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    *,
    x_label: str = "",
    y_label: str = "",
) -> Markup:
    """Draw lines through points, with axes from 0 (y) and from the smallest x."""
    points = [point for _, line in series for point in line] or [(0.0, 0.0)]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    top = max(y for _, y in points) or 1.0
    across, height = right - left or 1.0, 220
    paths = []
    for number, (name, line) in enumerate(series):
        corners = " ".join(f"{(x - left) / across * 1000:.1f},{(1 - y / top) * 1000:.1f}" for x, y in line)
        style = f"line l{number % NUM_COLORS}"
        paths.append(element("polyline", element("title", name), points=corners, class_=style))
    plot = (
        f'<svg x="0" y="18" width="100%" height="{height - 44}" viewBox="0 0 1000 1000" '
        f'preserveAspectRatio="none">{join(*paths)}</svg>'
    )
    texts = [
        element("text", f"{y_label}, up to {_format_tick(top)}", x="0", y=12, class_="tick"),
        element("line", x1="0", x2="100%", y1=height - 26, y2=height - 26, class_="axis"),
        element("text", _format_tick(left), x="0", y=height - 8, class_="tick"),
        element("text", x_label, x="50%", y=height - 8, text_anchor="middle", class_="tick"),
        element("text", _format_tick(right), x="100%", y=height - 8, text_anchor="end", class_="tick"),
    ]
    return _make_svg(title, [Markup(plot), *texts], height)


def make_bins(values: Sequence[float], num_bins: int = 24) -> list[tuple[float, float]]:
    """Choose the borders of a histogram: even on a logarithmic scale, at whole numbers.

    >>> make_bins([1, 10], num_bins=3)
    [(1.0, 2.0), (2.0, 4.0), (4.0, 11.0)]
    """
    smallest = max(1.0, float(min(values)))
    largest = max(smallest, float(max(values))) + 1
    steps = [smallest * (largest / smallest) ** (number / num_bins) for number in range(num_bins + 1)]
    borders = sorted({float(math.floor(step)) for step in steps[:-1]} | {math.ceil(largest) * 1.0})
    return list(pairwise(borders))


def _make_svg(title: str, shapes: Sequence[Markup], height: int) -> Markup:
    inner = join(element("title", title), *shapes)
    return Markup(f'<svg role="img" width="100%" height="{height}" aria-label="{escape_text(title)}">{inner}</svg>')


def _percent(value: float) -> str:
    return f"{value:.3f}%"


def _shorten(text: str) -> str:
    return text if len(text) <= 48 else f"{text[:47]}…"


def _format_tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:.3g}"


class Chart(NamedTuple):
    """A drawing with its title and the names of its colors."""

    title: str
    drawing: Markup
    legend: Sequence[tuple[int, str]] = ()


def check_picture(path: str) -> None:
    """Raise `UsageError` if no picture can be written to a path: its folder, its suffix, or a missing library."""
    suffix = PurePath(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise UsageError(f"{path} is no name of a picture", help="write FILE.svg or FILE.png")
    if suffix == ".png":
        _find_renderer()


def write_picture(path: str, title: str, charts: Sequence[Chart], *, note: str = "") -> None:
    """Write charts, each below its title, to one file."""
    check_picture(path)
    picture = make_picture(title, charts, note=note)
    if path.lower().endswith(".png"):
        data = _find_renderer()(picture.replace(_LINE_STYLE, _SCALED_LINE_STYLE))
    else:
        data = picture.encode(errors="backslashreplace")
    write_file(path, data, "picture")


def make_picture(title: str, charts: Sequence[Chart], *, note: str = "") -> str:
    """Make an SVG document of charts."""
    inner = _WIDTH - 2 * _MARGIN
    y = _MARGIN + 10
    shapes = [element("text", title, x=_MARGIN, y=y, class_="head")]
    if note:
        y += 20
        shapes.append(element("text", note, x=_MARGIN, y=y, class_="tick"))
    for chart in charts:
        y += _TITLE_HEIGHT
        shapes.append(element("text", chart.title, x=_MARGIN, y=y, class_="title"))
        x = _WIDTH
        for color, name in chart.legend:
            width = 40 + 7 * len(name)
            if x + width > _WIDTH:  # the next line
                x, y = _MARGIN, y + 18
            shapes.append(element("rect", x=x, y=y - 9, width=10, height=10, rx=2, class_=f"c{color}"))
            shapes.append(element("text", name, x=x + 15, y=y, class_="tick"))
            x += width
        y += 12
        match = re.search(r'^<svg [^>]*?height="(\d+)"', chart.drawing)
        height = int(match[1]) if match else 200
        shapes.append(Markup(f'<svg x="{_MARGIN}" y="{y}" width="{inner}" height="{height}">{chart.drawing}</svg>'))
        y += height
    y += _MARGIN
    style = Markup(f"<style>{_make_style()}</style>")
    ground = element("rect", width=_WIDTH, height=y, fill="#ffffff")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" viewBox="0 0 {_WIDTH} {y}" '
        f'role="img" aria-label="{escape_text(title)}">{join(style, ground, *shapes)}</svg>\n'
    )


def _make_style() -> str:
    rules = [
        f"text {{ {_FONT}; font-size: 13px; fill: #1b2330 }}",
        "text.head { font-size: 18px; font-weight: 600 } text.title { font-size: 14px; font-weight: 600 }",
        "text.value, text.tick { fill: #566173 } text.tick { font-size: 12px }",
        ".axis { stroke: #d5dae1 } .ring { fill: none; stroke-width: 26 }",
        f".line {{ fill: none; {_LINE_STYLE} }}",
    ]
    for number, color in enumerate(_COLORS):
        rules.append(f".c{number} {{ fill: {color} }} .r{number}, .l{number} {{ stroke: {color} }}")
    return " ".join(rules)


def _find_renderer() -> Callable[[str], bytes]:
    try:
        import resvg_py  # noqa: PLC0415
    except ImportError:
        raise UsageError(
            "a PNG needs the package resvg-py, which is not installed",
            help=f"{install_command('pictures')}, or write FILE.svg, which needs nothing",
        ) from None
    return lambda picture: bytes(resvg_py.svg_to_bytes(svg_string=picture, background="white"))
