"""What is said about a model beside its file."""

from __future__ import annotations

from typing import Literal

import msgspec

from gristmill.text.tokenizers.files import TokenizerFiles  # noqa: TC001  (msgspec reads it)

Activation = Literal["none", "sigmoid", "softmax"]


class ScorerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A model's file, and which of its numbers is the score."""

    path: str
    label: str | None = None
    tokenizer: TokenizerFiles | None = None
    max_tokens: int = 512
    activation: Activation = "none"
