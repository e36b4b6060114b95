"""A page of chosen rows in one file, to be sent to others: no server, no network, pictures inside."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from gristmill.core.quantities import format_count
from gristmill.report.markup import Markup, element, join
from gristmill.report.page import make_document, make_theme_button
from gristmill.report.plain_json import encode_plain
from gristmill.report.view.describe import find_picture_type
from gristmill.report.view.requests import describe_safely

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gristmill.report.view.rows import Rows

_MAX_PICTURES = 64 << 20


def make_saved_page(rows: Rows, numbers: Iterable[int]) -> str:
    """Make a page of some rows."""
    described = [_describe(rows, number) for number in numbers]
    # Inside a script element only "<" could end it or begin a comment.
    data = encode_plain(described).decode().replace("<", "\\u003c")
    title = f"{rows.title}: {format_count(len(described), 'row')}"
    warning = f"This page holds {format_count(len(described), 'record')} of the data. Mind who gets it."
    body = join(
        element(
            "header",
            element(
                "div", element("div", element("h1", title), make_theme_button(), class_="row"), element("p", warning)
            ),
            class_="top",
        ),
        element("main", element("div", id="rows"), id="view"),
        Markup(f'<script type="application/json" id="data">{data}</script>'),
    )
    return make_document(f"{title} · Gristmill", body, "rows.js", "saved.js")


def _describe(rows: Rows, number: int) -> dict[str, Any]:
    described = describe_safely(rows, number)
    if described.get("pictures"):
        described["pictures"] = [
            {**picture, "data": f"data:{find_picture_type(content)};base64,{base64.b64encode(content).decode()}"}
            if len(content) <= _MAX_PICTURES
            else picture
            for picture, content in zip(described["pictures"], rows.read_pictures(number), strict=True)
        ]
    return described
