"""The order of training as pure functions of integers: which sample comes at row p, for any p at once."""

from gristmill.order.mixture import Mixture
from gristmill.order.permutation import Permutation

ORDER_VERSION = 1
"""Of the permutation and the mixture together: a state of another version means other rows."""

__all__ = ["ORDER_VERSION", "Mixture", "Permutation"]
