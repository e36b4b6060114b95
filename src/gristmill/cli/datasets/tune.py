"""`gristmill tune`: what other thresholds would keep, by the scores that a run has kept."""

import itertools
from pathlib import Path
from typing import Any

import click
import msgspec

from gristmill.cli.options import dataset_argument, json_option
from gristmill.cli.printing import format_short_number, print_json, quote_path, to_one_line
from gristmill.cli.tables import print_lines, print_table, print_wrapped
from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_share
from gristmill.pipeline.inspecting.tune import (
    QUANTILES,
    RuleTuning,
    SourceTuning,
    ThresholdChange,
    list_overrides,
    tune,
)
from gristmill.recipe.load import load_recipe, parse_recipe
from gristmill.recipe.yaml_tree import edit_text, parse_value, read_recipe_text
from gristmill.runtime.process import block_pandas_import
from gristmill.storage.commit import write_file


@click.command(
    epilog="Example: gristmill tune out --set gopher_quality.min_words=40 --recipe recipe.yaml --write new.yaml"
)
@dataset_argument
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="STEP.RULE=VALUE",
    help="Try another threshold: gopher_quality.min_words=40, for one language gopher_quality.de.min_words=30; null "
    "switches the rule off; keep_best.share=0.2 tries another share. May be repeated.",
)
@click.option("--recipe", type=click.Path(), help="The recipe that made the dataset, for --write.")
@click.option("--write", "new_recipe", type=click.Path(), help="Write the recipe with the new thresholds to this file.")
@json_option
def tune_command(
    out: str, settings: tuple[str, ...], recipe: str | None, new_recipe: str | None, *, as_json: bool
) -> None:
    """Show what the filters of the dataset in OUT measured, and what other thresholds would keep.

    Reads the scores that the run has kept, and no text. Effects on steps that measure nothing are not included.
    """
    block_pandas_import()
    changes = [_parse_setting(setting) for setting in settings]
    if (new_recipe is None) != (recipe is None):
        raise UsageError("--write and --recipe go together", help="--recipe RECIPE --write NEW_RECIPE")
    if recipe is not None and new_recipe is not None:
        _check_folder(Path(recipe), Path(new_recipe))
    tuning = tune(out, changes)
    if recipe is not None and new_recipe is not None:
        overrides = list_overrides(load_recipe(recipe), changes)
        if Path(new_recipe).exists():
            raise UsageError(f"{new_recipe} exists", help="choose another name, or remove it first")
        text = edit_text(read_recipe_text(Path(recipe)), overrides)
        changed = msgspec.structs.replace(load_recipe(recipe, overrides), written=None)
        if parse_recipe(text, folder=str(Path(recipe).absolute().parent)) != changed:
            raise UsageError(f"{recipe} has anchors: a change would reach other steps", help="change it by hand")
        write_file(Path(new_recipe), text.encode(), "tune")
    if as_json:
        print_json(msgspec.json.format(msgspec.json.encode(tuning), indent=2))
        return
    for source in tuning.sources:
        _print_source(source, is_changed=bool(changes))
    for best in tuning.best:
        place = "" if best.source is None else f" of {to_one_line(best.source)}"
        cut = "" if best.threshold is None else f"; its cut would be {best.by} {format_short_number(best.threshold)}"
        print_wrapped(f"{best.step} would keep {best.kept:,} of {best.documents:,} documents{place}{cut}")
    if new_recipe is not None:
        print_lines(f"wrote {new_recipe}; next: gristmill run {quote_path(new_recipe)} --update")


def _check_folder(recipe: Path, new_recipe: Path) -> None:
    """Refuse another folder for the new recipe: its paths would lead elsewhere."""
    if new_recipe.resolve().parent != recipe.resolve().parent:
        raise UsageError(
            f"{new_recipe} is in another folder than {recipe}, and the paths in a recipe begin at its folder",
            help=f"--write {recipe.with_name(new_recipe.name)}",
        )


def _parse_setting(setting: str) -> ThresholdChange:
    key, equals, text = setting.partition("=")
    parts = key.strip().split(".")
    value: Any = parse_value(text, f"--set {setting}") if equals else ""
    if len(parts) not in (2, 3) or not (value is None or type(value) in (int, float)):
        raise UsageError(
            f"--set {setting}: not STEP.RULE=NUMBER", help="write --set gopher_quality.min_words=40, or =null"
        )
    return ThresholdChange(step=parts[0], rule=parts[-1], value=value, language=parts[1] if len(parts) == 3 else None)


def _print_step(step: str, rules: list[RuleTuning]) -> None:
    """Print the rules of a step, those first that remove most by themselves."""
    rules = sorted(rules, key=lambda rule: (-rule.alone, -rule.broken))
    print_lines(f"  {step}, with the score at {', '.join(f'{share:.0%}' for share in QUANTILES[1:6:2])} of documents")
    print_table(
        ("rule", "threshold", "broken", "alone", *(f"{share:.0%}" for share in QUANTILES[1:6:2])),
        (
            (
                rule.rule,
                format_short_number(rule.threshold),
                f"{rule.broken:,}",
                f"{rule.alone:,}",
                *(format_short_number(value) for value in rule.quantiles[1:6:2]),
            )
            for rule in rules
        ),
    )
    for rule in rules:
        shares = [f"{format_share(count, rule.reached)} at {at}" for at, count in list(rule.would_keep.items())[:3]]
        if shares:
            print_wrapped(f"  {rule.rule} would keep {', '.join(shares)}")


def _print_source(source: SourceTuning, *, is_changed: bool) -> None:
    share = format_share(source.kept, source.documents)
    outcome = f"{source.kept:,} of {source.documents:,} documents pass the filters ({share})"
    print_lines(f"source {to_one_line(source.source)}, stage {source.stage}: {outcome}")
    if is_changed:
        more = f", and up to {source.unscored:,} more that later filters have not scored" if source.unscored else ""
        share = format_share(source.kept_then, source.documents)
        print_lines(f"  with the new thresholds: {source.kept_then:,} ({share}){more}")
    for step, rules in itertools.groupby(source.rules, lambda rule: rule.step):
        _print_step(step, list(rules))
    if source.overlaps:
        pairs = ", ".join(f"{first} and {second}: {count:,}" for first, second, count in source.overlaps[:3])
        print_lines(f"  broken together: {pairs}")
    if len(source.by_language) > 1:
        languages = ", ".join(
            f"{to_one_line(language)} {format_share(counts['kept'], counts['documents'])} of {counts['documents']:,}"
            for language, counts in source.by_language.items()
        )
        print_lines(f"  kept by language: {languages}")
    for rule in sorted((rule for rule in source.rules if rule.alone), key=lambda rule: -rule.alone)[:3]:
        for example in rule.examples:
            word = "kept" if example.is_kept else "dropped"
            value = format_short_number(example.value)
            print_lines(f"  near {rule.step}.{rule.rule}: {word} at {value}, {to_one_line(example.place)}")
