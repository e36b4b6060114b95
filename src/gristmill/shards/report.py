"""`report.json`: how many documents, bytes of text and tokens each step has left of each source, by the books."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.shards.hugging_face import make_side_files

if TYPE_CHECKING:
    from gristmill.core.books import Account
    from gristmill.shards.manifest import Manifest

REPORT = "report.json"
_VERSION = 1
_FAILED = "failed:"


def make_derived_files(manifest: Manifest) -> dict[str, bytes]:
    """Make all small files that follow from the manifest: path in the dataset's folder -> content."""
    content = msgspec.json.format(msgspec.json.encode(make_report(manifest)), indent=2) + b"\n"
    return {**make_side_files(manifest), REPORT: content}


def make_report(manifest: Manifest) -> dict[str, Any]:
    """Make the report as JSON data."""
    return {
        "report_version": _VERSION,
        "dataset_hash": manifest.dataset_hash,
        "funnel": {
            source: [_describe_account(account) for account in manifest.books[source]]
            for source in sorted(manifest.books)
        },
        **_describe_decontamination(manifest),
        **_describe_scores(manifest),
        "dropped_files": [file.path for file in manifest.dropped],
    }


def _describe_account(account: Account) -> dict[str, Any]:
    """Describe what one step has left, and why the rest is gone: by the first rule that failed, and by all that did."""
    entry: dict[str, Any] = {"step": account.step, "documents": account.records_out}
    if account.text_bytes:
        entry["text_bytes"] = account.text_bytes
    tokens = account.tokens or account.counters["row_tokens"]
    if tokens:
        entry["tokens"] = tokens
    failed = {name.removeprefix(_FAILED): count for name, count in account.counters.items() if name.startswith(_FAILED)}
    for name, counts in (("dropped", account.dropped), ("failed", failed), ("quarantined", account.quarantined)):
        if counts:
            entry[name] = dict(sorted(counts.items()))
    return entry


def _describe_scores(manifest: Manifest) -> dict[str, Any]:
    """Describe the files of scores, with a histogram for each column."""
    if not manifest.scores:
        return {}
    from gristmill.shards.score_file import describe_histograms  # noqa: PLC0415  (few recipes have filters by scores)

    return {
        "scores": [
            {
                "source": file.source,
                "stage": file.stage,
                "file": file.path,
                "documents": file.rows,
                "histograms": describe_histograms(file),
            }
            for file in manifest.scores
        ]
    }


def _describe_decontamination(manifest: Manifest) -> dict[str, Any]:
    if not manifest.decontaminated:
        return {}
    return {"decontamination": [msgspec.to_builtins(step) for step in manifest.decontaminated]}
