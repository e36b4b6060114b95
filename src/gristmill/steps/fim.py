"""`fim`: where documents are cut so that a model learns to fill in the middle. `tokenize` then puts the parts in order.

Two places of a document, each as likely as any other, make a prefix, a middle and a suffix (any of them may be empty):

    PSM   <prefix> prefix <suffix> suffix <middle> middle
    SPM   <prefix> <suffix> suffix <middle> prefix middle

The step only notes the places, about 0.1 µs a document: steps between it and `tokenize` see the text as it was.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import UsageError
from gristmill.core.records import FIM, ORIGIN, TEXT, StepResult
from gristmill.core.seeds import hash_bound, hash_origins
from gristmill.core.step import LocalStep

FIM_TYPE = pa.list_(pa.int32())
FAMILIES: dict[str, tuple[str, ...]] = {
    "starcoder": ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    "santacoder": ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    "qwen": ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    "deepseek": ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    "codellama": ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"),
}
"""The tokens before a prefix, a suffix and a middle, and after a middle where the family has such a token."""
_PARTS = ("prefix", "suffix", "middle", "end")


class Fim(LocalStep, tag="fim", frozen=True, kw_only=True):
    """Cut some documents so that a model learns to fill in the middle, mostly for code. `tokenize` must follow.

    A share `rate` of the documents becomes prefix, suffix and middle, each after a special token: a share `spm` of them
    in the order suffix, prefix, middle. Documents are cut between any two characters, and a document is always cut at
    the same places.

    >>> Fim(rate=0.9).rate
    0.9

    The special tokens are those of the tokenizer's family (StarCoder, SantaCoder, Qwen and CodeGemma, DeepSeek,
    CodeLlama), or named: `tokens: {prefix: <PRE>, suffix: <SUF>, middle: <MID>}`. What looks like one of them in a
    document stays text. The books count documents as `psm` and `spm`. Put it after filters and `deduplicate`, right
    before `tokenize`; where only code is to be cut, among the steps of that source, with its own `tokenize`.
    """

    preserves_text: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = (TEXT,)

    rate: float = 0.5
    """The share of documents that is cut."""
    spm: float = 0.5
    """The share of these whose suffix comes first."""
    tokens: Literal["auto"] | dict[str, str] = "auto"
    """Special tokens of the tokenizer: `prefix`, `suffix` and `middle`, and `end` if one follows the middle."""

    def __post_init__(self) -> None:
        for name in ("rate", "spm"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} must be from 0 to 1, not {getattr(self, name)}", help="for half write 0.5")
        if self.tokens != "auto" and not {*_PARTS[:3]} <= self.tokens.keys() <= {*_PARTS}:
            raise UsageError(
                f"tokens must name prefix, suffix and middle, not {', '.join(self.tokens) or 'nothing'}",
                help='write tokens: {prefix: "<PRE>", suffix: "<SUF>", middle: "<MID>"}',
            )

    def columns_added(self) -> tuple[str, ...]:
        return (FIM,)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if FIM in schema.names:
            raise UsageError(f'fim: there is already a column "{FIM}"', help="rename it, or leave out one fim")
        return schema.append(pa.field(FIM, FIM_TYPE))

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        origins = batch.column(ORIGIN)
        is_cut = hash_origins(seed, "fim", origins) < np.uint64(min(hash_bound(self.rate), 2**64 - 1))
        is_spm = hash_origins(seed, "fim/spm", origins) < np.uint64(min(hash_bound(self.spm), 2**64 - 1))
        is_cut, is_spm = is_cut | (self.rate == 1), is_spm | (self.spm == 1)
        sizes = pc.utf8_length(batch.column(TEXT)).to_numpy(zero_copy_only=False).astype(np.uint64)
        places = []
        for purpose in ("fim/first", "fim/second"):
            # The high half of a hash, times the number of places: exact in 64 bits.
            high = hash_origins(seed, purpose, origins) >> np.uint64(32)
            places.append((high * (sizes + np.uint64(1))) >> np.uint64(32))
        rows = np.stack([np.minimum(*places), np.maximum(*places), is_spm], axis=1)[is_cut].astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(3 * is_cut)]).astype(np.int32)
        cuts = pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows.ravel()), type=FIM_TYPE)
        num_spm = int(np.count_nonzero(is_cut & is_spm))
        counters = {"psm": int(np.count_nonzero(is_cut)) - num_spm, "spm": num_spm}
        return StepResult(
            pa.RecordBatch.from_arrays([*batch.columns, cuts], schema=self.output_schema(batch.schema)),
            counters=counters,
        )

    def find_tokens(self, added_tokens: dict[str, int], tokenizer: str) -> tuple[int, ...]:
        """Find the ids of the tokens before prefix, suffix and middle, and of that after the middle if there is one."""
        if self.tokens != "auto":
            names = tuple(self.tokens[part] for part in _PARTS if part in self.tokens)
            missing = [name for name in names if name not in added_tokens]
            if missing:
                raise UsageError(f"fim: {tokenizer} has no special token {missing[0]!r}", help="name one that it has")
            if len(set(names)) < len(names):
                raise UsageError(f"fim: tokens names one token twice: {', '.join(names)}")
            return tuple(added_tokens[name] for name in names)
        for names in FAMILIES.values():
            if all(name in added_tokens for name in names[:3]):
                return tuple(added_tokens[name] for name in names if name in added_tokens)
        raise UsageError(
            f"fim: {tokenizer} has the tokens of no known family ({', '.join(FAMILIES)})",
            help='name its special tokens: tokens: {prefix: "<PRE>", suffix: "<SUF>", middle: "<MID>"}',
        )
