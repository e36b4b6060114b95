"""`gristmill explain`: what a recipe makes of one record, and why."""

import re
from pathlib import Path

import click
import msgspec

from gristmill.cli.options import json_option, recipe_argument
from gristmill.cli.printing import one_line, short_number
from gristmill.cli.removed_pair import print_pair
from gristmill.cli.summary import summary_width
from gristmill.cli.tables import print_lines
from gristmill.core.errors import UsageError
from gristmill.core.step import Finding
from gristmill.pipeline.inspecting.explain import Explanation, StepOutcome, explain
from gristmill.recipe.load import load_recipe


@click.command(epilog="Example: gristmill explain recipe.yaml data/web.jsonl:17")
@recipe_argument
@click.argument("place", metavar="FILE[:N]|PLACE")
@json_option
def command(recipe: str, place: str, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Send record N of FILE through RECIPE: every score, rule and outcome, and where it would be dropped.

    Records are numbered from 0; without N it is the first. FILE is one that a source of the recipe reads, or the folder
    of a finished dataset: then record N is followed back to the input that it came from. PLACE is SOURCE:FILE@POSITION,
    as the files in dropped/ have it.
    """
    path, number = _parsed(place)
    found = explain(load_recipe(recipe, overrides), path, number)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found, enc_hook=str), indent=2))
        return
    _print(found)


def _parsed(place: str) -> tuple[str, int]:
    """A path, and the number behind its last colon if there is one."""
    path, colon, number = place.rpartition(":")
    if not colon or Path(place).exists() or number.startswith("//") or re.search(r"@\d+$", place):
        return place, 0
    if not number.isdecimal():
        raise UsageError(f"{number!r} is not the number of a record", help="write FILE:N, numbers from 0")
    return path, int(number)


def _print(found: Explanation) -> None:
    click.echo(f"source {found.source}, {found.file}, position {found.position:,}")
    for name, value in found.record.items():
        print_lines(f"  {one_line(name)}: {one_line(value)}", breaks_words=True)
    for number, outcome in enumerate(found.steps, 1):
        reason = f" as {one_line(outcome.reason)}" if outcome.reason else ""
        click.echo(f"step {number}, {outcome.step}: {outcome.outcome}{reason}")
        _print_findings(outcome)
    if found.removed is not None:
        print_pair(found.removed)
    click.echo(_end(found))


def _end(found: Explanation) -> str:
    if found.leaves_at is not None:
        return f"{'' if found.is_certain else 'as far as it is known, '}it leaves the recipe at {found.leaves_at}"
    if found.undecided_at is None:
        return "it stays to the end of the recipe"
    return f"no step that can be tried alone drops it; {found.undecided_at} decides when all records are there"


def _print_findings(outcome: StepOutcome) -> None:
    if not outcome.findings:
        return
    rows = [_row(finding) for finding in outcome.findings]
    names, values, thresholds = (max(len(row[column]) for row in rows) for column in (1, 2, 3))
    names = min(names, summary_width() - values - thresholds - 12)
    for word, name, value, threshold in rows:
        line = f"  {word:<5} {name}"
        if len(name) > names:  # a line of its own
            click.echo(line)
            line = ""
        click.echo(f"{line:<{names + 8}}  {value:>{values}}  {threshold}".rstrip())


def _row(finding: Finding) -> tuple[str, str, str, str]:
    """Whether it passed, the rule (its name says which score it is about), the value and the threshold."""
    word = "" if finding.rule is None else "ok" if finding.passed else "FAILS"
    sign = {"min": "≥ ", "max": "≤ "}.get((finding.rule or "")[:3], "") if finding.threshold is not None else ""
    threshold = f"{sign}{short_number(finding.threshold)}"
    return word, finding.rule or finding.name, one_line(short_number(finding.value)), threshold
