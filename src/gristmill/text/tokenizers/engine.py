"""One interface to both engines: texts in, flat ids and offsets out.

The reference makes a Python list of ids for each document. The fast engine makes two buffers for all, and reads only
`list[str]` (not bytes, not Arrow). Neither runs the tokenizer's post-processor: the step `tokenize` alone decides which
tokens begin and end a document.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from importlib import import_module
from threading import get_ident
from typing import TYPE_CHECKING, ClassVar

import msgspec
import pyarrow as pa

from gristmill.core.names import check_choice
from gristmill.storage.installed_versions import find_version
from gristmill.text.tokenizers.facts import TokenizerFacts, read_facts
from gristmill.text.tokenizers.files import TokenizerFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

REFERENCE = "tokenizers"
FAST = "fastokens"
ENGINES = {
    REFERENCE: ("gristmill.text.tokenizers.reference", "ReferenceEngine"),
    FAST: ("gristmill.text.tokenizers.fast", "FastEngine"),
}


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
    # A tokenizer of 150,000 tokens takes a second to load, and a plan needs it several times. Threads do not share one:
    # they would wait for each other.
    return _load_cached(msgspec.json.encode(files), engine, specials_as_text, get_ident())


@lru_cache(maxsize=2)
def _load_cached(encoded_files: bytes, engine: str, specials_as_text: bool, _thread: int) -> Engine:  # noqa: FBT001
    module, name = ENGINES[engine]
    files = msgspec.json.decode(encoded_files, type=TokenizerFiles)
    loaded: Engine = getattr(import_module(module), name)(files, specials_as_text=specials_as_text)
    return loaded


def clear_engine_cache() -> None:
    """Free the memory of cached engines."""
    _load_cached.cache_clear()


def engine_version(engine: str) -> str:
    """Find the version of an engine's library, without importing it."""
    return find_version(engine)
