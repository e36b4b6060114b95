"""One interface to both engines: texts in, flat ids and offsets out.

The reference makes a Python list of ids for each document. The fast engine makes two buffers for all, and reads only
`list[str]` (not bytes, not Arrow). Neither runs the tokenizer's post-processor: the step `tokenize` alone decides which
tokens begin and end a document.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from threading import get_ident
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from gristmill.core.names import check_choice
from gristmill.runtime.loaded_content import TOKENIZER, forget_content, load_once
from gristmill.storage.installed_versions import find_version
from gristmill.text.tokenizers.facts import TokenizerFacts, read_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gristmill.text.tokenizers.files import TokenizerFiles

REFERENCE = "tokenizers"
FAST = "fastokens"
ENGINES = {
    REFERENCE: ("gristmill.text.tokenizers.engines.reference", "ReferenceEngine"),
    FAST: ("gristmill.text.tokenizers.engines.fast", "FastEngine"),
}
_MAX_KEPT = 2


class Engine:
    """A loaded tokenizer that encodes and decodes texts."""

    name: ClassVar[str]
    version: str

    def __init__(self, files: TokenizerFiles, *, specials_as_text: bool) -> None:
        self._files = files
        self._specials_as_text = specials_as_text
        self.num_by_reference = 0
        """Number of texts that the engine could not encode, so that the reference did."""

    def encode(self, texts: Sequence[str] | pa.Array) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode texts; returns the ids of all texts, one after the other, and where each text begins and ends in them.

        >>> ids, offsets = engine.encode(["one", "two"])   # doctest: +SKIP
        >>> ids[offsets[1] : offsets[2]]                   # doctest: +SKIP
        """
        return self._encode(texts.to_pylist() if isinstance(texts, pa.Array) else list(texts))

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Decode ids to text; special tokens are shown."""
        raise NotImplementedError

    def check_ids(self) -> None:
        """Refuse files that name other ids than the engine returns."""

    def _encode(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        raise NotImplementedError

    @cached_property
    def facts(self) -> TokenizerFacts:
        return read_facts(self._files)

    @property
    def vocab_size(self) -> int:
        return self.facts.vocab_size

    @property
    def special_tokens(self) -> dict[str, int]:
        return self.facts.special_tokens

    @property
    def eos_id(self) -> int | None:
        return self.facts.eos_id

    @property
    def bos_id(self) -> int | None:
        return self.facts.bos_id

    @property
    def pad_id(self) -> int | None:
        return self.facts.pad_id


def load_engine(files: TokenizerFiles, engine: str = REFERENCE, *, specials_as_text: bool = True) -> Engine:
    """Load a tokenizer.

    Args:
        files: From `find_tokenizer`.
        engine: `tokenizers` or `fastokens`.
        specials_as_text: Encode a special token that is written in a text as its characters, not as the token.

    Raises:
        UsageError: The files are no tokenizer, or not one that this engine can run.
    """
    check_choice("engine", engine, ENGINES)

    def load() -> Engine:
        module, name = ENGINES[engine]
        loaded: Engine = getattr(import_module(module), name)(files, specials_as_text=specials_as_text)
        return loaded

    # A tokenizer of 150,000 tokens takes a second to load, and a plan needs it several times. Threads do not share one:
    # they would wait for each other.
    form = engine, specials_as_text, get_ident()
    return load_once(TOKENIZER, files.content, form, load, max_kept=_MAX_KEPT)


def clear_engine_cache() -> None:
    """Free the memory of cached engines."""
    forget_content([TOKENIZER], needed=())


def engine_version(engine: str) -> str:
    """Find the version of an engine's library, without importing it."""
    return find_version(engine)
