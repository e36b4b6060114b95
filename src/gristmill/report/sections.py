"""The sections of the page about the dataset: figures, funnel, rules, mix, lengths, packing, duplicates, books."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.books import add_books, count_left_out_tokens
from gristmill.core.quantities import format_bytes, format_count, format_share
from gristmill.core.splits import TRAIN
from gristmill.report.charts import MAX_BARS, NUM_COLORS, Bar, draw_bars, draw_histogram, draw_pie, figure
from gristmill.report.markup import Markup, element, join, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.core.books import Account
    from gristmill.report.markup import Row
    from gristmill.report.model import Report
    from gristmill.shards.derived_files import SourceMix

_LOST = 8
"""The color of what is gone."""
_MAX_FUNNELS = 12
"""This many sources get a separate funnel; all others are in the table of the books."""


def make_headline(report: Report) -> Markup:
    """Show the main figures as cards."""
    totals = report.totals
    num_gone = totals.records_dropped + totals.records_quarantined
    came = totals.records_in + totals.records_created
    inputs = f"{format_bytes(totals.input_bytes)} in {format_count(totals.input_files, 'file')}"
    if totals.records_created:
        inputs += f"; steps created {totals.records_created:,} more"
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
    balanced = totals.records_out + num_gone == came
    cards.append(
        ("books", "balance" if balanced else "do not balance", f"{came:,} = {totals.records_out:,} + {num_gone:,}")
    )
    return element(
        "dl",
        *(
            element("div", element("dt", name), element("dd", value, element("small", note) if note else None))
            for name, value, note in cards
        ),
        class_="cards",
    )


def make_funnels(report: Report) -> Markup:
    """Show what each step has left of each source, and of all together where they have the same steps."""
    names = sorted(report.books, key=lambda name: (-_count_first(report, name), name))
    parts: list[Markup] = []
    if len(names) > 1 and len({tuple(account.step for account in report.books[name]) for name in names}) == 1:
        total = add_books(report.books[name] for name in names)
        parts.append(_draw_funnel("all sources", total, list(report.sources.values())))
    parts += [_draw_funnel(name, report.books[name], [report.sources[name]]) for name in names[:_MAX_FUNNELS]]
    if len(names) > _MAX_FUNNELS:
        parts.append(
            element("p", f"{len(names) - _MAX_FUNNELS:,} smaller sources are in the books below.", class_="note")
        )
    return element("div", *parts, class_="pair")


def _count_first(report: Report, source: str) -> int:
    books = report.books[source]
    return books[0].records_in if books else 0


def _draw_funnel(name: str, accounts: Sequence[Account], sources: Sequence[SourceMix]) -> Markup:
    largest = max((account.records_in + account.created for account in accounts), default=0)
    bars, rows = [], []
    for account in accounts:
        came = account.records_in + account.created
        lost = came - account.records_out
        text = f"{account.records_out:,}" + (f"  (-{lost:,}, {format_share(lost, came)})" if lost else "")
        bars.append(Bar(account.step, (account.records_out, lost), text, (0, _LOST)))
        rows.append((account.step, f"{came:,}", f"{account.records_out:,}", f"{lost:,}", *_size_cells(account)))
    heads = ("step", "came in", "left", "gone", "text", "tokens")
    title = f"Funnel of {name}"
    legend = [(0, "left"), (_LOST, "gone")]
    picture, note = draw_bars(title, bars, maximum=largest), _name_sizes(accounts, sources)
    return figure(title, "records", picture, heads, rows, legend=legend, note=note)


def _name_sizes(accounts: Sequence[Account], sources: Sequence[SourceMix]) -> str:
    """Say what became of the bytes of sources, such as `6.4 MB of files, 5.9 MB of text, 4.3 MB of it left`.

    Steps after the last one with text hold tokens. If they remove any, only their records can be counted.
    """
    sizes = [(number, account.text_bytes) for number, account in enumerate(accounts, 1) if account.text_bytes]
    input_bytes, tokens = sum(source.input_bytes for source in sources), sum(source.tokens for source in sources)
    has_rows = any(source.rows for source in sources)
    parts = [f"{format_bytes(input_bytes)} of files"] if input_bytes else []
    if sizes:
        number, size = sizes[-1]
        after_text = accounts[number:]
        removes_some = any(account.records_out < account.records_in + account.created for account in after_text)
        parts.append(f"{format_bytes(sizes[0][1])} of text")
        if has_rows and (removes_some or count_left_out_tokens(after_text)):
            parts.append(f"{format_bytes(size)} of it up to {after_text[0].step}")
            parts.append(f"{format_count(accounts[-1].records_out, 'record')} left")
        else:
            parts.append(f"{format_bytes(size if has_rows else 0)} of it left")
    parts += [format_count(tokens, "token")] if tokens else []
    return f"{', '.join(parts)}." if parts else ""


def _size_cells(account: Account) -> tuple[str, str]:
    tokens = account.tokens or account.counters["row_tokens"]
    return (format_bytes(account.text_bytes) if account.text_bytes else "", f"{tokens:,}" if tokens else "")


def make_rules(report: Report) -> Markup | None:
    """Show what each rule has removed, over all sources; None if nothing was removed."""
    removed: dict[tuple[str, str, str], int] = {}
    failed: dict[tuple[str, str], int] = {}
    reached: Counter[str] = Counter()
    for accounts in report.books.values():
        for account in accounts:
            reached[account.step] += account.records_in + account.created
    for steps in report.funnel.values():
        for step in steps:
            for kind, counts in (("dropped", step.dropped), ("quarantined", step.quarantined)):
                for reason, count in counts.items():
                    key = (step.step, reason, kind)
                    removed[key] = removed.get(key, 0) + count
            for reason, count in step.failed.items():
                failed[step.step, reason] = failed.get((step.step, reason), 0) + count
    if not removed:
        return None
    ranked = sorted(removed.items(), key=lambda item: (-item[1], item[0]))
    bars = [
        Bar(
            f"{reason} ({step})",  # a phone shows the beginning
            (count,),
            f"{count:,}  ({format_share(count, reached[step])})",
            (0 if kind == "dropped" else 1,),
        )
        for (step, reason, kind), count in ranked
    ]
    rows: list[Row] = [
        (step, reason, kind, f"{count:,}", format_share(count, reached[step]), f"{failed.get((step, reason), count):,}")
        for (step, reason, kind), count in ranked
    ]
    note = (
        "A record counts once, by the first rule that it broke; shares are of the records that reached the step. "
        "The table also says how many broke the rule at all."
    )
    if len(ranked) > MAX_BARS:
        note += f" The chart has the {MAX_BARS} most frequent rules."
    heads = ("step", "rule", "what happened", "records", "share", "broke it")
    title = "What each rule removed"
    legend = [(0, "dropped"), (1, "quarantined")]
    return figure(title, "records", draw_bars(title, bars), heads, rows, note=note, legend=legend)


def make_mix(report: Report) -> Markup:
    """Show the shares of sources in training, wanted and got, and of languages; and the splits."""
    unit = "tokens" if report.totals.tokens else "rows"
    whole = f"{unit} of {TRAIN}" if TRAIN in report.splits else unit
    names = sorted(report.sources, key=lambda name: (-report.sources[name].share, name))
    is_wanted = any(report.sources[name].wanted_share is not None for name in names)
    bars, rows = [], []
    for name in names:
        source = report.sources[name]
        wanted = source.wanted_share
        text = f"{source.share:.1%}" + ("" if wanted is None else f"  (wanted {wanted:.1%})")
        values = (source.share, wanted or 0.0) if is_wanted else (source.share,)
        bars.append(Bar(name, values, text, (0, 7) if is_wanted else (0,)))
        cells = (f"{source.share:.2%}", "" if wanted is None else f"{wanted:.2%}")
        rows.append((name, f"{source.tokens:,}" if source.tokens else "", f"{source.rows:,}", *cells))
    heads = ("source", "tokens of all splits", "rows of all splits", f"share of {whole}", "wanted")
    note = ""
    if report.wanted_by == "mixture":
        note = "“Wanted” are the weights for training: a stream reads the sources in these shares."
    title = "Sources"
    legend = [(0, f"in {TRAIN}" if TRAIN in report.splits else "in the dataset"), (7, "wanted")] if is_wanted else []
    picture = draw_bars(
        title, bars, is_grouped=is_wanted, maximum=max((max(bar.values) for bar in bars), default=1) or 1
    )
    figures = [figure(title, f"share of {whole}", picture, heads, rows, note=note, legend=legend)]
    figures.append(_draw_shares("Sources as a pie", whole, [(name, report.sources[name].share) for name in names]))
    if report.languages:
        figures += _draw_languages(report)
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
    return join(element("div", *figures, class_="pair"), element("h3", "Splits"), table(heads, splits))


def _draw_languages(report: Report) -> list[Markup]:
    languages = sorted(report.languages, key=lambda entry: (-entry.amount, entry.language))
    total = sum(entry.amount for entry in languages)
    unit = report.lengths.unit if report.lengths is not None else "bytes"
    bars = [Bar(entry.language, (entry.amount,), format_share(entry.amount, total)) for entry in languages]
    rows: list[Row] = [
        (entry.language, f"{entry.amount:,}", f"{entry.documents:,}", format_share(entry.amount, total))
        for entry in languages
    ]
    title = "Languages"
    heads = ("language", unit, "documents", "share")
    shares = [(entry.language, float(entry.amount)) for entry in languages]
    return [
        figure(title, f"share of {unit}", draw_bars(title, bars), heads, rows, note=_name_sample(report)),
        _draw_shares("Languages as a pie", unit, shares),
    ]


def _draw_shares(title: str, unit: str, shares: list[tuple[str, float]]) -> Markup:
    total = sum(value for _, value in shares) or 1.0
    slices = shares[: NUM_COLORS - 1]
    rest = shares[NUM_COLORS - 1 :]
    if rest:
        slices = [*slices, (f"{len(rest)} others", sum(value for _, value in rest))]
    legend = [(number, f"{name} {value / total:.1%}") for number, (name, value) in enumerate(slices)]
    rows: list[Row] = [(name, f"{value / total:.2%}") for name, value in shares]
    return figure(title, f"share of {unit}", draw_pie(title, slices), ("name", "share"), rows, legend=legend)


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
        figures.append(_draw_packing(report))
    return element("div", *figures, class_="pair") if figures else None


def _draw_packing(report: Report) -> Markup:
    bars, rows = [], []
    for source, packing in report.packing.items():
        bars.append(Bar(source, (packing.tokens, packing.padding), f"{packing.filled:.2%} filled", (2, _LOST)))
        cells = (packing.tokens, packing.padding, packing.split_documents, packing.left_out_tokens)
        rows.append((source, f"{packing.rows:,}", *(f"{value:,}" for value in cells), f"{packing.filled:.2%}"))
    row_length = next(iter(report.packing.values())).row_length
    heads = ("source", "rows", "tokens", "padding", "documents split", "tokens left out", "filled")
    title = "Packing"
    legend = [(2, "tokens"), (_LOST, "padding")]
    return figure(title, f"tokens in rows of {row_length:,}", draw_bars(title, bars), heads, rows, legend=legend)


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
    """Show the sizes of clusters of duplicates, and what `decontaminate` found."""
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
    for check in report.decontamination:
        rows = [
            (name, f"{bench.items:,}", f"{bench.found:,}", format_share(bench.found, bench.items))
            for name, bench in check.benchmarks.items()
        ]
        bars = [
            Bar(name, (bench.found,), f"{bench.found:,} of {bench.items:,} items", (4,))
            for name, bench in check.benchmarks.items()
        ]
        title = f"Benchmarks found in documents ({check.action})"
        figures.append(figure(title, "items", draw_bars(title, bars), ("benchmark", "items", "found", "share"), rows))
    return element("div", *figures, class_="pair") if figures else None


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
    return join(element("p", equation, class_="note"), table(heads, rows))


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
    recipe = msgspec.json.format(msgspec.json.encode(report.recipe), indent=2).decode()
    return join(
        element("h3", "Recipe"),
        element("pre", recipe[:100_000], class_="long", tabindex="0"),
        element("h3", "Versions and hashes"),
        table(("what", "value"), hashes),
        element("h3", "Columns"),
        table(("column", "type"), columns),
    )


def _name_sample(report: Report) -> str:
    lengths = report.lengths
    if lengths is None:
        return ""
    return f"Measured on {lengths.documents:,} documents{', a sample' if lengths.is_sample else ', all of them'}."
