"""The order of training as pure functions of integers: which sample is at row p, computed for any p directly."""

from gristmill.order.mixture import Mixture
from gristmill.order.permutation import Permutation

ORDER_VERSION = 1
"""The version of permutation and mixture together: a saved state of another version means other rows."""

__all__ = ["ORDER_VERSION", "Mixture", "Permutation"]
