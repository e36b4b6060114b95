"""A global step that gristmill does not know: every n-th record of all sources together."""

from gristmill.core.step import GlobalStep


class EveryNth(GlobalStep, tag="every_nth", frozen=True, kw_only=True):
    """Keep the records number 0, n, 2n, … of all sources, counted in the order of the sources and their files."""

    n: int
