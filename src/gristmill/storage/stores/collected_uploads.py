"""Uploads whose end nobody waits for yet: a worker runs its next task meanwhile.

On a store 50 ms away the last parts of an upload and its completion take as long as computing for 10 MB of text.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    class CommittedUpload(Protocol):
        """An upload to which all data was given."""

        def complete(self) -> None:
            """Wait until the store has everything; the object is then visible."""

        def abort(self) -> None:
            """Abort it: nothing remains on the store."""


_COMPLETED_AT_ONCE = 8
_collected: ContextVar[list[CommittedUpload] | None] = ContextVar("collected_uploads", default=None)


class CollectedUploads:
    """Uploads that were committed and are not complete yet: nothing may rely on their objects."""

    def __init__(self, uploads: list[CommittedUpload]) -> None:
        self._uploads = uploads

    def __bool__(self) -> bool:
        return bool(self._uploads)

    def complete(self) -> None:
        """Wait until all objects are visible; raise the first error when none is under way any more."""
        if not self._uploads:
            return
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  (local files need none of it)

        with ThreadPoolExecutor(min(len(self._uploads), _COMPLETED_AT_ONCE)) as pool:
            for future in [pool.submit(upload.complete) for upload in self._uploads]:
                future.result()


@contextmanager
def collect_uploads() -> Iterator[CollectedUploads]:
    """Let `PendingFile.commit(sync=False)` return in this block before the store has everything.

    An object that is committed in the block cannot be read in it. An error in the block aborts what was collected.
    """
    uploads: list[CommittedUpload] = []
    token = _collected.set(uploads)
    try:
        yield CollectedUploads(uploads)
    except BaseException:
        for upload in uploads:
            upload.abort()
        raise
    finally:
        _collected.reset(token)


def collect_upload(upload: CommittedUpload) -> bool:
    """Leave the end of an upload to `collect_uploads`; returns whether somebody collects."""
    uploads = _collected.get()
    if uploads is None:
        return False
    uploads.append(upload)
    return True
