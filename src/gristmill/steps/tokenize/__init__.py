"""Documents to token ids. `Tokenize` is what a recipe says, `ResolvedTokenize` what the plan makes of it."""

from gristmill.steps.tokenize.resolved_tokenize import ResolvedTokenize
from gristmill.steps.tokenize.tokenize import Tokenize

__all__ = ["ResolvedTokenize", "Tokenize"]
