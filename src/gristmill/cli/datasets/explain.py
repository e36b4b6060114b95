"""`gristmill explain`: show what a recipe does with one record, and why."""

import re
from pathlib import Path

import click
import msgspec

from gristmill.cli.datasets.removed_pair import print_pair
from gristmill.cli.options import json_option, recipe_argument
from gristmill.cli.printing import format_short_number, to_one_line
from gristmill.cli.summary import summary_width
from gristmill.cli.tables import print_lines
from gristmill.core.errors import UsageError
from gristmill.core.step import Finding
from gristmill.pipeline.inspecting.explain import Explanation, StepOutcome, explain
from gristmill.recipe.load import load_recipe


@click.command(epilog="Example: gristmill explain recipe.yaml data/web.jsonl:17")
@recipe_argument
@click.argument("place", metavar="FILE[:N]|ORIGIN")
@json_option
def command(recipe: str, place: str, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Send record N of FILE through RECIPE and show every score, rule and decision, and which step drops the record.

    Records are numbered from 0, and 0 is the default. FILE is an input file of the recipe, or the folder of a finished
    dataset, whose record N is traced back to its input. ORIGIN is SOURCE:FILE@POSITION, as in the files in dropped/.
    """
    path, number = _parse_place(place)
    explanation = explain(load_recipe(recipe, overrides), path, number)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(explanation, enc_hook=str), indent=2))
        return
    _print(explanation)


def _parse_place(place: str) -> tuple[str, int]:
    """Split into a path and the number after its last colon, if there is one."""
    path, colon, number = place.rpartition(":")
    if not colon or Path(place).exists() or number.startswith("//") or re.search(r"@\d+$", place):
        return place, 0
    if not number.isdecimal():
        raise UsageError(f"{number!r} is not the number of a record", help="write FILE:N, with N counted from 0")
    return path, int(number)


def _print(explanation: Explanation) -> None:
    click.echo(f"source {explanation.source}, {explanation.file}, position {explanation.position:,}")
    for name, value in explanation.record.items():
        print_lines(f"  {to_one_line(name)}: {to_one_line(value)}", breaks_words=True)
    for number, outcome in enumerate(explanation.steps, 1):
        reason = f" as {to_one_line(outcome.reason)}" if outcome.reason else ""
        click.echo(f"step {number}, {outcome.step}: {outcome.outcome}{reason}")
        _print_findings(outcome)
    if explanation.removed is not None:
        print_pair(explanation.removed)
    click.echo(_describe_end(explanation))


def _describe_end(explanation: Explanation) -> str:
    if explanation.leaves_at is not None:
        doubt = "" if explanation.is_certain else "as far as it is known, "
        return f"{doubt}it leaves the recipe at {explanation.leaves_at}"
    if explanation.undecided_at is None:
        return "it is kept to the end of the recipe"
    return f"no local step drops it; {explanation.undecided_at} decides once all records are known"


def _print_findings(outcome: StepOutcome) -> None:
    if not outcome.findings:
        return
    rows = [_format_row(finding) for finding in outcome.findings]
    names, values, thresholds = (max(len(row[column]) for row in rows) for column in (1, 2, 3))
    names = min(names, summary_width() - values - thresholds - 12)
    for word, name, value, threshold in rows:
        line = f"  {word:<5} {name}"
        if len(name) > names:  # a long name gets its own line
            click.echo(line)
            line = ""
        click.echo(f"{line:<{names + 8}}  {value:>{values}}  {threshold}".rstrip())


def _format_row(finding: Finding) -> tuple[str, str, str, str]:
    """Return the outcome, the rule (named after its score), the value and the threshold."""
    word = "" if finding.rule is None else "ok" if finding.passed else "FAILS"
    sign = {"min": "≥ ", "max": "≤ "}.get((finding.rule or "")[:3], "") if finding.threshold is not None else ""
    threshold = f"{sign}{format_short_number(finding.threshold)}"
    return word, finding.rule or finding.name, to_one_line(format_short_number(finding.value)), threshold
