"""One interface to both engines: texts in, flat ids and offsets out.

The reference makes a Python list of ids for each document. The fast engine makes two buffers for all, and reads only
`list[str]` (not bytes, not Arrow). Neither runs the tokenizer's post-processor: the step `tokenize` alone decides which
tokens begin and end a document.

The reference engine: Hugging Face's `tokenizers`. Always installed, loads every `tokenizer.json`, 1 to 2 MB/s.

It needs about 150 bytes of memory for each byte of a text. So it gets one text at a time, and a long one in pieces.

A long text, cut into pieces that give the same ids as the whole.

A tokenizer that first cuts a text into words works from left to right, so what is before a border of words does not
change what follows it. A position between words (after a line end, before a space) counts as such a border if the text
around it gives the same ids in one piece as in two. A tokenizer without words, or one that marks the start of a text,
fails that test everywhere, and then the text is encoded as a whole.
"""

from __future__ import annotations

import re
from functools import cached_property
from importlib import import_module, metadata
from itertools import islice
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.checks import check_choice
from gristmill.core.errors import GristmillError, UsageError
from gristmill.runtime.process import TOKENIZER, forget_content, load_once
from gristmill.text.tokenizers.files import TokenizerFacts, make_not_a_tokenizer_error, read_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gristmill.text.tokenizers.files import TokenizerFiles


REFERENCE = "tokenizers"
FAST = "fastokens"
ENGINES = {
    REFERENCE: ("gristmill.text.tokenizers.engine", "ReferenceEngine"),
    FAST: ("gristmill.text.tokenizers.fast_engine", "FastEngine"),
}
_MAX_KEPT = 2


class EncodingError(GristmillError, ValueError):
    """A text that no engine can encode: a regular expression of the tokenizer gives up on it."""


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

    def load_library(self) -> None:
        """Load what is loaded by its first use only, or say why it cannot be."""

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
    return metadata.version(engine)


class ReferenceEngine(Engine):
    """The reference engine, on the library `tokenizers`."""

    name: ClassVar[str] = REFERENCE

    def __init__(self, files: TokenizerFiles, *, specials_as_text: bool) -> None:
        import tokenizers  # noqa: PLC0415

        super().__init__(files, specials_as_text=specials_as_text)
        self.version = tokenizers.__version__
        self._tokenizer = self._load()

    def _load(self) -> Any:
        import tokenizers  # noqa: PLC0415

        try:
            tokenizer = tokenizers.Tokenizer.from_buffer(self._files.read())
        except ValueError as error:
            raise make_not_a_tokenizer_error(self._files, error) from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = self._specials_as_text
        return tokenizer

    def check_ids(self) -> None:
        """Refuse a file whose added tokens are loaded with other ids: engines number them without gaps."""
        loaded = {token.content: number for number, token in self._tokenizer.get_added_tokens_decoder().items()}
        for token, number in self.facts.added_tokens.items():
            if loaded.get(token) != number:
                raise UsageError(
                    f"{self._files.path} says that {token!r} is {number}, but it is loaded as {loaded.get(token)}",
                    help="number the added tokens without a gap after the vocabulary, or save the tokenizer again",
                )

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        text: str = self._tokenizer.decode([int(number) for number in ids], skip_special_tokens=False)
        return text

    def _encode(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        parts: list[NDArray[np.uint32]] = []
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        for index, text in enumerate(texts):
            pieces = encode_in_pieces(self._encode_one, text)
            parts += pieces
            offsets[index + 1] = sum(len(piece) for piece in pieces)
        ids = np.concatenate(parts) if parts else np.empty(0, dtype=np.uint32)
        return ids, np.cumsum(offsets)

    def _encode_one(self, text: str) -> NDArray[np.uint32]:
        # A batch of one text, because the other method also computes the offsets of all tokens.
        [encoding] = self._guard(text, lambda: self._tokenizer.encode_batch_fast([text], add_special_tokens=False))
        return np.array(encoding.ids, dtype=np.uint32)

    def _guard(self, text: str, encode: Callable[[], Any]) -> Any:
        """Call the library, and say in errors of this project what it cannot encode."""
        try:
            return encode()
        except Exception as error:  # the library raises nothing more exact
            raise UsageError(
                f"{self._files.path}: {REFERENCE} {self.version} cannot encode {text[:60]!r}: {error}",
                help="add a token for unknown text (unk_token) to the tokenizer, or use another one",
            ) from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            self._tokenizer = self._load()  # a panic of Rust may leave locks closed forever
            raise EncodingError(f"{self._files.path} cannot encode {text[:60]!r}: {error}") from None

    def token_spans(self, text: str) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode a text; returns the ids, and for each the bytes of the text that it stands for, from and to. Slow."""
        encoding = self._guard(text, lambda: self._tokenizer.encode(text, add_special_tokens=False))
        spans = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        if not text.isascii():
            sizes = np.array([len(char.encode()) for char in text], dtype=np.int64)
            spans = np.concatenate([[0], np.cumsum(sizes)])[spans]
        return np.array(encoding.ids, dtype=np.uint32), spans


PIECE_CHARS = 1 << 18
_CONTEXT_CHARS = 2048
_MAX_TRIALS = 16
# Not inside a run of spaces or line ends: what follows decides whether it is one word or two.
_BORDER = re.compile(r"(?<=\S\n)(?=\S)|(?<=\w)(?= \w)")


def encode_in_pieces(encode: Callable[[str], NDArray[np.uint32]], text: str) -> list[NDArray[np.uint32]]:
    """Encode a text in pieces; returns the ids of each."""
    ids = []
    start = 0
    while len(text) - start > PIECE_CHARS:
        stop = _find_border(encode, text, start + PIECE_CHARS // 2)
        if stop is None:
            break
        ids.append(encode(text[start:stop]))
        start = stop
    ids.append(encode(text[start:] if start else text))
    return ids


def _find_border(encode: Callable[[str], NDArray[np.uint32]], text: str, start: int) -> int | None:
    for match in islice(_BORDER.finditer(text, start), _MAX_TRIALS):
        border = match.start()
        before, after = text[border - _CONTEXT_CHARS : border], text[border : border + _CONTEXT_CHARS]
        if np.array_equal(encode(before + after), np.concatenate([encode(before), encode(after)])):
            return border
    return None
