"""`report.html`: one file that needs nothing else. Its policy forbids every request and every script but its own."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from gristmill.core.quantities import format_count
from gristmill.report import overview, record_sections, sections
from gristmill.report.markup import Markup, element, join

if TYPE_CHECKING:
    from gristmill.report.model import Report

_ASSETS = Path(__file__).parent / "assets"
RUN_BEGINS, RUN_ENDS = Markup("<!--run-->"), Markup("<!--/run-->")
"""Marks around what differs between two runs that make the same dataset."""


@cache
def read_asset(name: str) -> Markup:
    """Read a style sheet or script of this package."""
    return Markup((_ASSETS / name).read_text())


def make_page(report: Report, title: str) -> str:
    """Make the page of a report; `title` is the name of the dataset."""
    samples = report.samples
    num_records = samples.num_records if samples is not None else 0
    warning = (
        f"This page holds {format_count(num_records, 'record')} of the data, or pieces of records."
        if num_records
        else "This page holds no records of the data, only counts."
    )
    parts = [
        ("overview", "Overview", overview.make_overview(report)),
        ("rules", "Rules", sections.make_rules(report)),
        ("best", "Best documents", sections.make_best(report)),
        ("thresholds", "Thresholds", record_sections.make_sliders(report)),
        ("mix", "Mix", sections.make_mix(report)),
        ("chats", "Chats", sections.make_chats(report)),
        ("lengths", "Lengths and packing", sections.make_lengths(report)),
        ("duplicates", "Duplicates", sections.make_duplicates(report)),
        ("benchmarks", "Benchmarks", sections.make_benchmarks(report)),
        ("samples", "Samples", record_sections.make_samples(report)),
        ("time", "Time and memory", join(RUN_BEGINS, record_sections.make_times(report.run), RUN_ENDS)),
        ("books", "Books", sections.make_books(report)),
        ("origin", "Recipe and versions", sections.make_origin(report)),
    ]
    shown = [(name, heading, body) for name, heading, body in parts if body is not None]
    links = [element("li", element("a", heading, href=f"#{name}")) for name, heading, _ in shown]
    finished = report.run.finished[:16].replace("T", " ") + " UTC" if report.run is not None else ""
    version = report.versions.get("gristmill", "")
    hash_text = element("span", report.dataset_hash, class_="hash")
    header = element(
        "header",
        element(
            "div",
            element("div", element("h1", title), make_theme_button(), class_="row"),
            element("p", overview.describe_outcome(report), class_="lead") if report.failure is None else None,
            element(
                "p",
                RUN_BEGINS,
                f"{finished} · " if finished else None,
                _name_recipe(report),
                RUN_ENDS,
                f"gristmill {version} · {report.kind}, {report.format} · ",
                hash_text,
                class_="quiet",
            ),
            element("p", warning, id="holds", class_="quiet"),
        ),
        class_="top",
    )
    bodies = [
        element("section", element("h2", heading) if name != "overview" else None, body, id=name)
        for name, heading, body in shown
    ]
    main = element("main", make_banner(report), sections.make_headline(report), *bodies, make_footer(report))
    return make_document(
        title,
        join(header, element("nav", element("ul", *links), class_="sections", aria_label="Sections"), main),
        "report.js",
    )


def _name_recipe(report: Report) -> str:
    """Name the file of the recipe: the first line of what was written."""
    first = report.run.recipe.partition("\n")[0] if report.run is not None else ""
    return f"{PurePath(first.removeprefix('# ')).name} · " if first.startswith("# ") else ""


def make_banner(report: Report) -> Markup | None:
    """Say why there is no dataset; None if there is one."""
    failure = report.failure
    if failure is None:
        return None
    outcome = "The run was stopped." if failure.is_stopped else f"The run failed: {failure.message}"
    return element(
        "div",
        element("p", element("strong", outcome)),
        element("p", failure.help) if failure.help else None,
        element(
            "p",
            f"Ended {failure.ended}. No dataset was written; the numbers below are those of finished tasks. "
            "The same command resumes the run.",
            class_="quiet",
        ),
        class_="banner",
        role="alert",
    )


def make_theme_button() -> Markup:
    """Make the button that changes between light and dark; a script shows it."""
    return element("button", "Dark", id="theme", type="button", hidden=True)


def make_footer(report: Report) -> Markup:
    """Say what made the page."""
    version = report.versions.get("gristmill", "")
    text = f"Made by Gristmill {version} from manifest.json. All numbers are in report.json."
    return element("footer", element("p", text))


def make_document(
    title: str, body: Markup, *scripts: str, style: str = "", connects: str = "'none'", images: str = "data:"
) -> str:
    """Make a whole document with our style and our scripts, whose hash the policy names."""
    code = "".join(map(read_asset, ("theme.js", *scripts)))
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src {images}; "
        f"connect-src {connects}; base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("link", rel="icon", href="data:,"),  # else browsers ask the server for one
        element("title", title),
        Markup(f"<style>{join(*map(read_asset, filter(None, ('report.css', style))))}</style>"),
    )
    html = element("html", head, element("body", body, Markup(f"<script>{code}</script>")), lang="en")
    return f"<!DOCTYPE html>\n{html}\n"
