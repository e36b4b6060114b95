"""Sections of the page with records or measured numbers: samples, diffs, clusters, time and memory, sliders."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from dataclasses import dataclass
from heapq import nlargest
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.quantities import format_bytes, format_count, format_share
from gristmill.report.charts import Bar, draw_bars, figure
from gristmill.report.markup import Markup, element, join, make_tabs, table
from gristmill.report.overview import draw_meter

if TYPE_CHECKING:
    from collections.abc import Callable

    from gristmill.report.markup import Row
    from gristmill.report.model import Report, RuleCurve, RunTimes, ShownCluster, ShownRecord, StepCurves, WorkerTimes


_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_MAX_DIFF_WORDS = 2000
_MAX_USES = 64
_MAX_JOBS = 10
_SHORT_SECONDS = 0.1
"""Jobs that took less, and those beyond the longest ones, are shown together."""
_NODE_LETTERS = 8
_KEEP_SOME = "The run did not keep any. With “keep_dropped: samples” in the recipe, some are kept for each rule."
_EXPLANATION = (
    "Move a slider to see what another threshold would keep. For one rule the number is exact; for all rules of a step "
    "together it is counted in a sample, with its 95 % error. Later steps are not run again: what they would do "
    "is not included."
)


def make_samples(report: Report) -> Markup:
    """Show the samples of each kind, one kind at a time."""
    samples = report.samples
    if samples is None or not samples.wanted:
        return element("p", "This report holds no records: it was made with samples: 0.", class_="note")
    no_changes = "No text was changed." if report.recipe.get("keep_dropped") else _KEEP_SOME
    kinds = [
        ("kept", "Kept", list(map(_show_sample, samples.kept)), "The dataset has no records."),
        ("dropped", "Dropped", list(map(_show_sample, samples.dropped)), _explain_no_drops(report)),
        ("changed", "Changed", list(map(_show_change, samples.changed)), no_changes),
        ("quarantined", "Quarantined", list(map(_show_sample, samples.quarantined)), "Nothing was quarantined."),
        ("clusters", "Duplicates", _show_clusters(report), "No duplicates were removed."),
    ]
    panels = [
        (name, f"{title} ({len(items)})", join(*(items or [element("p", empty, class_="note")])))
        for name, title, items, empty in kinds
    ]
    return make_tabs("samples", "Samples", panels)


def _explain_no_drops(report: Report) -> str:
    if not (report.totals.records_dropped or report.dropped_files):
        return "Nothing was dropped."
    if report.recipe.get("keep_dropped"):
        return "The run kept none of the records that its steps dropped; “gristmill trace” looks for one of them."
    return _KEEP_SOME


def _show_sample(sample: ShownRecord) -> Markup:
    rules = [_describe_rule(name, value, sample.thresholds.get(name)) for name, value in sample.failed.items()]
    reason = f"{sample.step}: {sample.reason}" if sample.step else ""
    length = f"{sample.num_characters:,} characters, the first {len(sample.text):,}" if sample.num_characters else ""
    header = [
        element("b", reason) if reason else None,
        *(element("span", rule) for rule in rules),
        element("span", sample.split) if sample.split else None,
        element("span", sample.place),
        element("span", f"{sample.num_alike:,} records with this error") if sample.num_alike > 1 else None,
        element("span", length) if length else None,
    ]
    texts = [element("pre", sample.text, tabindex="0")]
    if sample.spans:
        pieces = [element("ins", text) if is_trained else text for text, is_trained in sample.spans]
        texts = [element("pre", *pieces, tabindex="0", title="marked: trained")]
    if sample.passage:
        texts = [
            element("pre", sample.item, tabindex="0"),
            element("pre", sample.before, element("mark", sample.passage), sample.after, tabindex="0"),
        ]
    pictures = [element("img", src=address, alt="") for address in sample.pictures]
    return element("article", element("header", *header), *pictures, *texts, class_="sample")


def _describe_rule(name: str, value: Any, threshold: Any) -> str:
    """Describe a broken rule: `min_words 12 (limit 50)`."""
    shown = "" if value is True else f" {_format_value(value)}"
    return f"{name}{shown}" + ("" if threshold is None else f" (limit {_format_value(threshold)})")


def _format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:200]


def _show_change(sample: ShownRecord) -> Markup:
    header = element("header", element("b", sample.step), element("span", sample.place))
    difference = element("pre", *make_diff(sample.before, sample.after), tabindex="0")
    return element("article", header, difference, class_="sample")


def make_diff(before: str, after: str) -> list[Markup]:
    """Mark what differs between two texts, word by word.

    >>> "".join(make_diff("one two", "one 2"))
    'one <del>two</del><ins>2</ins>'
    """
    old, new = _WORDS.findall(before)[:_MAX_DIFF_WORDS], _WORDS.findall(after)[:_MAX_DIFF_WORDS]
    parts: list[Markup] = []
    for kind, old_start, old_end, new_start, new_end in difflib.SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        if kind == "equal":
            parts.append(join("".join(old[old_start:old_end])))
            continue
        if old_end > old_start:
            parts.append(element("del", "".join(old[old_start:old_end])))
        if new_end > new_start:
            parts.append(element("ins", "".join(new[new_start:new_end])))
    return parts


def _show_clusters(report: Report) -> list[Markup]:
    return [_show_cluster(cluster) for cluster in (report.samples.clusters if report.samples is not None else [])]


def _show_cluster(cluster: ShownCluster) -> Markup:
    """Show the document that was kept, and removed ones with the words in which they differ from it."""
    survivor, *removed = cluster.samples
    parts: list[Markup] = []
    for number, text in enumerate(removed):
        similarity = f", similarity {cluster.similarities[number]:.3f}" if number < len(cluster.similarities) else ""
        same = " The part that is shown is the same." if text == survivor else ""
        parts.append(element("p", f"removed{similarity}.{same}", class_="note"))
        parts.append(element("pre", *make_diff(survivor, text), tabindex="0"))
    header = element(
        "header",
        element("b", format_count(cluster.size, "document")),
        element("span", f"{cluster.source}:{cluster.path.rpartition('/')[2]}@{cluster.position} was kept"),
    )
    pictures = [element("img", src=address, alt="") for address in cluster.pictures]
    return element("article", header, *pictures, element("pre", survivor, tabindex="0"), *parts, class_="sample")


def make_times(run: RunTimes | None) -> Markup:
    """Show time and memory by stage, worker and node."""
    if run is None:
        return element("p", "Not measured: the report was made after the run.", class_="note")
    longest = max((job.seconds for job in run.jobs), default=0) or 1
    slow = nlargest(_MAX_JOBS, run.jobs, key=lambda job: job.seconds)
    shown = [job for job in run.jobs if job in slow and job.seconds >= _SHORT_SECONDS] or run.jobs[:1]
    rows: list[Row] = [
        (
            job.name,
            draw_meter([(job.seconds / longest, 6, f"{job.seconds:,.2f} s")]),
            f"{job.seconds:,.2f}",
            f"{job.tasks:,}",
            f"{job.records:,}" if job.records else "",
            f"{job.bytes / 1e6 / job.seconds:,.1f}" if job.bytes and job.seconds else "",
            f"{sum(worker.cpu_seconds for worker in job.workers):,.2f}",
            f"{job.deaths:,}" if job.deaths else "",
        )
        for job in shown
    ]
    if others := [job for job in run.jobs if job not in shown]:
        seconds, tasks = sum(job.seconds for job in others), sum(job.tasks for job in others)
        cpu_seconds = sum(worker.cpu_seconds for job in others for worker in job.workers)
        deaths = sum(job.deaths for job in others)
        name = f"{len(others)} shorter jobs"
        rows.append(
            (name, "", f"{seconds:,.2f}", f"{tasks:,}", "", "", f"{cpu_seconds:,.2f}", f"{deaths:,}" if deaths else "")
        )
    heads = ("job", "", "seconds", "tasks", "records", "MB/s of input", "CPU seconds", "worker deaths")
    note = f"{run.seconds:,.2f} s in all, planning not included; backend {run.backend}, finished {run.finished}."
    has_nodes = any(worker.node for job in run.jobs for worker in job.workers)
    nodes = _show_uses(run, "node", "largest memory of its workers together", _name_node) if has_nodes else None
    workers = _show_uses(run, "worker", "largest resident memory", _name_worker)
    return join(
        element("p", note, class_="note"),
        table(heads, rows),
        element("details", element("summary", "Memory"), element("div", nodes, workers, class_="pair")),
    )


def _name_node(worker: WorkerTimes) -> str:
    return f"{worker.host} ({worker.node[:_NODE_LETTERS]})" if worker.node else "the machine of the run"


def _name_worker(worker: WorkerTimes) -> str:
    return f"{worker.name}, node {worker.node[:_NODE_LETTERS]}" if worker.node else worker.name


@dataclass
class _Use:
    peak_bytes: int = 0
    cpu_seconds: float = 0.0
    tasks: int = 0


def _show_uses(run: RunTimes, what: str, unit: str, name_of: Callable[[WorkerTimes], str]) -> Markup:
    """Show memory, CPU time and tasks of all workers, those with the same name together."""
    uses: dict[str, _Use] = {}
    for job in run.jobs:
        peaks: Counter[str] = Counter()
        for worker in job.workers:
            name = name_of(worker)
            peaks[name] += worker.peak_bytes
            use = uses.setdefault(name, _Use())
            use.cpu_seconds += worker.cpu_seconds
            use.tasks += worker.tasks
        for name, peak in peaks.items():
            uses[name].peak_bytes = max(uses[name].peak_bytes, peak)
    shown, note = list(uses.items()), ""
    if len(shown) > _MAX_USES:
        shown = nlargest(_MAX_USES, shown, key=lambda item: item[1].peak_bytes)
        note = f"The {_MAX_USES} with most memory of {len(uses):,}; report.json has all."
    rows: list[Row] = [(name, _show_memory(use), f"{use.cpu_seconds:,.2f}", f"{use.tasks:,}") for name, use in shown]
    bars = [Bar(name, (use.peak_bytes,), _show_memory(use), (5,)) for name, use in shown]
    title = f"Memory by {what}"
    heads = (what, "largest memory", "CPU seconds", "tasks")
    return figure(title, unit, draw_bars(title, bars), heads, rows, note=note)


def _show_memory(use: _Use) -> str:
    return format_bytes(use.peak_bytes) if use.peak_bytes else "not measured"


def make_sliders(report: Report) -> Markup | None:
    """Make the sliders of all steps; None where the run kept no scores."""
    if not report.curves:
        return None
    numbered = list(enumerate(report.curves))
    steps = dict.fromkeys(curves.step for curves in report.curves)
    groups = [_make_group([(number, curves) for number, curves in numbered if curves.step == step]) for step in steps]
    return join(element("p", _EXPLANATION, class_="note"), *groups)


def _make_group(blocks: list[tuple[int, StepCurves]]) -> Markup:
    """Make the sliders of a step; where languages have separate thresholds, one block for each, and a choice."""
    step, others = blocks[0][1].step, blocks[0][1].others
    names = [(number, curves.language or "all others", curves.documents) for number, curves in blocks]
    choice = note = None
    if len(blocks) > 1 or blocks[0][1].language:
        options = [element("option", f"{name} ({documents:,})", value=number) for number, name, documents in names]
        choice = element(
            "label", "Language ", element("select", *options, aria_label=f"language of {step}"),
            class_="field language", hidden=True,
        )  # fmt: skip
    if others:
        text = f"{format_count(others, 'document')} in other languages with separate thresholds have no slider here."
        note = element("p", text, class_="note")
    body = [_make_step(number, curves) for number, curves in blocks]
    return element("div", element("h3", step), choice, note, *body, class_="step")


def _make_step(number: int, step: StepCurves) -> Markup:
    """Make the sliders of one step. The script finds its numbers in data attributes."""
    sliders = [_make_slider(f"slider-{number}-{index}", step, rule) for index, rule in enumerate(step.rules)]
    rows: list[Row] = [
        (
            rule.name,
            _format_threshold(rule.threshold),
            f"{rule.documents[rule.position]:,}",
            format_share(rule.documents[rule.position], step.documents),
        )
        for rule in step.rules
    ]
    together = element("p", "All rules together: ", element("output", "", class_="together"), hidden=True)
    changes = element(
        "p",
        "In the recipe: ",
        element("code", ""),
        " ",
        element("button", "Reset", type="button"),
        class_="changes",
        hidden=True,
    )
    language = f" in {step.language}" if step.language else ""
    return element(
        "div",
        element("p", f"{format_count(step.documents, 'document')}{language} to decide about.", class_="quiet"),
        together,
        changes,
        element("div", *sliders, class_="sliders"),
        *(_show_border(rule) for rule in step.rules if rule.examples),
        element(
            "details", element("summary", "Table"), table(("rule", "threshold", "kept by it alone", "share"), rows)
        ),
        class_="thresholds",
        data_step=step.step,
        data_language=step.language or None,
        data_block=number,
        data_documents=step.documents,
        data_count=step.sample_documents,
        data_sample=step.sample,
    )


def _show_border(rule: RuleCurve) -> Markup:
    """Show the texts whose scores are just below and just above a threshold."""
    rows: list[Row] = [
        (
            element("span", f"{entry.value:.6g}", class_="" if entry.is_kept else "bad"),
            "kept" if entry.is_kept else "dropped",
            element("div", entry.text, class_="border"),
            entry.place,
        )
        for entry in rule.examples
    ]
    title = f"Texts near {rule.name} {_format_threshold(rule.threshold)}"
    return element(
        "details", element("summary", title), table((rule.name, "", "text in the input", "place"), rows, words=4)
    )


def _make_slider(name: str, step: StepCurves, rule: RuleCurve) -> Markup:
    numbers = msgspec.json.encode({"thresholds": rule.thresholds, "documents": rule.documents}).decode()
    num_documents = rule.documents[rule.position]
    kept_share = (
        f"{_format_threshold(rule.threshold)} keeps {num_documents:,} ({format_share(num_documents, step.documents)})"
    )
    slider = element(
        "input",
        type="range",
        id=name,
        min=0,
        max=len(rule.thresholds) - 1,
        value=rule.position,
        data_position=rule.position,
        data_rule=rule.name,
        data_numbers=numbers,
    )
    return element(
        "div",
        element("label", rule.name, for_=name),
        element("output", kept_share, for_=name),
        element("div", class_="histogram"),
        slider,
        class_="slider",
    )


def _format_threshold(value: float) -> str:
    """Format a threshold as the script does, with all of its digits.

    >>> _format_threshold(1_000_000.0), _format_threshold(0.25)
    ('1000000', '0.25')
    """
    return str(int(value) if value.is_integer() else value)
