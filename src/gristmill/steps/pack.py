"""`pack`: how documents are packed into rows. The step is a description; `plan_rows` and `fill_rows` do the work."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, get_args

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.step import Step, StepPosition, check_choices

Strategy = Literal["best_fit", "concat", "pad"]
LongDocuments = Literal["split", "truncate", "drop"]

BEST_FIT, CONCAT, PAD = STRATEGIES = get_args(Strategy)
SPLIT, TRUNCATE, DROP = LONG_DOCUMENTS = get_args(LongDocuments)

_MAX_ROW_LENGTH = 1 << 24  # beyond any model's context; the tables of packing are as long as a row


class Pack(Step, tag="pack", frozen=True, kw_only=True):
    """Pack tokenized documents into rows of `row_length` tokens.

    `strategy` is `best_fit` (no document is cut unless it is longer than a row, almost no padding), `concat` (the
    documents of a unit are one stream of tokens, cut into rows: no padding, but most long documents are cut) or `pad`
    (one document a row). `long_documents` says what to do with a document that is longer than a row: `split` it over
    several, `truncate` it to one, or `drop` it. The run fails if less than `min_utilisation` of its rows are tokens.

    With `align: 16` a row has space to pad each of its documents to a multiple of 16 tokens, as context and tensor
    parallelism need it. Documents are stored one after the other, and the space as padding at the end of the row;
    `Collate(align=16)` puts it after each document when batches are made.

    Chats (documents with a loss mask) are never cut in the middle: they cannot be concatenated or split, and long ones
    are dropped by default. A chat without a trained token, or with none left, is dropped too.

    Documents without tokens are dropped as `empty`, with `long_documents: drop` those longer than a row as `too_long`,
    chats without a trained token as `no_trained_tokens`. The column `lengths` says where documents begin and end in a
    row. The books count documents that were split or truncated, and the tokens that truncation removed.

    Units (about 64 MiB of input) are packed separately, so a changed file changes few shards. What does not fill a row
    of a unit is its tail, which is packed again at the end of the source; the books count these rows as `tail_rows`. In
    a finite stream in file order they are the last rows; shuffled streams mix them in.

    * `best_fit`: the tail is at most the 16 emptiest rows of the unit, of those less than 15/16 full, with uncut
      documents.
    * `concat`: the tail is what follows the last full row, less than a row for each split. It does not continue in the
      next unit's first row: the tails of all units of a source, in their order, are one more stream, cut into the last
      rows of the source. So a document that is cut at the last full row of its unit ends in the last shard of the
      source. Above 64 MiB of tails there are several such streams, each in a separate shard; only the last row of each
      is padded.
    * `pad`: there are no tails.

    >>> import numpy as np
    >>> from gristmill.steps.pack_rows import plan_rows
    >>> plan_rows(Pack(row_length=8), np.array([5, 4, 3, 4])).rows()
    [[0, 2], [1, 3]]
    """

    version: ClassVar[int] = 3
    kernel_calls: ClassVar[str] = "gristmill.steps.pack_rows"
    kernel_modules: ClassVar[tuple[str, ...]] = ("gristmill.steps.packing_kernels",)

    row_length: int
    """Tokens in a row, at least 2."""
    strategy: Strategy = "best_fit"
    """`best_fit`, `concat` or `pad`."""
    long_documents: LongDocuments | None = None
    """What becomes of a document longer than a row. None: documents are split, chats are dropped."""
    align: int = 1
    """Leave space to pad each document to a multiple of this many tokens, for context and tensor parallelism; a
    divisor of `row_length`.
    """
    min_utilisation: float | None = None
    """The run fails if less than this share of all places in rows hold tokens: 0.95. None: no limit."""

    def expected_bytes(self, slice_bytes: int) -> int:
        return 2 * slice_bytes  # the ids of a slice, and the rows that they become

    def __post_init__(self) -> None:
        if not 2 <= self.row_length <= _MAX_ROW_LENGTH:
            raise UsageError(
                f"row_length must be from 2 to {_MAX_ROW_LENGTH:,}, not {self.row_length}",
                help="use the length of your model's context, such as 2048",
            )
        check_choices(type(self), msgspec.structs.asdict(self))
        if self.align < 1 or self.row_length % self.align:
            raise UsageError(
                f"align must be a divisor of row_length ({self.row_length}), not {self.align}",
                help="for example 16, or the least common multiple that your parallelism needs",
            )
        if self.align > 1 and self.strategy == CONCAT:
            raise UsageError(
                "pack: align cannot be kept by strategy concat, which cuts documents anywhere", help="use best_fit"
            )
        share = self.min_utilisation
        if share is not None and not (0 <= share <= 1 and math.isfinite(share)):
            raise UsageError(f"min_utilisation must be from 0 to 1, not {share}", help="for 95 % write 0.95")

    def check_position(self, position: StepPosition) -> None:
        if not position.is_common or position.following not in ((), ("write",)):
            raise UsageError(f"{position.key}: pack must be the last of the common steps; only write may follow it")

    def to_chat_form(self) -> Pack:
        """Return the step for chats; raises `UsageError` if it would cut them."""
        if self.strategy == CONCAT:
            raise UsageError(
                "pack: strategy concat cuts chats in the middle", help="use best_fit, or pad for one chat a row"
            )
        if self.long_documents == SPLIT:
            raise UsageError(
                "pack: long_documents: split cuts chats in the middle",
                help="use drop (the default for chats) or truncate, or shorten them turn by turn: max_tokens of render",
            )
        return self if self.long_documents is not None else msgspec.structs.replace(self, long_documents=DROP)
