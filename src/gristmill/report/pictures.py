"""Charts as files of their own: SVG, or PNG where a library that draws SVG is installed (`resvg-py`).

A file has no style sheet of a page around it, so it carries one with plain colours: light, on white, for print and
slides.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from gristmill.core.errors import UsageError
from gristmill.report.markup import Markup, element, escape_text, join
from gristmill.storage.commit import write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WIDTH = 800
_MARGIN = 24
_TITLE_HEIGHT = 30
_COLORS = ("#2f6fb7", "#c25a12", "#2b8a57", "#8a52b0", "#b3394f", "#6f6a1e", "#147f8c", "#6b7686", "#e3b7ae")
_FONT = "font-family: system-ui, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"
_SUFFIXES = (".svg", ".png")
_LINE_STYLE = "stroke-width: 2; vector-effect: non-scaling-stroke"
_SCALED_LINE_STYLE = "stroke-width: 9"
"""For PNG: resvg scales lines with the chart that they are in."""


class Chart(NamedTuple):
    """A drawing with its title and the names of its colours."""

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
        height = _find_height(chart.drawing)
        shapes.append(Markup(f'<svg x="{_MARGIN}" y="{y}" width="{inner}" height="{height}">{chart.drawing}</svg>'))
        y += height
    y += _MARGIN
    style = Markup(f"<style>{_make_style()}</style>")
    ground = element("rect", width=_WIDTH, height=y, fill="#ffffff")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" viewBox="0 0 {_WIDTH} {y}" '
        f'role="img" aria-label="{escape_text(title)}">{join(style, ground, *shapes)}</svg>\n'
    )


def _find_height(chart: Markup) -> int:
    """Find the height of a chart; a pie is a square without one."""
    match = re.search(r'^<svg [^>]*?height="(\d+)"', chart)
    return int(match[1]) if match else 200


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
            help='pip install "gristmill[pictures]", or write FILE.svg, which needs nothing',
        ) from None
    return lambda picture: bytes(resvg_py.svg_to_bytes(svg_string=picture, background="white"))
