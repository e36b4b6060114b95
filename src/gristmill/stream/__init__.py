"""Training time: rows, batches, resume. Needs only shards and order."""

from gristmill.stream.collate import Batch, Collate
from gristmill.stream.stream import Stream

__all__ = ["Batch", "Collate", "Stream"]
