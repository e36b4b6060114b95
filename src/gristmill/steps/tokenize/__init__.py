"""Documents to token ids. `Tokenize` is what a recipe says, `Encode` what the plan makes of it."""

from gristmill.steps.tokenize.encode import Encode
from gristmill.steps.tokenize.tokenize import Tokenize

__all__ = ["Encode", "Tokenize"]
