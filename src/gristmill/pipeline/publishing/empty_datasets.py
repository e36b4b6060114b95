"""Runs that leave no record: an empty dataset is never made by accident.

`allow_empty: true` in the recipe, or a `--limit`, allows it. Neither is part of any fingerprint, so a run that was
refused is published by the next one from its receipts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.errors import EmptyDatasetError
from gristmill.core.splits import TRAIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gristmill.core.books import Account
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.planning.sources.source_plan import SourcePlan
    from gristmill.shards.manifests.manifest import Manifest


def refuse_empty(plan: Plan, books: Mapping[str, Sequence[Account]]) -> None:
    """Raise `EmptyDatasetError` for a run that leaves nothing, unless that was allowed."""
    if plan.recipe.allow_empty or plan.is_limited:
        return
    losses = "; ".join(f"{_describe_last_loss(accounts)} (source {name})" for name, accounts in books.items())
    raise EmptyDatasetError(
        f"no record is left: {losses}",
        help="check that step or the files, or write allow_empty: true to make an empty dataset; what is done is kept",
    )


def list_empty_warnings(plan: Plan, manifest: Manifest) -> tuple[str, ...]:
    """List a warning for each source and split without a record, in a dataset that has some."""
    rows: dict[str, int] = {}
    for split, _, shard in manifest.shards():
        rows[split] = rows.get(split, 0) + shard.rows
    if not any(rows.values()):
        return ()
    sources = [
        f"source {name} is empty: {_describe_last_loss(accounts)}"
        for name, accounts in manifest.books.items()
        if not accounts or accounts[-1].records_out == 0
    ]
    expected = {TRAIN: None, **{split: None for source in plan.sources for split in _list_expected_splits(source)}}
    return (*sources, *(f"split {split} is empty" for split in expected if not rows.get(split)))


def _list_expected_splits(source: SourcePlan) -> list[str]:
    """List the splits that records of a source should be in."""
    splits = [*(file.split for file in source.files if file.split), *source.empty_splits]
    splits += [split for stage in source.stages for step in stage.all_steps for split in step.splits_added()]
    return splits


def _describe_last_loss(accounts: Sequence[Account]) -> str:
    """Describe which step removed the last records, and by which rules."""
    last = next((account for account in reversed(accounts) if account.records_in and not account.records_out), None)
    if last is None:
        return "there was none to read" if not any(account.records_in for account in accounts) else "none became a row"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in (last.dropped + last.quarantined).most_common(5))
    verb = "dropped" if last.dropped else "quarantined"
    return f"step {last.step} {verb} the last {last.records_in:,} ({reasons})"
