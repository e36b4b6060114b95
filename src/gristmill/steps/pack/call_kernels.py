"""One call of every compiled function of packing, so that a run compiles them before its workers start."""

import numpy as np

from gristmill.steps.pack.pack import Pack
from gristmill.steps.pack.rows import count_trained_tokens, fill_rows, plan_rows


def call_kernels() -> None:
    """Pack three documents into rows of 4 tokens."""
    lengths, offsets = np.array([3, 1, 2]), np.array([0, 3, 4, 6])
    packing = plan_rows(Pack(row_length=4), lengths)
    for kind in (np.uint16, np.uint32, np.uint8):  # ids of both widths, and marks
        fill_rows([np.arange(6, dtype=kind)], offsets, packing, 4, 0)
    count_trained_tokens(np.ones(6, dtype=np.bool_), offsets, lengths, 4)
