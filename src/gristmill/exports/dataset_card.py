"""The card of an exported dataset: what is in it, how it came about, and who may use it, for the Hub's README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from gristmill.shards.derived_files import make_report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gristmill.shards.manifest import Manifest

CARD = "README.md"
_UNKNOWN = "not stated"


def make_card(
    name: str, manifest: Manifest, rows: Mapping[str, int], data_files: Mapping[str, str], licences: Mapping[str, str]
) -> str:
    """Make the card.

    Args:
        name: The title.
        manifest: The manifest of the dataset.
        rows: The number of rows in each split.
        data_files: For each split, a pattern of its files.
        licences: The licence of each source that has one.
    """
    sources = sorted(manifest.books)
    head: dict[str, object] = {
        "configs": [
            {"config_name": "default", "data_files": [{"split": s, "path": path} for s, path in data_files.items()]}
        ],
        "tags": ["gristmill"],
    }
    if known := {licences.get(source, _UNKNOWN) for source in sources} - {_UNKNOWN}:
        head["license"] = known.pop() if len(known) == 1 and len(licences) >= len(sources) else "other"
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n\n# {name}",
        f"Made with Gristmill: {manifest.kind}.",
        _make_table(["split", "rows"], [[split, f"{count:,}"] for split, count in rows.items()]),
        "## From the sources to the dataset",
        _make_funnel(manifest),
    ]
    if manifest.mixture:
        weights = [[source, f"{weight:g}"] for source, weight in manifest.mixture.items()]
        parts += ["## Mixture", "The weights of the sources in training.", _make_table(["source", "weight"], weights)]
    if manifest.mixed:
        shares = [
            [split, source, f"{share.rows:,}"]
            for split, split_shares in manifest.mixed.items()
            for source, share in split_shares.items()
        ]
        parts += ["## Shares", _make_table(["split", "source", "rows"], shares)]
    parts += [
        "## Licences",
        _make_table(["source", "licence"], [[source, licences.get(source, _UNKNOWN)] for source in sources]),
        "## Identity",
        _make_table(
            ["", ""],
            [
                ["dataset hash", f"`{manifest.dataset_hash}`"],
                ["recipe hash", f"`{manifest.fingerprint}`" if manifest.fingerprint else "not known"],
                *([library, version] for library, version in sorted(manifest.versions.items())),
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _make_funnel(manifest: Manifest) -> str:
    """Make the table of what each step has left of each source, and why the rest is gone."""
    lines = []
    for source, steps in make_report(manifest).funnel.items():
        for step in steps:
            reasons = {**step.dropped, **step.quarantined}
            losses = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
            tokens = f"{step.tokens:,}" if step.tokens else ""
            lines.append([source, step.step, f"{step.documents:,}", tokens, losses])
    return _make_table(["source", "step", "records", "tokens", "gone"], lines)


def _make_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows
    )
