"""Streaming at training time: rows, batches and exact resume. It needs only `shards` and `order`.

`stream` holds `Stream`; what it knows of its position and state is in `resumable`. `lanes` says which stored row each
row of the stream is, `rows` reads it, `collate` makes the arrays of a batch, with the kernels of `stream_kernels` on
the mapped files of `mapped_memory`. `torch` and `trainers` put batches into the loops of other libraries. `accounting`
counts them; `examine` and `read_plan` answer questions about a stream without a training.
"""

from gristmill.core.token_kinds import TOKEN_KINDS
from gristmill.stream.accounting import Accounting
from gristmill.stream.collate import Batch, Collate
from gristmill.stream.lanes.arguments import Cache, Samples
from gristmill.stream.stream import Stream

__all__ = ["TOKEN_KINDS", "Accounting", "Batch", "Cache", "Collate", "Samples", "Stream"]
