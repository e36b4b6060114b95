"""The section of threshold sliders: one for each rule, and what all rules of a step would keep together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gristmill.core.quantities import format_count
from gristmill.report.markup import Markup, element, join, table

if TYPE_CHECKING:
    from gristmill.report.markup import Row
    from gristmill.report.model import Report, RuleCurve, StepCurves

_EXPLANATION = (
    "Move a slider to see what another threshold would keep. For one rule the number is exact; for all rules of a step "
    "together it is counted in a sample, with its 95 % error. Later steps are not run again: what they would do "
    "is not included."
)


def make_sliders(report: Report) -> Markup | None:
    """Make the sliders of all steps; None where the run kept no scores."""
    if not report.curves:
        return None
    return join(
        element("p", _EXPLANATION, class_="note"),
        *(_make_step(number, step) for number, step in enumerate(report.curves)),
    )


def _make_step(number: int, step: StepCurves) -> Markup:
    """Make the sliders of one step. The script finds its numbers in data attributes."""
    sliders = [_make_slider(f"slider-{number}-{index}", step, rule) for index, rule in enumerate(step.rules)]
    rows: list[Row] = [
        (
            rule.name,
            _format_threshold(rule.threshold),
            f"{rule.documents[rule.position]:,}",
            f"{rule.documents[rule.position] / step.documents:.1%}",
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
    return element(
        "div",
        element("h3", f"{step.step}: {format_count(step.documents, 'document')} reached it"),
        *sliders,
        together,
        changes,
        element(
            "details", element("summary", "Table"), table(("rule", "threshold", "kept by it alone", "share"), rows)
        ),
        class_="thresholds",
        data_step=step.step,
        data_documents=step.documents,
        data_count=step.sample_documents,
        data_sample=step.sample,
    )


def _make_slider(name: str, step: StepCurves, rule: RuleCurve) -> Markup:
    numbers = msgspec.json.encode({"thresholds": rule.thresholds, "documents": rule.documents}).decode()
    num_documents = rule.documents[rule.position]
    kept_share = f"{_format_threshold(rule.threshold)} keeps {num_documents:,} ({num_documents / step.documents:.1%})"
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
        slider,
        element("output", kept_share, for_=name),
        class_="slider",
    )


def _format_threshold(value: float) -> str:
    """Format a threshold as the script does, with all of its digits.

    >>> _format_threshold(1_000_000.0), _format_threshold(0.25)
    ('1000000', '0.25')
    """
    return str(int(value) if value.is_integer() else value)
