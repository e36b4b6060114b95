"""The reader `mbox`: a mail archive, one record for each message."""

from __future__ import annotations

import mailbox
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def read_mbox(path: str) -> Iterator[dict[str, object]]:
    """Read the messages of an archive that have plain text."""
    archive = mailbox.mbox(path, create=False)
    try:
        for message in archive:
            body = message.get_payload(decode=True)
            if isinstance(body, bytes):  # else it has several parts
                yield {"text": body.decode("utf-8", "replace"), "subject": message.get("Subject", "")}
    finally:
        archive.close()
