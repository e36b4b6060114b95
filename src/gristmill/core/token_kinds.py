"""The kinds of tokens: who wrote a token of a chat, or what else it stands for.

A kind is a number below 16, so that it fits into four bits next to the length of a run (`shards/token_rows.py`). What
an answer consists of (`WRITTEN`) is the model's: exactly these tokens are trained unless a recipe says otherwise.
"""

from __future__ import annotations

from typing import Any

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError

TOKEN_KINDS = (
    *("template", "document", "pretokenized", "padding", "system", "user", "result"),
    *("assistant", "reasoning", "call", "end", "image", "context"),
)
"""The names of kinds, by number."""
TEMPLATE, DOCUMENT, PRETOKENIZED, PADDING, SYSTEM, USER, RESULT = range(7)
ASSISTANT, REASONING, CALL, END, IMAGE, CONTEXT = range(7, len(TOKEN_KINDS))
WRITTEN = (ASSISTANT, REASONING, CALL, END)
"""The kinds of an answer that is trained by default. An answer that is not, such as one with `train: false`, is all
`CONTEXT`: no choice of the kinds of an answer trains it."""
KIND_BITS = 15
"""The bits of a kind in a code, next to `TRAINED`."""
TRAINED = 16
"""The bit of a code that says that the token is trained."""
CODE_BITS = 5
"""The bits of both. Above them is the number of the token's weight, from 1 on; 0: the weight is 1."""
MAX_WEIGHTS = (1 << 11) - 1
"""The most different weights of a chat: codes with weights have 16 bits."""


def check_kinds(name: str, kinds: Any) -> tuple[str, ...]:
    """Check the names of kinds; `name` is the argument's."""
    if isinstance(kinds, str):
        raise UsageError(f'{name} must be a list of kinds: ["{kinds}"]')
    for kind in kinds:
        check_choice(name, kind, TOKEN_KINDS)
    return tuple(kinds)
