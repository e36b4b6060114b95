"""The step `balance`: a global step, which must have seen all records. Its barrier does the work."""

from __future__ import annotations

from gristmill.core.step import GlobalStep


class Balance(GlobalStep, tag="balance", frozen=True, kw_only=True):
    """Keep as many training records of each source as the smallest source has: the first ones."""
