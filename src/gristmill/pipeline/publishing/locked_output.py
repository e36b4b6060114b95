"""A lock on the output folder: one run at a time."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from gristmill.pipeline import work_folder
from gristmill.pipeline.publishing import journal
from gristmill.shards.manifests.stored_files import MANIFEST
from gristmill.storage.commit import make_folder
from gristmill.storage.leases.output_lock import hold_output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.storage.leases.output_lock import HeldOutput
    from gristmill.storage.locations import Location


@contextmanager
def lock_output(folder: Location, *, take_over: bool = False) -> Iterator[HeldOutput]:
    """Make and lock a folder, and recover from an interrupted publish. `take_over`: from a run that may be alive."""
    work_folder.check_output_folder(folder)
    make_folder(folder)
    with hold_output(folder, MANIFEST, work_folder.LEASE, take_over=take_over) as held:
        journal.recover_interrupted_publish(folder, held.run_id)
        yield held
