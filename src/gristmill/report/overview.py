"""The first screen of a report: what came out, what is wrong, and where the records of each source went.

A sentence, warnings in the order of their weight, a bar for each source, and one table of sources and steps.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from gristmill.core.books import count_left_out_tokens, make_step_table
from gristmill.core.quantities import format_bytes, format_count, format_share
from gristmill.core.splits import TRAIN
from gristmill.report.markup import Markup, element, join, make_tabs, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gristmill.core.books import Account, Measure, StepLine
    from gristmill.report.model import Report

Fate = Literal["kept", "filtered", "duplicates", "not chosen", "quarantined"]
FATES: dict[Fate, int] = {"kept": 0, "filtered": 1, "duplicates": 3, "not chosen": 7, "quarantined": 4}
"""What became of a record, and the color of that."""
_DUPLICATE = {"duplicate", "near_duplicate"}
_NOT_CHOSEN = {"not_chosen", "over_limit", "not_best", "over_cap", "not_sampled"}
_MAX_SOURCES = 20
_MAX_WARNINGS = 6
_ON_TARGET = 0.005
"""A share of a mixture may differ by this much from the one that was asked for."""
_LOST_TO_A_RULE = 0.3
_LOST_TOKENS = 0.05
_MIN_LANGUAGE_DOCUMENTS = 20
_LOST_LANGUAGE = 0.02


def find_fate(reason: str) -> Fate:
    """Find what became of the records that were dropped for a reason."""
    return "duplicates" if reason in _DUPLICATE else "not chosen" if reason in _NOT_CHOSEN else "filtered"


def count_fates(accounts: Sequence[Account]) -> Counter[Fate]:
    """Count the records of a source by what became of them."""
    fates: Counter[Fate] = Counter({"kept": accounts[-1].records_out if accounts else 0})
    for account in accounts:
        fates["quarantined"] += account.quarantined.total()
        for reason, count in account.dropped.items():
            fates[find_fate(reason)] += count
    return fates


def describe_outcome(report: Report) -> str:
    """Describe in one sentence what a run has made, and where most records went.

    It ends with the steps that removed most.
    """
    totals = report.totals
    parts = []
    if totals.tokens:
        train = report.splits.get(TRAIN)
        tokens = train.tokens if train is not None else totals.tokens
        parts.append(
            f"{format_large(tokens)} tokens for training" if train is not None else f"{format_large(tokens)} tokens"
        )
        if report.kind == "chats":
            parts.append(f"{format_share(totals.trained_tokens, totals.tokens)} of the tokens trained")
    else:
        parts.append(f"{format_count(totals.records_out, 'record')} in the dataset")
    if misses := _find_misses(report):
        name, got, wanted = misses[0]
        on_target = abs(got - wanted) <= _ON_TARGET
        parts.append("mixture on target" if on_target else f"mixture off target: {name} has {got:.1%} of {wanted:.1%}")
    removed: Counter[tuple[Fate, str]] = Counter()
    for accounts in report.books.values():
        for account in accounts:
            for reason, count in account.dropped.items():
                removed[find_fate(reason), account.step] += count
    came = totals.records_in + totals.records_created
    for (fate, step), count in removed.most_common(3):
        if fate == "filtered":
            parts.append(f"{format_share(count, came)} of the records removed by {step}")
        else:
            parts.append(f"{count:,} duplicates removed" if fate == "duplicates" else f"{count:,} not chosen by {step}")
    if totals.records_quarantined:
        parts.append(f"{totals.records_quarantined:,} quarantined")
    return f"{'; '.join(parts)}."


def _find_misses(report: Report) -> list[tuple[str, float, float]]:
    """List the sources with a wanted share, those first that are furthest from it: name, got, wanted."""
    wanted = [
        (name, source.share, source.wanted_share)
        for name, source in report.sources.items()
        if source.wanted_share is not None
    ]
    # Weights of a stream are not shares of the dataset: it may hold any.
    return sorted(wanted, key=lambda miss: -abs(miss[1] - miss[2])) if report.wanted_by == "mix" else []


def list_warnings(report: Report) -> list[str]:
    """List what a person should look at, the heaviest first: by the share of a source that is concerned."""
    warnings: list[tuple[float, str]] = []
    losses: dict[tuple[str, str], list[tuple[float, str]]] = {}
    """By rule: the sources that lost much to it, and which share."""
    for name, accounts in report.books.items():
        came = accounts[0].records_in if accounts else 0
        for account in accounts:
            reached = account.records_in + account.created
            for reason, count in account.dropped.items():
                if find_fate(reason) != "not chosen" and count > _LOST_TO_A_RULE * reached:
                    losses.setdefault((account.step, reason), []).append((count / reached, name))
            bad = account.quarantined.total()
            if bad > 0.01 * reached:
                words = f"{bad:,} of {reached:,} records of source {name} were quarantined by {account.step}."
                warnings.append((bad / reached, words))
        if came and not accounts[-1].records_out:
            warnings.append((2.0, f"Source {name} is empty: nothing of its {format_count(came, 'record')} is left."))
        left_out, num_tokens = count_left_out_tokens(accounts), report.sources[name].tokens
        if left_out > _LOST_TOKENS * (num_tokens + left_out):
            share = format_share(left_out, num_tokens + left_out)
            words = f"{share} of the tokens of source {name} are in no row: {left_out:,} were cut off or left out."
            warnings.append((1 + left_out / (num_tokens + left_out), words))
    warnings += [
        (abs(got - wanted), f"Source {name} has {got:.1%} of the mixture, and {wanted:.1%} were asked for.")
        for name, got, wanted in _find_misses(report)
        if abs(got - wanted) > 4 * _ON_TARGET
    ]
    for (step, reason), sources in losses.items():
        sources.sort(key=lambda loss: (-loss[0], loss[1]))
        named = ", ".join(f"{name} {share:.1%}" for share, name in sources[:3])
        many = f"{len(sources)} sources lost" if len(sources) > 3 else "Lost"
        most = ", most of all" if len(sources) > 3 else ""
        warnings.append((sources[0][0], f"{many} to {step}.{reason}{most}: {named}."))
    lost = [
        f"{entry.language} ({entry.kept:,} of {entry.reached:,})"
        for entry in sorted(report.languages, key=lambda entry: -entry.reached)
        if entry.reached >= _MIN_LANGUAGE_DOCUMENTS and entry.kept < _LOST_LANGUAGE * entry.reached
    ]
    if lost:
        more = f" and {len(lost) - _MAX_WARNINGS} more" if len(lost) > _MAX_WARNINGS else ""
        warnings.append(
            (1.0, f"Filters kept almost nothing of some languages: {', '.join(lost[:_MAX_WARNINGS])}{more}.")
        )
    warnings += [
        (0.5, f"{bench.found:,} items of {name} are still in the dataset: decontaminate only tags them.")
        for check in report.decontamination
        for name, bench in check.benchmarks.items()
        if check.action == "tag" and bench.found
    ]
    return [words for _, words in sorted(warnings, key=lambda warning: (-warning[0], warning[1]))]


def make_overview(report: Report) -> Markup:
    """Make the warnings, the bars of the sources and the table."""
    warnings = list_warnings(report)
    shown = [element("li", words) for words in warnings[:_MAX_WARNINGS]]
    if len(warnings) > _MAX_WARNINGS:
        shown.append(
            element("li", f"{len(warnings) - _MAX_WARNINGS} more of this kind: see the table.", class_="quiet")
        )
    return join(
        element("ul", *shown, class_="warnings", aria_label="Warnings") if shown else None,
        _make_table(report),
        element("p", _explain_totals(report), class_="note"),
    )


def _explain_totals(report: Report) -> str:
    """Say where every record went, as a sum."""
    totals = report.totals
    created = f" and {totals.records_created:,} made by steps" if totals.records_created else ""
    places = (
        f"{totals.records_out:,} in the dataset, {totals.records_dropped:,} dropped, "
        f"{totals.records_quarantined:,} quarantined"
    )
    came = totals.records_in + totals.records_created
    if totals.records_out + totals.records_dropped + totals.records_quarantined != came:
        return f"Not every record is accounted for: {totals.records_in:,} read{created}, and {places}."
    return f"Every record is accounted for: {totals.records_in:,} read{created} are {places}."


def draw_meter(parts: Sequence[tuple[float, int, str]], mark: float | None = None) -> Markup:
    """Draw a bar for a cell of a table: parts of the whole as `(share, color, text)`, and a mark on it."""
    drawn = [
        element("i", class_=f"s{color}", style=f"width:{100 * share:.2f}%", title=text)
        for share, color, text in parts
        if share > 0
    ]
    if mark is not None:
        drawn.append(element("b", style=f"left:{100 * min(mark, 1):.2f}%"))
    return element("span", *drawn, class_="meter", role="img", aria_label=", ".join(text for _, _, text in parts))


def _make_table(report: Report) -> Markup:
    """Make the table of sources and steps, in records, bytes and tokens; that of records has a bar for each source."""
    fates = {name: count_fates(accounts) for name, accounts in report.books.items()}
    used = [fate for fate in FATES if any(counts[fate] for counts in fates.values())]
    measures: list[tuple[Measure, Callable[[int], str]]] = [("records", "{:,}".format), ("bytes", format_bytes)]
    if report.totals.tokens:
        measures.append(("tokens", "{:,}".format))
    panels = []
    for measure, show in measures:
        steps, lines, total = make_step_table(report.books, measure, _MAX_SOURCES)
        if not total.came:
            continue
        shown = [*lines, *([total] if len(lines) > 1 else [])]
        named = {line.name for line in lines}
        counts = fates | {
            total.name: sum(fates.values(), Counter()),
            lines[-1].name: sum((fates[name] for name in fates if name not in named), Counter())
            or fates.get(lines[-1].name, Counter()),
        }
        has_bars, has_made = measure == "records", total.created > 0
        rows = [
            (
                line.name,
                *((_draw_fates(counts[line.name], used),) if has_bars else ()),
                show(line.came),
                *((show(line.created) if line.created else "",) if has_made else ()),
                *(_make_loss(line, step, show) for step in range(len(steps))),
                show(line.left),
                format_share(line.left, line.came + line.created) if line.came else "",
            )
            for line in shown
        ]
        what = {"records": "records", "bytes": "bytes of text", "tokens": "tokens"}[measure]
        heads = (
            "source",
            *([""] if has_bars else []),
            f"{what} in",
            *(["made"] if has_made else []),
            *steps,
            "left",
            "share",
        )
        panels.append((measure, what, table(heads, rows, has_total=len(lines) > 1)))
    keys = [element("li", element("i", class_=f"swatch s{FATES[fate]}"), fate) for fate in used]
    return join(element("ul", *keys, class_="legend"), make_tabs("measure", "Measure", panels))


def _draw_fates(counts: Counter[Fate], used: Sequence[Fate]) -> Markup:
    total = max(counts.total(), 1)
    return draw_meter([(counts[fate] / total, FATES[fate], f"{fate}: {counts[fate]:,}") for fate in used])


def _make_loss(line: StepLine, step: int, show: Callable[[int], str]) -> Markup | str:
    """Show what a step removed from a source, darker the more it was."""
    removed = line.removed[step]
    if not removed:
        return ""
    reached = line.came + line.created - sum(line.removed[:step])
    share = removed / reached if reached else 0.0
    return element("span", f"-{show(removed)}", class_=f"loss h{min(4, 1 + int(share * 5))}", title=f"{share:.1%}")


def format_large(number: int) -> str:
    """Format a number for a sentence.

    >>> [format_large(number) for number in (950, 12_000_148, 3_586_437_000)]
    ['950', '12.0 M', '3.6 G']
    """
    for size, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if number >= size:
            return f"{number / size:.1f} {letter}"
    return f"{number:,}"
