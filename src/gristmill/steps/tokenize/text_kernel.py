"""Texts to ids in a worker.

Each document becomes one Python string (the fast engine accepts nothing else), then there are flat buffers only. One
document in 10,000 is encoded again with the reference, which is loaded when it is first needed.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa

from gristmill.core.errors import GristmillError, ParityError
from gristmill.core.records import (
    INPUT_IDS,
    ORIGIN,
    SPLIT,
    QuarantinedRecord,
    Records,
    StepResult,
    Texts,
    describe_origin,
)
from gristmill.core.seeds import hash_bound, hash_origins
from gristmill.core.step import StepKernel
from gristmill.text.tokenizers.check_tokenizer import id_type
from gristmill.text.tokenizers.choose import compare_engines
from gristmill.text.tokenizers.engine import REFERENCE, EncodingError, Engine, load_engine
from gristmill.text.tokenizers.special_tokens import SpecialLiterals, add_end_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gristmill.text.tokenizers.files import TokenizerFiles


LiteralPolicy = Literal["text", "token", "reject"]
"""How to treat special tokens that are written out in a text."""
AS_TEXT: LiteralPolicy
AS_TOKEN: LiteralPolicy
REJECT: LiteralPolicy
AS_TEXT, AS_TOKEN, REJECT = get_args(LiteralPolicy)
SHORT_BYTES = 2 << 10
"""The size up to which the first document of a cell is always checked."""


def token_schema(schema: pa.Schema, vocab_size: int) -> pa.Schema:
    """Return the schema of tokenized documents: origin, split, and the ids in the smallest type that holds them all."""
    common = [schema.field(name) for name in (ORIGIN, SPLIT) if name in schema.names]
    ids = pa.list_(pa.type_for_alias(id_type(vocab_size)))
    return pa.schema([*common, pa.field(INPUT_IDS, ids)], schema.metadata)


def quarantine_not_encoded(origin: dict[str, Any], text: str, error: EncodingError) -> QuarantinedRecord:
    """Make the entry of a record that no engine can encode."""
    return QuarantinedRecord(**origin, reason="not_encoded", message=error.message, raw=text.encode())


def find_quarantined(batch: pa.RecordBatch, quarantined: Sequence[QuarantinedRecord]) -> NDArray[np.bool_]:
    """For each record of a batch whether it is among the quarantined."""
    bad = {(record.file, record.position, record.part) for record in quarantined}
    origins = batch.column(ORIGIN).to_pylist()
    return np.array([(origin["file"], origin["position"], origin["part"]) in bad for origin in origins], dtype=bool)


class EncodingKernel(StepKernel):
    """An engine that encodes texts, and the reference that checks it."""

    def __init__(self, files: TokenizerFiles, engine: str, policy: str, *, vocab_size: int) -> None:
        self._files = files
        self._policy = policy
        self._vocab_size = vocab_size
        self.checked_share = 1 / 10_000
        """The share of documents that are encoded again with the reference."""
        self.checked_bytes = 256 << 10
        """The size up to which documents are checked: the reference takes too long for larger ones."""
        self._engine = self._load(engine)
        self._dtype = np.uint16 if id_type(vocab_size) == "uint16" else np.uint32
        self._checks_next = False

    def begin_cell(self) -> None:
        """Always check the first document of each cell."""
        self._checks_next = True

    def _refuse_unknown(self, ids: NDArray[np.uint32]) -> None:
        """Refuse an id above the vocabulary: in a smaller type it would silently become another id."""
        if len(ids) and int(ids.max()) >= self._vocab_size:
            raise GristmillError(
                f"engine {self._engine.name} gave id {ids.max()}, but the vocabulary ends at {self._vocab_size}",
                help="use engine: tokenizers, and report this",
            )

    @property
    def _num_by_reference(self) -> int:
        return self._engine.num_by_reference

    def _count_by_reference(self, num_before: int) -> dict[str, int]:
        """Count the texts that the reference encoded because the fast engine failed, since there were `num_before`."""
        num_texts = self._num_by_reference - num_before
        return {"encoded_by_reference": num_texts} if num_texts else {}

    def _encode(
        self, batch: pa.RecordBatch, texts: Texts
    ) -> tuple[pa.RecordBatch, Texts, NDArray[np.uint32], NDArray[np.int64], list[QuarantinedRecord]]:
        """Encode texts. Records that cannot be encoded are quarantined; the others are returned with their ids."""
        try:
            return batch, texts, *self._engine.encode(texts.strings), []
        except EncodingError:
            quarantined = self._find_bad(batch.column(ORIGIN), texts.strings)
        is_good = ~find_quarantined(batch, quarantined)
        batch, texts = batch.filter(pa.array(is_good)), texts.filter(is_good)
        return batch, texts, *self._engine.encode(texts.strings), quarantined

    def _find_bad(self, origins: pa.StructArray, texts: Sequence[str]) -> list[QuarantinedRecord]:
        """Find the records that cannot be encoded, by halves."""
        try:
            self._engine.encode(texts)
        except EncodingError as error:
            if len(texts) == 1:
                return [quarantine_not_encoded(origins[0].as_py(), texts[0], error)]
            middle = len(texts) // 2
            return self._find_bad(origins[:middle], texts[:middle]) + self._find_bad(origins[middle:], texts[middle:])
        return []

    @cached_property
    def _reference(self) -> Engine:
        return self._load(REFERENCE)

    def _load(self, engine: str) -> Engine:
        return load_engine(self._files, engine, specials_as_text=self._policy != AS_TOKEN)

    def _check_parity(
        self,
        batch: pa.RecordBatch,
        texts: Texts,
        ids: NDArray[np.uint32],
        offsets: NDArray[np.int64],
        seed: int,
    ) -> int:
        """Encode some documents again with the reference; return how many were chosen by their hash.

        One document of each cell is checked too: its first short one, which costs 0.2 ms where a cell costs 40;
        where all are long, its shortest. It is not counted, so the books show the share that was chosen.
        """
        if self._engine.name == REFERENCE or not batch.num_rows:
            return 0
        short = texts.sizes <= self.checked_bytes
        hashes = hash_origins(seed, "tokenize/parity", batch.column(ORIGIN))
        is_checked = (hashes < np.uint64(hash_bound(self.checked_share))) & short
        num_chosen = int(np.count_nonzero(is_checked))
        if self._checks_next and short.any():
            brief = texts.sizes <= SHORT_BYTES
            is_checked[np.argmax(brief) if brief.any() else np.argmin(texts.sizes)] = True
            self._checks_next = False
        for row in np.flatnonzero(is_checked).tolist():
            try:
                expected, _ = self._reference.encode([texts.strings[row]])
            except EncodingError:  # the fast engine's ids, then, which nothing contradicts
                continue
            if not np.array_equal(ids[offsets[row] : offsets[row + 1]], expected):
                self._raise_parity_error(batch.column(ORIGIN)[row].as_py(), texts.strings[row])
        return num_chosen

    def _raise_parity_error(self, origin: dict[str, int], text: str) -> None:
        mismatch = compare_engines(self._engine, self._reference, [text])
        about = (
            str(mismatch) if mismatch else "it did so once, but not again: the engine's ids depend on earlier documents"
        )
        raise ParityError(
            f"{self._engine.name} {self._engine.version} gives other ids than {REFERENCE} {self._reference.version} "
            f"for the document at {describe_origin(origin)}: {about}",
            help="set engine: tokenizers in the recipe, which is slower and always right",
            **origin,
        )


class TokenizeKernel(EncodingKernel):
    """Encodes documents, and adds the tokens that begin and end them."""

    def __init__(
        self, files: TokenizerFiles, engine: str, policy: str, *, vocab_size: int, begin: int | None, end: int | None
    ) -> None:
        super().__init__(files, engine, policy, vocab_size=vocab_size)
        self._begin = begin
        self._end = end
        self._literals = SpecialLiterals(self._engine.special_tokens, whole_words=True)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        return self.apply_to(Records(batch), seed)

    def apply_to(self, records: Records, seed: int) -> StepResult:
        batch, texts = records.rows, records.texts
        literals = self._literals.count_in(texts)
        num_literals, num_rejected = int(literals.sum()), 0
        if num_literals and self._policy == REJECT:
            num_rejected = int(np.count_nonzero(literals))
            batch, texts = batch.filter(pa.array(literals == 0)), texts.filter(literals == 0)
        num_before = self._num_by_reference
        batch, texts, ids, offsets, quarantined = self._encode(batch, texts)
        num_checked = self._check_parity(batch, texts, ids, offsets, seed)
        self._refuse_unknown(ids)
        tokens, offsets = add_end_tokens(ids, offsets, self._dtype, begin=self._begin, end=self._end)
        counters = {
            "tokens": len(tokens),
            "bytes": texts.num_bytes,
            "special_literals": num_literals,
            "parity_checked": num_checked,
            **self._count_by_reference(num_before),
        }
        dropped = {"special_token": num_rejected} if num_rejected else {}
        return StepResult(
            self._build_batch(batch, tokens, offsets), dropped, quarantined=quarantined, counters=counters
        )

    def _build_batch(
        self, batch: pa.RecordBatch, ids: NDArray[np.unsignedinteger], offsets: NDArray[np.int64]
    ) -> pa.RecordBatch:
        if len(ids) >= 2**31:
            raise GristmillError(
                f"a batch of {batch.num_rows} documents has {len(ids):,} tokens; the limit is 2^31",
                help="cut the documents into smaller ones first",
            )
        schema = token_schema(batch.schema, self._vocab_size)
        column = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(ids))
        columns = {**{name: batch.column(name) for name in schema.names if name != INPUT_IDS}, INPUT_IDS: column}
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
