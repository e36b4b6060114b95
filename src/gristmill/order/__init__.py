"""The order of training as pure functions of integers: which sample is at row p, computed for any p directly.

`mixture` decides which source provides a row and which of its draws that is, and `permutation` which record of the
source the draw is. Nothing is stored and nothing counts, so any row can be asked for first.
"""

from gristmill.order.mixture import Mixture
from gristmill.order.permutation import Permutation

ORDER_VERSION = 1
"""The version of permutation and mixture together: a saved state of another version means other rows."""

__all__ = ["ORDER_VERSION", "Mixture", "Permutation"]
