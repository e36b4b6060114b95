"""Rendered chats to ids and loss masks.

Where each token stands in the text follows from the ids alone, for byte-level tokenizers and SentencePiece's kind: the
running sum of their lengths in bytes. A text for which that sum is not its length (it was normalised) is encoded again
by the reference, which knows; so is every text of another kind of tokenizer.

A token is trained on if it begins within what is. One that begins in the prompt and runs on into the answer (a line's
end and the line's end that an answer begins with) is not: no model is ever asked to write it.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.records import INPUT_IDS, LITERALS, LOSS_MASK, ORIGIN, SPLIT, TEXT, TRAINED, StepResult
from gristmill.steps.tokenize.kernel import AS_TOKEN, REJECT, TokenizeKernel
from gristmill.text.tokenizers import (
    REFERENCE,
    PlainTextEngine,
    compile_special_pattern,
    find_unmarked_controls,
    id_type,
    load_engine,
    read_byte_lengths,
)
from gristmill.text.tokenizers.reference import ReferenceEngine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.text.tokenizers import ByteLengths, Engine, TokenizerFiles


def masked_schema(schema: pa.Schema, vocab_size: int) -> pa.Schema:
    """What is left of a chat's columns, its ids, and which of them are trained on."""
    kept = [schema.field(name) for name in (ORIGIN, SPLIT) if name in schema.names]
    ids = pa.list_(pa.type_for_alias(id_type(vocab_size)))
    return pa.schema([*kept, pa.field(INPUT_IDS, ids), pa.field(LOSS_MASK, pa.list_(pa.bool_()))], schema.metadata)


class TokenizeChatsKernel(TokenizeKernel):
    """An engine that takes the template's special tokens for tokens, and what people wrote for text."""

    def __init__(
        self,
        files: TokenizerFiles,
        engine: str,
        policy: str,
        *,
        vocab_size: int,
        max_tokens: int | None,
        cuts: bool,
    ) -> None:
        super().__init__(files, engine, AS_TOKEN, vocab_size=vocab_size, begin=None, end=None)
        self._literal_policy = policy
        self._max_tokens = max_tokens
        self._cuts = cuts
        self._lengths = read_byte_lengths(files)
        self._specials = compile_special_pattern(files)
        self._unmarked = find_unmarked_controls(self._engine.facts)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        """Ids and masks for texts."""
        dropped: dict[str, int] = {}
        if self._literal_policy == REJECT:
            has_none = np.diff(batch.column(LITERALS).offsets.to_numpy()) == 0
            if not has_none.all():
                dropped["special_token"] = int(np.count_nonzero(~has_none))
                batch = batch.filter(pa.array(has_none))
        sizes = pc.binary_length(batch.column(TEXT)).to_numpy(zero_copy_only=False)
        num_before = self._num_by_reference
        ids, offsets = self._engine.encode(batch.column(TEXT))
        self._refuse_unknown(ids)
        num_checked = self._check_parity(batch, ids, offsets, sizes, seed)
        ids, offsets, mask, num_by_reference = self._mask_tokens(batch, ids, offsets, sizes)
        lengths = np.diff(offsets)
        ids, offsets, mask, keeps = self._fit_to_limit(ids, offsets, mask, dropped)
        measures = {
            "tokens": len(ids),
            "trained_tokens": int(np.count_nonzero(mask)),
            "bytes": int(sizes[keeps].sum()),
            "placed_by_reference": num_by_reference,
            "parity_checked": num_checked,
        }
        measures |= self._count_by_reference(num_before)
        cut = (lengths[keeps] - np.diff(offsets)) if self._cuts else np.zeros(0, np.int64)
        if cut.any():
            measures |= {"cut_chats": int(np.count_nonzero(cut)), "cut_tokens": int(cut.sum())}
        if not keeps.all():
            batch = batch.filter(pa.array(keeps))
        return StepResult(self._build_chat_batch(batch, ids, offsets, mask), dropped, counters=measures)

    def _mask_tokens(
        self, batch: pa.RecordBatch, ids: NDArray[np.uint32], offsets: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.bool_], int]:
        """The ids with their mask; rows that hold literals get other ids, and some rows are placed by the reference."""
        trained = batch.column(TRAINED)
        mask, wrong = _mask_by_lengths(self._lengths, ids, offsets, sizes, trained)
        if self._lengths is not None and self._lengths.unicode_form is not None:
            wrong |= _is_changed_by(self._lengths.unicode_form, batch.column(TEXT))
        literals = np.diff(batch.column(LITERALS).offsets.to_numpy()) > 0
        if self._literal_policy == AS_TOKEN:
            literals[:] = False
        others: dict[int, tuple[NDArray[np.uint32], NDArray[np.bool_]]] = {}
        for row in np.flatnonzero(wrong | literals).tolist():
            text = batch.column(TEXT)[row].as_py()
            spans = np.array(trained[row].as_py(), dtype=np.int64).reshape(-1, 2)
            if literals[row]:
                found, places = self._encode_around_literals(text, batch.column(LITERALS)[row].as_py())
            else:
                found, places = self._locate_tokens(text)
            others[row] = found, _mask_by_spans(places, spans)
        if others:
            ids, offsets, mask = _replace_rows(ids, offsets, mask, others)
        return ids, offsets, mask, len(others)

    def _encode_around_literals(self, text: str, literals: list[int]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The ids of a text in which only those special tokens count that are not within these places."""
        ids: list[NDArray[np.uint32]] = []
        places: list[NDArray[np.int64]] = []
        start = 0
        data = text.encode()
        begins, ends = literals[::2], literals[1::2]
        for begin, end, token in self._find_special_tokens(data):
            inside = bisect_right(begins, end - 1) - 1
            if inside >= 0 and begin < ends[inside]:
                continue
            self._add_text(data[start:begin].decode(), start, ids, places)
            ids.append(np.array([self._engine.facts.added_tokens[token]], dtype=np.uint32))
            places.append(np.array([[begin, end]], dtype=np.int64))
            start = end
        self._add_text(data[start:].decode(), start, ids, places)
        return np.concatenate(ids), np.concatenate(places)

    def _find_special_tokens(self, data: bytes) -> list[tuple[int, int, str]]:
        if self._specials is None:
            return []
        text = data.decode()
        found, place, start = [], 0, 0
        for match in self._specials.finditer(text):
            place += len(text[start : match.start()].encode())
            end = place + len(match.group().encode())
            found.append((place, end, match[match.lastgroup or 0]))
            place, start = end, match.end()
        return found

    def _add_text(self, text: str, start: int, ids: list[NDArray[np.uint32]], places: list[NDArray[np.int64]]) -> None:
        if not text:
            return
        if any(token in text for token in self._unmarked):
            found, where = self._plain_engine.token_spans(text)
            ids.append(found)
            places.append(where + start)
            return
        found, _ = self._text_engine.encode([text])
        whole = np.array([0, len(found)])
        ends = np.cumsum(self._lengths.of(found, whole)) if self._lengths is not None else None
        if ends is not None and len(ends) and ends[-1] == len(text.encode()):
            where = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1)
        else:
            found, where = self._text_reference.token_spans(text)
        ids.append(found)
        places.append(where + start)

    def _locate_tokens(self, text: str) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        reference = self._reference
        assert isinstance(reference, ReferenceEngine)
        return reference.token_spans(text)

    @property
    def _num_by_reference(self) -> int:
        text_engine = vars(self).get("_text_engine")  # if it was needed yet
        return self._engine.num_by_reference + (text_engine.num_by_reference if text_engine is not None else 0)

    @cached_property
    def _text_engine(self) -> Engine:
        return load_engine(self._files, self._engine.name, specials_as_text=True)

    @cached_property
    def _plain_engine(self) -> PlainTextEngine:
        return PlainTextEngine(self._files)

    @cached_property
    def _text_reference(self) -> ReferenceEngine:
        engine = load_engine(self._files, REFERENCE, specials_as_text=True)
        assert isinstance(engine, ReferenceEngine)
        return engine

    def _fit_to_limit(
        self,
        ids: NDArray[np.uint32],
        offsets: NDArray[np.int64],
        mask: NDArray[np.bool_],
        dropped: dict[str, int],
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Without what is too long and what holds nothing to train on."""
        lengths = np.diff(offsets)
        keeps = np.ones(len(lengths), dtype=bool)
        if self._max_tokens is not None and (lengths > self._max_tokens).any():
            if self._cuts:
                taken = np.arange(len(ids)) - np.repeat(offsets[:-1], lengths) < self._max_tokens
                ids, mask, lengths = ids[taken], mask[taken], np.minimum(lengths, self._max_tokens)
                offsets = np.concatenate([[0], np.cumsum(lengths)])
            else:
                keeps = lengths <= self._max_tokens
                dropped["too_long"] = int(np.count_nonzero(~keeps))
        sums = np.concatenate([[0], np.cumsum(mask)])
        is_trained = sums[offsets[1:]] > sums[offsets[:-1]]
        if not is_trained[keeps].all():
            dropped["no_trained_tokens"] = int(np.count_nonzero(keeps & ~is_trained))
            keeps &= is_trained
        if not keeps.all():
            taken = np.repeat(keeps, lengths)
            ids, mask = ids[taken], mask[taken]
            offsets = np.concatenate([[0], np.cumsum(lengths[keeps])])
        return ids, offsets, mask, keeps

    def _build_chat_batch(
        self, batch: pa.RecordBatch, ids: NDArray[np.uint32], offsets: NDArray[np.int64], mask: NDArray[np.bool_]
    ) -> pa.RecordBatch:
        schema = masked_schema(batch.schema, self._vocab_size)
        starts = pa.array(offsets.astype(np.int32))
        columns = {
            **{name: batch.column(name) for name in (ORIGIN, SPLIT) if name in schema.names},
            INPUT_IDS: pa.ListArray.from_arrays(starts, pa.array(ids.astype(self._dtype))),
            LOSS_MASK: pa.ListArray.from_arrays(starts, pa.array(mask)),
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _mask_by_lengths(
    lengths: ByteLengths | None,
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    trained: pa.ListArray,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which ids are trained on; and rows for which their lengths do not say it."""
    if lengths is None:
        return np.zeros(len(ids), dtype=bool), np.ones(len(sizes), dtype=bool)
    ends = np.cumsum(lengths.of(ids, offsets))
    starts = np.concatenate([[0], ends])
    bases = starts[offsets]  # where each text begins, had all of them been written one after the other
    wrong = np.diff(bases) != sizes
    places = trained.flatten().to_numpy().reshape(-1, 2)
    rows = np.repeat(np.arange(len(sizes)), np.diff(trained.offsets.to_numpy()) // 2)
    places = places + bases[rows][:, None]
    first = np.searchsorted(starts[:-1], places[:, 0], side="left")
    stop = np.searchsorted(starts[:-1], places[:, 1], side="left")
    changes = np.zeros(len(ids) + 1, dtype=np.int64)
    np.add.at(changes, first, 1)
    np.add.at(changes, stop, -1)
    return np.cumsum(changes)[:-1] > 0, wrong


def _is_changed_by(unicode_form: str, texts: pa.LargeStringArray) -> NDArray[np.bool_]:
    """Which texts are not in this form of Unicode."""
    if pc.all(pc.string_is_ascii(texts)).as_py():
        return np.zeros(len(texts), dtype=bool)
    is_changed: NDArray[np.bool_] = pc.not_equal(pc.utf8_normalize(texts, unicode_form), texts).to_numpy(
        zero_copy_only=False
    )
    return is_changed


def _mask_by_spans(places: NDArray[np.int64], spans: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which places begin in one of the spans, which lie in order and apart."""
    before = np.searchsorted(spans[:, 0], places[:, 0], side="right") - 1
    ends = np.concatenate([spans[:, 1], [-1]])  # -1 picks the last: what begins before all spans
    mask: NDArray[np.bool_] = places[:, 0] < ends[before]
    return mask


def _replace_rows(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    mask: NDArray[np.bool_],
    others: dict[int, tuple[NDArray[np.uint32], NDArray[np.bool_]]],
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.bool_]]:
    """With some rows replaced."""
    new_ids, new_mask, lengths = [], [], np.diff(offsets)
    done = 0
    for row, (found, trained) in sorted(others.items()):
        new_ids += [ids[offsets[done] : offsets[row]], found]
        new_mask += [mask[offsets[done] : offsets[row]], trained]
        lengths[row] = len(found)
        done = row + 1
    new_ids.append(ids[offsets[done] :])
    new_mask.append(mask[offsets[done] :])
    return np.concatenate(new_ids), np.concatenate([[0], np.cumsum(lengths)]), np.concatenate(new_mask)
