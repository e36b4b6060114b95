"""The walk down the tree of labels, compiled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SMALL = 1e-5
_DEEPER = 1e-3
"""More than `log(1 + _SMALL)` for each step down the tree: by this much a leaf may be likelier than a node above it."""


@kernel
def _compute_right_probability(mean: NDArray[np.float64], node: NDArray[np.float64]) -> float:
    """Compute the probability of the right child of a node."""
    dot = 0.0
    for column in range(len(node)):
        dot += mean[column] * node[column]
    return 1.0 / (1.0 + math.exp(-dot))


@kernel
def choose_labels(
    sums: NDArray[np.int64],
    counts: NDArray[np.int64],
    scale: float,
    nodes: NDArray[np.float64],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    mean: NDArray[np.float64],
    logs: NDArray[np.float64],
    labels: NDArray[np.int32],
    scores: NDArray[np.float64],
) -> None:
    """Find the most likely leaf of the tree for each document, and its probability.

    Node i has the children `left[i]` and `right[i]`: numbers below the number of leaves are labels, others are nodes,
    counted from there. Always going to the likelier child leads to a first leaf. Subtrees of nodes that are less likely
    than it cannot hold a better one and are skipped.
    """
    num_leaves = len(left) + 1
    for document in range(len(sums)):
        for column in range(len(mean)):
            mean[column] = sums[document, column] / (counts[document] * scale)
        best, at_least = 2 * num_leaves - 2, 0.0
        while best >= num_leaves:
            share = _compute_right_probability(mean, nodes[best - num_leaves])
            at_least += math.log(max(share, 1.0 - share) + _SMALL)
            best = right[best - num_leaves] if share > 0.5 else left[best - num_leaves]
        logs[2 * num_leaves - 2] = 0.0
        for node in range(num_leaves - 2, -1, -1):
            so_far = logs[num_leaves + node]
            if so_far < at_least - _DEEPER:
                logs[left[node]] = logs[right[node]] = so_far
                continue
            share = _compute_right_probability(mean, nodes[node])
            logs[left[node]] = so_far + math.log(1.0 - share + _SMALL)
            logs[right[node]] = so_far + math.log(share + _SMALL)
        for leaf in range(num_leaves):
            if logs[leaf] > logs[best]:
                best = leaf
        labels[document] = best
        scores[document] = math.exp(logs[best])
