"""Loading a tokenizer in a worker before a plan asks for it: 0.3 s for both engines and 50,000 tokens."""

from __future__ import annotations

from gristmill.text.tokenizers import find_tokenizer, load_engine
from gristmill.text.tokenizers.engines.engine import FAST, REFERENCE


def load_ahead(tokenizer: str, folder: str, engine: str | None, *, specials_as_text: bool) -> None:
    """Load the engines that `tokenize` will probably ask for. Raises as loading does: the plan says what is wrong."""
    files = find_tokenizer(tokenizer, folder)
    loaded = load_engine(files, REFERENCE, specials_as_text=specials_as_text)
    if engine != REFERENCE:
        loaded = load_engine(files, FAST, specials_as_text=specials_as_text)
    loaded.facts  # noqa: B018  (read once, and kept)
