"""Where a record came from and what became of it: `gristmill explain` and `gristmill trace`.

`explain` sends one record through a recipe, `trace` finds the input of a record of a dataset. A removed document and
the one kept in its place are shown side by side where the terminal is wide enough.
"""

import json
import re
import shutil
from dataclasses import asdict
from itertools import islice, zip_longest
from pathlib import Path

import click
import msgspec

from gristmill.cli.options import dataset_argument, json_option, recipe_argument
from gristmill.cli.printing import echo, format_short_number, print_json, to_one_line
from gristmill.cli.tables import print_lines, summary_width, wrap
from gristmill.core.checks import escape_controls
from gristmill.core.errors import UsageError
from gristmill.core.quantities import count_cells, format_count
from gristmill.core.step import Finding
from gristmill.engine.progress import Activity
from gristmill.pipeline.inspecting.explain import (
    DROPPED,
    QUARANTINED,
    ChatExample,
    Explanation,
    StepOutcome,
    explain,
)
from gristmill.pipeline.inspecting.trace import (
    RemovedDocument,
    Trace,
    TracedOrigin,
    read_removed_document,
    trace,
    trace_input,
    trace_wanted,
)
from gristmill.recipe.load import load_recipe
from gristmill.shards.dataset import Origin, open_dataset
from gristmill.storage.stores.credentials import name_bucket

_MAX_CHARS = 4000
_MAX_LINES = 40
_MAX_TRAINED = 1600
_MAX_UNTRAINED = 600
"""The longest pieces of a rendered chat, in characters."""
_MIN_WIDTH = 80


@click.command(
    epilog="Examples: gristmill explain recipe.yaml data/web.jsonl:17; gristmill explain recipe.yaml --find id=abc"
)
@recipe_argument
@click.argument("place", metavar="FILE[:N]|ORIGIN", required=False)
@click.option("--find", "wanted", metavar="FIELD=VALUE", help="Instead of FILE: find the record, as in --find id=abc.")
@json_option
def explain_command(
    recipe: str, place: str | None, wanted: str | None, overrides: tuple[str, ...], *, as_json: bool
) -> None:
    """Send record N of FILE through RECIPE and show every score, rule and decision, and which step drops the record.

    Records are numbered from 0, and 0 is the default. FILE is an input file of the recipe, or the folder of a finished
    dataset, whose record N is traced back to its input. ORIGIN is SOURCE:FILE@POSITION, as in the files in dropped/.

    --find takes the first record of the inputs whose field (id, url, meta.host) is VALUE, or whose text contains VALUE.
    """
    _check_one("FILE", place, wanted)
    path, number = _parse_place(place or "")
    with Activity() as activity:
        explanation = explain(load_recipe(recipe, overrides), path, number, wanted=wanted or "", tell=activity.show)
    if as_json:
        print_json(msgspec.json.format(msgspec.json.encode(explanation, enc_hook=str), indent=2))
        return
    _print(explanation)


def _check_one(name: str, place: str | None, wanted: str | None) -> None:
    if (place is None) == (wanted is None):
        raise UsageError(f"one of {name} and --find is needed", help="for example --find id=abc")


def _parse_place(place: str) -> tuple[str, int]:
    """Split into a path and the number after its last colon, if there is one."""
    path, colon, number = place.rpartition(":")
    if not colon or Path(place).exists() or number.startswith("//") or re.search(r"@\d+$", place):
        return place, 0
    if not number.isdecimal():
        raise UsageError(f"{number!r} is not the number of a record", help="write FILE:N, with N counted from 0")
    return path, int(number)


def _print(explanation: Explanation) -> None:
    """Print the verdict, the record, and the steps up to the one where it leaves."""
    echo(_describe_end(explanation))
    echo(
        f"record {explanation.number} of {explanation.file}, source {explanation.source}, "
        f"position {explanation.position:,}"
    )
    for name, value in explanation.record.items():
        print_lines(f"  {to_one_line(name)}: {to_one_line(value)}", breaks_words=True)
    for number, outcome in enumerate(explanation.steps, 1):
        reason = f" as {to_one_line(outcome.reason)}" if outcome.reason else ""
        echo(f"{outcome.step}: {outcome.outcome}{reason}")
        _print_findings(outcome)
        if outcome.counts:
            counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in outcome.counts.items())
            print_lines(f"  counted: {counts}")
        if outcome.outcome in (DROPPED, QUARANTINED):
            if later := len(explanation.steps) - number:
                echo(f"{format_count(later, 'later step')} not shown; --json has what they would do")
            break
    for number, example in enumerate(explanation.examples, 1):
        _print_example(example, number, len(explanation.examples))
    if explanation.removed is not None:
        print_pair(explanation.removed)


def _print_example(example: ChatExample, number: int, num_examples: int) -> None:
    """Print an example of a chat, its trained text in brackets; long text is cut in its middle."""
    facts = [f"example {number} of {num_examples}"] if num_examples > 1 else ["rendered"]
    if example.tokens is not None:
        facts.append(f"{example.tokens:,} tokens, {example.trained_tokens:,} of them trained")
    facts += [f"split {example.split}"] if example.split else []
    echo(f"{', '.join(facts)}; trained text is in ⟦ ⟧:")
    for text, is_trained in example.spans:
        half = (_MAX_TRAINED if is_trained else _MAX_UNTRAINED) // 2
        cut = f"{text[:half]}… ({len(text) - 2 * half:,} characters) …{text[-half:]}" if len(text) > 2 * half else text
        shown = escape_controls(cut)
        click.echo(click.style(f"⟦{shown}⟧", fg="green") if is_trained else shown, nl=False)
    echo()


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
    names, values, thresholds = (max(count_cells(row[column]) for row in rows) for column in (1, 2, 3))
    names = min(names, summary_width() - values - thresholds - 12)
    for word, name, value, threshold in rows:
        line = f"  {word:<5} {name}"
        if count_cells(name) > names:  # a long name gets its own line
            echo(line)
            line = ""
        fill = " " * (names + 8 - count_cells(line) + 2 + values - count_cells(value))
        echo(f"{line}{fill}{value}  {threshold}".rstrip())


def _format_row(finding: Finding) -> tuple[str, str, str, str]:
    """Return the outcome, the rule (named after its score), the value and the threshold."""
    word = "" if finding.rule is None else "ok" if finding.passed else "FAILS"
    sign = {"min": "≥ ", "max": "≤ "}.get((finding.rule or "")[:3], "") if finding.threshold is not None else ""
    threshold = f"{sign}{format_short_number(finding.threshold)}"
    return word, finding.rule or finding.name, to_one_line(format_short_number(finding.value)), threshold


@click.command(
    epilog="Examples: gristmill trace out 17; gristmill trace out --find id=abc",
    context_settings={"ignore_unknown_options": True},
)
@dataset_argument
@click.argument("number", metavar="NUMBER|ORIGIN", required=False)
@click.option("--find", "wanted", metavar="FIELD=VALUE", help="Find the record, as in --find id=abc.")
@click.option("--split", help="Number the records of this split only.")
@click.option("--removed", is_flag=True, help="Number the documents that deduplicate removed instead.")
@click.option(
    "--bucket",
    "buckets",
    multiple=True,
    metavar="URL",
    help="Read inputs in this bucket with your credentials: --bucket s3://corpus. May be repeated.",
)
@json_option
def trace_command(
    out: str,
    number: str | None,
    wanted: str | None,
    split: str | None,
    buckets: tuple[str, ...],
    *,
    removed: bool,
    as_json: bool,
) -> None:
    """Trace record NUMBER of the dataset in OUT back to its input file, and read it there again.

    Records are numbered from 0 in the order of the dataset, as in inspect; -1 is the last one. ORIGIN is
    SOURCE:FILE@POSITION, as in the files in dropped/: the record at that position of the input is read. With --removed,
    NUMBER is a row of dropped/duplicates.parquet: the removed document is shown next to the one kept in its place.

    --find takes the first record of the inputs whose field (id, url, meta.host) is VALUE, or whose text contains VALUE,
    and lists the records of the dataset that were made from it.
    """
    for bucket in buckets:
        name_bucket(bucket)
    _check_one("NUMBER", number, wanted)
    dataset = open_dataset(out)
    if number is None:
        if removed or split is not None:
            raise UsageError(f"--{'removed' if removed else 'split'} takes the number of a record, not --find")
        with Activity() as activity:
            traced: Trace | TracedOrigin | RemovedDocument = trace_wanted(dataset, str(wanted), activity.show)
    elif not re.fullmatch(r"-?\d+", number):
        if removed or split is not None:
            raise UsageError(f"--{'removed' if removed else 'split'} takes the number of a record, not {number!r}")
        traced = trace_input(dataset, number)
    elif removed:
        traced = read_removed_document(dataset, int(number))
    else:
        dataset = dataset.split(split) if split is not None else dataset
        traced = trace(dataset, int(number))
    if as_json:
        print_json(json.dumps(asdict(traced), indent=2, default=str))
    elif isinstance(traced, RemovedDocument):
        print_pair(traced)
    elif isinstance(traced, TracedOrigin):
        _print_place(traced)
        if traced.numbers:
            print_lines(f"is in record {', '.join(map(str, traced.numbers))} of {out}")
        elif traced.numbers is not None:
            echo(f"is in no record of {out}; gristmill explain RECIPE says why")
    else:
        echo(f"record {int(number or 0) % len(dataset)}")
        for name, value in traced.record.items():
            print_lines(f"  {to_one_line(name)}: {to_one_line(value)}", breaks_words=True)
        for place in traced.places:
            _print_place(place)


def _print_place(place: TracedOrigin) -> None:
    origin = place.origin
    echo(f"from source {origin.source}")
    part = f", part {origin.part}" if origin.part else ""
    echo(f"  {origin.path}, {place.position_kind} {origin.position:,}{part}")
    if place.state != "unchanged":
        change = "is missing" if place.state == "missing" else "has changed"
        echo(f"  the input file {change}, so the record cannot be read from it")
    elif place.original is None:
        echo("  there is no record at this position")
    else:
        print_lines(f"was read as\n  {to_one_line(place.original, max_chars=2000)}", breaks_words=True)


def print_pair(document: RemovedDocument) -> None:
    """Print the origins, the similarity and both texts."""
    kind = "similarity estimated from signatures:" if document.is_estimate else "similarity"
    echo(f"removed as {document.reason}, {kind} {document.similarity:.4f}")
    echo(f"removed: {_place(document.origin)}")
    echo(f"survivor: {_place(document.survivor)}")
    width = shutil.get_terminal_size().columns
    if width < _MIN_WIDTH or document.text is None or document.survivor_text is None:
        for text in (document.text, document.survivor_text):
            echo(f"  {_format_text(text)}")
        return
    column = (width - 3) // 2
    columns = [
        wrap(_format_text(text), column, indent="", breaks_words=True)
        for text in (document.text, document.survivor_text)
    ]
    for left, right in islice(zip_longest(*columns, fillvalue=""), _MAX_LINES):
        echo(f"{left}{' ' * (column - count_cells(left))} {'|' if left == right else '≠'} {right}")


def _place(origin: Origin) -> str:
    return f"source {origin.source}, {origin.path}, position {origin.position:,}"


def _format_text(text: str | None) -> str:
    return "the input file has changed or is missing" if text is None else to_one_line(text, max_chars=_MAX_CHARS)
