"""Where receipts are kept: in a file, or on a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.pipeline.stages.receipt_log.receipts import Receipts
from gristmill.storage.commit import is_lease_epoch

if TYPE_CHECKING:
    from collections.abc import Callable

    from gristmill.storage.locations import Location


def open_receipts(path: Location, run_id: str, check_lease: Callable[[], object]) -> Receipts:
    """Open the receipts of an output folder, wherever it is.

    Where several machines can reach it, a run that was replaced may go on for a while, so no two runs may append to one
    file, not even on a file system that could.
    """
    if isinstance(path, Path) and not is_lease_epoch(run_id):
        return Receipts(path)
    from gristmill.pipeline.stages.receipt_log.uploaded_receipts import UploadedReceipts  # noqa: PLC0415  (most outputs are local)

    return UploadedReceipts(path, run_id, check_lease)
