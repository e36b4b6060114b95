"""Documents to token ids. A recipe has a `Tokenize`, which the plan resolves to a `ResolvedTokenize`."""

from gristmill.steps.tokenize.tokenize import ResolvedTokenize, Tokenize

__all__ = ["ResolvedTokenize", "Tokenize"]
