"""The contests, by group: every row of the table of figures, and what else the README and the documents claim.

A contest is data: sides and claims. To add one, add it to its group's list, or a group to `GROUPS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.contests import (
    chats,
    curation,
    dedup,
    documents,
    pack,
    quality,
    recipe,
    samples,
    seeing,
    stages,
    start,
    stream,
    tokenize,
)

if TYPE_CHECKING:
    from benchmarks.harness.contest import Contest, Setting


def list_contests(setting: Setting) -> dict[str, list[Contest]]:
    """Return all contests by group; those of chats depend on the user's files."""
    return {
        "start": start.CONTESTS,
        "tokenize": tokenize.CONTESTS,
        "documents": documents.CONTESTS,
        "chats": chats.list_contests(setting),
        "quality": quality.CONTESTS,
        "recipe": recipe.CONTESTS,
        "dedup": dedup.CONTESTS,
        "curation": curation.CONTESTS,
        "pack": pack.CONTESTS,
        "stream": stream.CONTESTS,
        "samples": samples.CONTESTS,
        "seeing": seeing.CONTESTS,
        "stages": stages.CONTESTS,
    }
