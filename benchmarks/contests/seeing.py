"""Looking at data: the first page and screen, searches of a gigabyte, and what the report adds to a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.harness.contest import OURS, Contest, Limit, Setting, Side
from benchmarks.inputs import corpora, tokenizers
from benchmarks.inputs.recipes import make_dataset, to_rows, write_recipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUM_COPIES = 10
MEGABYTES = 100
QUERY = "no zebra crosses this"
EXPRESSION = r"no\s+zebra (crosses|crossed) this"
WITHOUT_LITERAL = "[xz][aeb]+z[cr]+[qj]"
"""Every row must be decoded and searched: no part of it is known."""


def _side(name: str, *words: str | Path, units: float = 1) -> Side:
    return Side(name, ["-m", "benchmarks.sides.seeing", *map(str, words)], units=units)


def _list_documents(setting: Setting, num_copies: int = NUM_COPIES) -> str:
    return str(corpora.repeated(setting, setting.scaled(MEGABYTES), num_copies).resolve() / "*.jsonl")


def _make_documents(setting: Setting, form: str) -> Path:
    options = {"compression": None} if form == "jsonl" else {}
    name = f"seeing-{form}-{setting.scaled(MEGABYTES):g}"
    return make_dataset(setting, name, _list_documents(setting), [{"write": {"format": form, **options}}])


def _make_tokens(setting: Setting) -> Path:
    steps = to_rows(tokenizers.byte_level(setting))
    return make_dataset(setting, f"seeing-tokens-{setting.scaled(MEGABYTES):g}", _list_documents(setting), steps)


def _search_sides(make: Callable[[Setting], Path], query: str, kind: str) -> Callable[[Setting], list[Side]]:
    def make_sides(setting: Setting) -> list[Side]:
        dataset = make(setting)
        for path in dataset.glob("train/*/*"):
            corpora.read_once(path)
        return [_side(OURS, "search", dataset, query, kind, units=setting.scaled(MEGABYTES) * NUM_COPIES)]

    return make_sides


def _search(
    name: str, what: str, make: Callable[[Setting], Path], query: str, kind: str, at_most: float | None
) -> Contest:
    claims = [
        Limit("seconds until the last row was searched", at_most, "s", lambda run: run["inner"]),
        Limit("seconds until the first answer", None, "s", lambda run: run["facts"]["first_s"]),
    ]
    return Contest(
        name=name,
        work=f"{what}, no hit, through the viewer's server, 2 threads",
        make_sides=_search_sides(make, query, kind),
        claims=claims,
        data=lambda setting: f"{setting.scaled(MEGABYTES) * NUM_COPIES:g} MB of JSON lines as a dataset",
    )


def _page_sides(setting: Setting) -> list[Side]:
    from benchmarks.inputs.token_datasets import many_rows

    return [_side(OURS, "page", many_rows(setting, num_shards=int(setting.scaled(1000)), rows_a_shard=100_000))]


def _screen_sides(setting: Setting) -> list[Side]:
    return [_side(OURS, "screen", _make_documents(setting, "arrow"))]


def _report_sides(setting: Setting) -> list[Side]:
    filters = [{"gopher_quality": {}}, {"gopher_repetition": {}}, {"fineweb": {}}]
    steps = [*filters, *to_rows(tokenizers.byte_level(setting))]
    recipe = write_recipe(setting, "seeing-report", _list_documents(setting, 10 * NUM_COPIES), steps)
    return [_side(OURS, "report", recipe, units=setting.scaled(MEGABYTES) * 10 * NUM_COPIES)]


CONTESTS = [
    Contest(
        name="view-page",
        work="gristmill view of 100 million rows, from its start to the first ten rows in the browser",
        make_sides=_page_sides,
        claims=[Limit("seconds", 1, "s", lambda run: run["inner"])],
        data=lambda setting: f"{setting.scaled(1000):g} shards of 100,000 rows, links to one file",
        unit="run",
        rounds=5,
    ),
    Contest(
        name="view-screen",
        work="gristmill view --tty, from its start to the first screen",
        make_sides=_screen_sides,
        claims=[
            Limit("seconds", 0.3, "s", lambda run: run["inner"]),
            Limit("CPU time", None, "s", lambda run: run["cpu"]),
        ],
        unit="run",
        rounds=7,
    ),
    *(
        _search(
            f"search-{form}",
            f"text in {form}",
            lambda setting, form=form: _make_documents(setting, form),
            QUERY,
            "text",
            2,
        )
        for form in ("arrow", "parquet", "jsonl")
    ),
    *(
        _search(
            f"search-regex-{form}",
            f"a regular expression in {form}",
            lambda setting, form=form: _make_documents(setting, form),
            EXPRESSION,
            "regex",
            2,
        )
        for form in ("arrow", "jsonl")
    ),
    *(
        _search(
            f"search-classes-{form}",
            f"a regular expression of which no character is known in {form}",
            lambda setting, form=form: _make_documents(setting, form),
            WITHOUT_LITERAL,
            "regex",
            None,
        )
        for form in ("arrow", "jsonl")
    ),
    _search("search-tokens", "text in rows of tokens, which are decoded", _make_tokens, QUERY, "text", None),
    _search("search-token-id", "a token id in rows of tokens", _make_tokens, "4294967295", "token", None),
    Contest(
        name="report-share",
        work="three quality filters, tokenize, pack, 10 GB: what the report adds, 2 workers",
        make_sides=_report_sides,
        claims=[
            Limit("share of the run, its modules included", 2, "%", lambda run: run["facts"]["share"] * 100),
            Limit("seconds", None, "s", lambda run: run["facts"]["report_s"]),
        ],
        data=lambda setting: f"{setting.scaled(MEGABYTES) * 10 * NUM_COPIES:g} MB of JSON lines",
        rounds=1,
    ),
]
