"""The splits of a source in the plan: what a `split` step may still cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.core.splits import TRAIN
from gristmill.steps.split import Split

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gristmill.core.records import SourceFile
    from gristmill.core.step import Step


def check_split_steps(files: Iterable[SourceFile], steps: Sequence[Step]) -> None:
    """Refuse a `split` step that makes a split which is there already."""
    splits = {file.split or TRAIN for file in files}
    for step in steps:
        if not isinstance(step, Split):
            continue
        for target in step.targets:
            if target in splits:
                raise UsageError(
                    f"split: there is a split {target} already",
                    help=f"leave {target} out of the step; or give the split another name in the source, or leave it "
                    "out there: split: {train: train}",
                )
        splits.update(step.targets)
