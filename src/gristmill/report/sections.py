"""The sections of the page about the dataset: figures, rules, mix, lengths, packing, duplicates, benchmarks, books."""

from __future__ import annotations

import shlex
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import msgspec

from gristmill.core.books import count_left_out_tokens
from gristmill.core.quantities import format_bytes, format_count, format_share
from gristmill.core.splits import TRAIN
from gristmill.report.charts import Bar, draw_bars, draw_histogram, figure
from gristmill.report.markup import Markup, element, join, table
from gristmill.report.overview import FATES, draw_meter, find_fate

if TYPE_CHECKING:
    from gristmill.report.markup import Row
    from gristmill.report.model import Report

_LOST = 8
"""The color of what is gone."""
_CHAT_COUNTERS = {
    "shortened_chats": "chats shortened",
    "dropped_messages": "messages left out",
    "cut_chats": "chats cut at the end",
    "answer_left_out": "answers left out",
    "reasoning_left_out": "reasoning left out",
}
"""What steps count of chats that are not complete."""
_MAX_SOURCES = 10
"""This many sources are shown one by one."""


def make_headline(report: Report) -> Markup:
    """Show the main figures as cards."""
    totals = report.totals
    came = totals.records_in + totals.records_created
    inputs = f"{format_bytes(totals.input_bytes)} in {format_count(totals.input_files, 'file')}"
    if totals.records_created:
        inputs += f"; steps made {totals.records_created:,} more"
    amounts = {
        "records out": totals.records_out,
        "dropped": totals.records_dropped,
        "quarantined": totals.records_quarantined,
    }
    cards = [("records in", f"{totals.records_in:,}", inputs)]
    cards += [(name, f"{amount:,}", f"{format_share(amount, came)} of {came:,}") for name, amount in amounts.items()]
    if totals.tokens:
        trained = f"{format_share(totals.trained_tokens, totals.tokens)} trained" if report.kind == "chats" else ""
        cards.append(("tokens", f"{totals.tokens:,}", trained or f"in {format_count(totals.rows, 'row')}"))
    cards.append(("dataset", format_bytes(totals.shard_bytes), format_count(totals.shards, "shard")))
    return element(
        "dl",
        *(
            element("div", element("dt", name), element("dd", value, element("small", note) if note else None))
            for name, value, note in cards
        ),
        class_="cards",
    )


def make_rules(report: Report) -> Markup | None:
    """Show what each rule has removed, over all sources; None if nothing was removed."""
    removed: dict[tuple[str, str, str], int] = {}
    failed: dict[tuple[str, str], int] = {}
    reached: Counter[str] = Counter()
    for accounts in report.books.values():
        for account in accounts:
            reached[account.step] += account.records_in + account.created
    for funnel in report.funnel.values():
        for entry in funnel:
            for kind, counts in (("dropped", entry.dropped), ("quarantined", entry.quarantined)):
                for reason, count in counts.items():
                    key = (entry.step, reason, kind)
                    removed[key] = removed.get(key, 0) + count
            for reason, count in entry.failed.items():
                failed[entry.step, reason] = failed.get((entry.step, reason), 0) + count
    if not removed:
        return None
    ranked = sorted(removed.items(), key=lambda item: (-item[1], item[0]))
    most = ranked[0][1]
    rows: list[Row] = []
    for (step, reason, kind), count in ranked:
        color = FATES[find_fate(reason)] if kind == "dropped" else FATES["quarantined"]
        share = format_share(count, reached[step])
        failing = failed.get((step, reason), count)
        rows.append(
            (
                element("span", element("b", reason), " ", element("span", step, class_="quiet")),
                draw_meter([(count / most, color, f"{count:,}")]),
                f"{count:,}",
                share,
                f"{failing:,}" if failing != count else "",
                kind,
                make_view_command(report, kind, f"{step}: {reason}"),
            )
        )
    (step, reason, kind), count = ranked[0]
    finding = (
        f"{reason} of {step} {kind} most: {count:,} records, {format_share(count, reached[step])} of those it saw."
    )
    note = (
        "A record counts once, by the first rule that it broke; shares are of the records that reached the step. "
        "“Broke it” counts all that broke the rule, where these are more."
    )
    heads = ("rule", "", "records", "share", "broke it", "what happened", "to its records")
    return join(element("p", finding), table(heads, rows), element("p", note, class_="note"))


def make_view_command(report: Report, show: str, reason: str) -> Markup | None:
    """Make a button that copies the command which shows these records; None if the dataset holds none of them."""
    has_files = report.quarantined if show == "quarantined" else report.dropped_files
    if not has_files:
        return None
    place = urlencode({"show": show, "reason": reason}, quote_via=quote)
    command = f"gristmill view {shlex.quote(str(report.recipe.get('output') or 'OUT') + '#' + place)}"
    return element("button", "copy view", type="button", class_="copy", data_copy=command, title=command)


def make_mix(report: Report) -> Markup:
    """Show the shares of sources in training, wanted and got, and of languages; and the splits."""
    unit = "tokens" if report.totals.tokens else "rows"
    whole = f"{unit} of {TRAIN}" if TRAIN in report.splits else unit
    names = sorted(report.sources, key=lambda name: (-report.sources[name].share, name))
    is_wanted = any(report.sources[name].wanted_share is not None for name in names)
    rows: list[Row] = []
    for name in names[:_MAX_SOURCES]:
        source = report.sources[name]
        wanted = source.wanted_share
        cells = [name, draw_meter([(source.share, 0, f"{source.share:.1%}")], wanted), f"{source.share:.2%}"]
        if is_wanted:
            cells += ["", ""] if wanted is None else [f"{wanted:.2%}", f"{100 * (source.share - wanted):+.2f}"]
        cells += [f"{source.tokens:,}" if source.tokens else "", f"{source.rows:,}"]
        rows.append(tuple(cells))
    others = [report.sources[name] for name in names[_MAX_SOURCES:]]
    if others:
        share = sum(source.share for source in others)
        cells = [f"{len(others)} others", draw_meter([(share, 0, f"{share:.1%}")]), f"{share:.2%}"]
        cells += ["", ""] if is_wanted else []
        tokens, num_rows = sum(source.tokens for source in others), sum(source.rows for source in others)
        rows.append((*cells, f"{tokens:,}" if tokens else "", f"{num_rows:,}"))
    wanted_heads = ("wanted", "points off") if is_wanted else ()
    heads = ("source", "", f"share of {whole}", *wanted_heads, "tokens of all splits", "rows of all splits")
    parts: list[Markup | None] = [table(heads, rows)]
    if report.wanted_by == "mixture":
        words = "“Wanted” are the weights for training: a stream reads the sources in these shares."
        parts.append(element("p", words, class_="note"))
    if report.languages:
        parts += [element("h3", "Languages"), _make_languages(report)]
    splits: list[Row] = [
        (
            name,
            f"{split.rows:,}",
            f"{split.tokens:,}" if split.tokens else "",
            f"{split.shards:,}",
            format_bytes(split.bytes),
        )
        for name, split in report.splits.items()
    ]
    heads = ("split", "rows", "tokens", "shards", "bytes")
    return join(*parts, element("h3", "Splits"), table(heads, splits))


def _make_languages(report: Report) -> Markup:
    languages = sorted(report.languages, key=lambda entry: (-entry.amount, entry.language))
    total = sum(entry.amount for entry in languages)
    unit = report.lengths.unit if report.lengths is not None else "bytes"
    more = ("kept by filters",) if any(entry.reached for entry in languages) else ()
    rows: list[Row] = []
    for entry in languages[:_MAX_SOURCES]:
        share = format_share(entry.amount, total)
        meter = draw_meter([(entry.amount / max(total, 1), 0, share)])
        kept_cells = (format_share(entry.kept, entry.reached) if entry.reached else "",) if more else ()
        rows.append((entry.language, meter, share, f"{entry.amount:,}", f"{entry.documents:,}", *kept_cells))
    if others := languages[_MAX_SOURCES:]:
        amount, documents = sum(entry.amount for entry in others), sum(entry.documents for entry in others)
        rows.append(
            (
                f"{len(others)} others",
                "",
                format_share(amount, total),
                f"{amount:,}",
                f"{documents:,}",
                *("" for _ in more),
            )
        )
    return join(
        table(("language", "", "share", unit, "documents", *more), rows),
        element("p", _name_sample(report), class_="note"),
    )


def make_lengths(report: Report) -> Markup | None:
    """Show how long documents are, and how well rows are filled."""
    figures = []
    if report.lengths is not None:
        lengths = report.lengths
        bins = [
            (f"{entry.low:,.0f}", float(entry.count), format_count(entry.count, "document")) for entry in lengths.bins
        ]
        rows: list[Row] = [
            (f"{entry.low:,.0f}", f"{entry.high - 1:,.0f}", f"{entry.count:,}") for entry in lengths.bins
        ]
        note = (
            f"{lengths.shortest:,} to {lengths.longest:,} {lengths.unit}; half have at most {lengths.median:,.0f}, "
            f"the mean is {lengths.mean:,.1f}. {_name_sample(report)}"
        )
        title = "Lengths of documents"
        picture = draw_histogram(title, bins)
        heads = ("from", "to", "documents")
        figures.append(figure(title, f"documents by {lengths.unit}", picture, heads, rows, note=note))
    if report.packing:
        figures.append(_make_packing(report))
    return join(*figures) if figures else None


def _make_packing(report: Report) -> Markup:
    ranked = sorted(report.packing.items(), key=lambda item: (-item[1].tokens, item[0]))
    rows: list[Row] = []
    for source, packing in ranked[:_MAX_SOURCES]:
        cells = (packing.tokens, packing.padding, packing.split_documents, packing.left_out_tokens)
        meter = draw_meter([(packing.filled, 2, f"{packing.filled:.2%}")])
        rows.append((source, meter, f"{packing.filled:.2%}", f"{packing.rows:,}", *(f"{value:,}" for value in cells)))
    row_length = next(iter(report.packing.values())).row_length
    heads = ("source", "", "filled", "rows", "tokens", "padding", "documents split", "tokens left out")
    note = f"Rows of {row_length:,} tokens."
    if len(ranked) > _MAX_SOURCES:
        note += f" The {_MAX_SOURCES} largest of {len(ranked):,} sources; report.json has all."
    return join(element("h3", "Packing"), element("p", note, class_="note"), table(heads, rows))


def make_chats(report: Report) -> Markup | None:
    """Show by source which share of the tokens of chats is trained, and what was cut off; None for other datasets."""
    if report.kind != "chats":
        return None
    ranked = sorted(report.sources.items(), key=lambda item: (-item[1].tokens, item[0]))
    rows: list[Row] = []
    for name, source in ranked[:_MAX_SOURCES]:
        counts: Counter[str] = sum((account.counters for account in report.books.get(name, [])), Counter())
        share = format_share(source.trained_tokens, source.tokens) if source.tokens else ""
        meter = draw_meter([(source.trained_tokens / max(source.tokens, 1), 2, share)])
        left_out = count_left_out_tokens(report.books.get(name, []))
        lost = format_share(left_out, source.tokens + left_out) if left_out else ""
        amounts = (source.trained_tokens, source.tokens, left_out, *(counts[counter] for counter in _CHAT_COUNTERS))
        cells = [f"{amount:,}" if amount else "" for amount in amounts]
        rows.append((name, meter, share, *cells[:3], lost, *cells[3:]))
    heads = ("source", "", "trained", "trained tokens", "tokens", "tokens left out", "share left out")
    return table((*heads, *_CHAT_COUNTERS.values()), rows)


def make_best(report: Report) -> Markup | None:
    """Show the values that documents were ranked by, and where they were cut; None without `keep_best`."""
    figures = []
    for number, best in enumerate(report.best):
        title = f"Best by {best.by}" + (f", step {number + 1}" if len(report.best) > 1 else "")
        borders = [f"{border:g}" for border in best.borders]
        labels = [
            f"below {borders[0]}",
            *(f"{low} to {high}" for low, high in pairwise(borders)),
            f"from {borders[-1]}",
        ]
        counts = list(zip(best.kept, best.dropped, strict=True))
        bars = [
            Bar(label, (num_kept, num_dropped), f"{num_kept:,} of {num_kept + num_dropped:,} kept", (0, _LOST))
            for label, (num_kept, num_dropped) in zip(labels, counts, strict=True)
        ]
        rows: list[Row] = [
            (label, f"{num_kept:,}", f"{num_dropped:,}")
            for label, (num_kept, num_dropped) in zip(labels, counts, strict=True)
        ]
        note = "" if best.threshold is None else f"The cut: {best.threshold:g} is the worst value that was kept."
        picture, legend = draw_bars(title, bars), [(0, "kept"), (_LOST, "dropped")]
        heads = (best.by, "kept", "dropped")
        figures.append(figure(title, "training documents", picture, heads, rows, legend=legend, note=note))
    return element("div", *figures, class_="pair") if figures else None


def make_duplicates(report: Report) -> Markup | None:
    """Show the sizes of clusters of duplicates."""
    figures = []
    for number, step in enumerate(report.duplicates):
        title = "Clusters of duplicates" + (f", step {number + 1}" if len(report.duplicates) > 1 else "")
        bars = [
            Bar(f"{size} documents", (count,), format_count(count, "cluster"), (3,))
            for size, count in step.cluster_sizes.items()
        ]
        rows: list[Row] = [
            (source, *(f"{counts.get(name, 0):,}" for name in ("in", "duplicate", "near_duplicate")))
            for source, counts in step.loss.items()
        ]
        note = f"{format_count(step.removed, 'document')} removed; near duplicates verified by {step.verify}."
        heads = ("source", "documents in", "exact copies", "near copies")
        figures.append(figure(title, "clusters by size", draw_bars(title, bars), heads, rows, note=note))
    return element("div", *figures, class_="pair") if figures else None


def make_benchmarks(report: Report) -> Markup | None:
    """Show which share of the items of each benchmark was found in documents; None without `decontaminate`."""
    rows: list[Row] = []
    actions = []
    for check in report.decontamination:
        actions.append(check.action)
        for name, bench in check.benchmarks.items():
            share = format_share(bench.found, bench.items)
            meter = draw_meter([(bench.found / max(bench.items, 1), 4, share)])
            documents = sum(counts["documents"] for counts in check.found.get(name, {}).values())
            rows.append((name, meter, share, f"{bench.found:,}", f"{bench.items:,}", f"{documents:,}", check.action))
    heads = ("benchmark", "", "share", "items found", "items", "in documents", "what was done")
    return table(heads, sorted(rows, key=lambda row: str(row[2]))) if rows else None


def make_books(report: Report) -> Markup:
    """Show the account of every step of every source, with all its counters."""
    rows: list[Row] = []
    for source, accounts in report.books.items():
        for account in accounts:
            numbers = (account.records_in, account.created, account.records_out)
            lost = (account.dropped.total(), account.quarantined.total())
            counters = ", ".join(f"{name} {count:,}" for name, count in account.counters.items() if count)
            rows.append((source, account.step, *(f"{number:,}" for number in (*numbers, *lost)), counters))
    heads = ("source", "step", "in", "created", "out", "dropped", "quarantined", "also counted")
    equation = "In every line: in + created = out + dropped + quarantined; one step's out is the next one's in."
    body = join(element("p", equation, class_="note"), table(heads, rows))
    return element("details", element("summary", f"All {len(rows):,} accounts"), body)


def make_origin(report: Report) -> Markup:
    """Show the recipe, the versions and the hashes."""
    hashes: list[Row] = [
        ("dataset_hash", element("span", report.dataset_hash, class_="hash")),
        ("fingerprint", element("span", report.fingerprint or "unknown: the code of a function", class_="hash")),
        ("report", f"version {report.report_version}"),
        *((f"tokenizer {name}", str(value)) for name, value in report.tokenizer.items()),
        *((name, version) for name, version in report.versions.items()),
        *((name, package) for name, package in report.plugins.items()),
    ]
    columns: list[Row] = list(report.columns.items())
    recipe = report.run.recipe if report.run is not None else ""
    recipe = recipe or msgspec.json.format(msgspec.json.encode(report.recipe), indent=2).decode()
    return join(
        element("h3", "Recipe"),
        element("pre", recipe[:100_000], class_="long", tabindex="0"),
        element(
            "details",
            element("summary", "Versions, hashes and columns"),
            table(("what", "value"), hashes, words=2),
            table(("column", "type"), columns),
        ),
    )


def _name_sample(report: Report) -> str:
    lengths = report.lengths
    if lengths is None:
        return ""
    return f"Measured on {lengths.documents:,} documents{', a sample' if lengths.is_sample else ', all of them'}."
