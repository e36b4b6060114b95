"""Streaming at training time: rows, batches and exact resume. It needs only `shards` and `order`."""

from gristmill.stream.accounting import Accounting
from gristmill.stream.batches.collate import Batch, Collate
from gristmill.stream.stream import Stream

__all__ = ["Accounting", "Batch", "Collate", "Stream"]
