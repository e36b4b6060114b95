"""Rendered preferences to ids: every answer is encoded together with its prompt, and the prompt is stored once.

The texts of a row begin with the same prompt, but their ids need not: a token may reach from the prompt into an answer
(two line feeds become one token). So the prompt of a row is what the ids of all its texts have in common, up to the
last token that ends where the prompt ends or before; the answers begin after it. With the prompt `a b`, and the answers
`c` and `bd`:

    ids of the texts    [a] [b c]  and  [a] [b] [b d]
    stored              prompt [a], chosen [b c], rejected [b] [b d]

Rows in which a token reaches over the border are counted as `merged_borders`. So each text that is trained consists of
the ids that the tokenizer gives for the whole of it, as in TRL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.records import INPUT_IDS, LITERALS, ORIGIN, SPLIT, TEXT, TEXT_TYPE, TRAINED, StepResult, Texts
from gristmill.runtime.kernels import kernel
from gristmill.shards.token_rows import LABEL, LABEL_VALUES, LENGTHS, PAIR_VALUES
from gristmill.steps.tokenize.chat_kernel import TokenizeChatsKernel, mask_by_lengths
from gristmill.steps.tokenize.text_kernel import REJECT, find_quarantined
from gristmill.text.tokenizers.check_tokenizer import id_type
from gristmill.text.tokenizers.special_tokens import is_inside_word

if TYPE_CHECKING:
    from numpy.typing import NDArray


PROMPT, REJECTED, REJECTED_LITERALS = "prompt", "rejected", "rejected_literals"
_ROW, _SIDE = "row", "side"


def make_preference_schema(schema: pa.Schema, vocab_size: int) -> pa.Schema:
    """Return the schema of tokenized preferences: origin and split, the ids with the lengths of parts, the values."""
    common = [schema.field(name) for name in (ORIGIN, SPLIT) if name in schema.names]
    ids = pa.list_(pa.type_for_alias(id_type(vocab_size)))
    values = LABEL_VALUES if LABEL in schema.names else PAIR_VALUES
    parts = [pa.field(INPUT_IDS, ids), pa.field(LENGTHS, pa.list_(pa.int32()))]
    return pa.schema([*common, *parts, *(pa.field(*value) for value in values)], schema.metadata)


class TokenizePreferencesKernel(TokenizeChatsKernel):
    """The kernel for preferences: a text for each answer, encoded like a chat."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        dropped: dict[str, int] = {}
        if self._literal_policy == REJECT:
            batch = _drop_literals(batch, dropped)
        num_before = self._num_by_reference
        sides = _stack_sides(batch)
        texts = Texts(sides.column(TEXT))
        sides, texts, ids, offsets, quarantined = self._encode(sides, texts)
        sizes = texts.sizes
        self._refuse_unknown(ids)
        num_checked = self._check_parity(sides, texts, ids, offsets, seed)
        ids, offsets, mask, num_by_reference, not_placed = self._mask_tokens(sides, ids, offsets, sizes)
        quarantined = list({(bad.file, bad.position, bad.part): bad for bad in (*quarantined, *not_placed)}.values())
        # For each row the number of its text on each side. Both texts of a quarantined record are gone: they have one
        # origin.
        places = np.full((2 if REJECTED in batch.schema.names else 1, batch.num_rows), -1, dtype=np.int64)
        placed = np.flatnonzero(~find_quarantined(sides, not_placed))
        places[sides.column(_SIDE).to_numpy()[placed], sides.column(_ROW).to_numpy()[placed]] = placed
        is_good = (places >= 0).all(axis=0)
        places, batch = places[:, is_good], batch.filter(pa.array(is_good))
        # A token ends where the next one begins: of the tokens that begin at the border or before, all but the last.
        prompts = np.maximum(_count_true(mask, offsets) - 1, 0)
        num_shared = np.empty(batch.num_rows, dtype=np.int64)
        share_prompts(ids, offsets, places, prompts, num_shared)
        parts = self._cut_parts(ids, offsets, places, num_shared, dropped)
        counters = {
            "tokens": len(parts.ids),
            "bytes": int(sizes[places[:, parts.is_kept]].sum()),
            "placed_by_reference": num_by_reference,
            "parity_checked": num_checked,
            **self._count_by_reference(num_before),
        }
        if num_merged := self._count_merged(sides, ids, offsets, sizes, places[:, parts.is_kept]):
            counters["merged_borders"] = num_merged
        if parts.num_cut:
            counters["cut_chats"] = parts.num_cut
        built = self._build_rows(batch.filter(pa.array(parts.is_kept)), parts)
        return StepResult(built, dropped, quarantined=quarantined, counters=counters)

    def _count_merged(
        self,
        sides: pa.RecordBatch,
        ids: NDArray[np.uint32],
        offsets: NDArray[np.int64],
        sizes: NDArray[np.int64],
        places: NDArray[np.int64],
    ) -> int:
        """Count the rows in which a token reaches over the border: none begins there."""
        ends = sides.column(TRAINED).flatten().to_numpy()[1::2]
        spans = np.stack([ends - 1, ends], axis=1).ravel()
        borders = pa.ListArray.from_arrays(sides.column(TRAINED).offsets, pa.array(spans))
        mask, is_unplaced = mask_by_lengths(self._lengths, ids, offsets, sizes, borders)
        is_merged = (_count_true(mask, offsets) == 0) & ~is_unplaced
        return int(np.count_nonzero(is_merged[places].any(axis=0)))

    def _cut_parts(
        self,
        ids: NDArray[np.uint32],
        offsets: NDArray[np.int64],
        places: NDArray[np.int64],
        num_shared: NDArray[np.int64],
        dropped: dict[str, int],
    ) -> _Parts:
        """Cut each row into its parts; drop rows that are too long, or whose sides are equal."""
        lengths = (offsets[1:] - offsets[:-1])[places] - num_shared  # of the answers
        is_kept = np.ones(len(num_shared), dtype=bool)
        _count_dropped(dropped, "no_shared_prompt", is_kept, num_shared == 0)
        num_cut = 0
        if self._max_tokens is not None:
            is_long = (num_shared + lengths > self._max_tokens).any(axis=0)
            if self._cuts:
                room = self._max_tokens - num_shared
                num_cut = int(np.count_nonzero(is_kept & is_long & (room > 0)))
                is_long = room <= 0  # nothing would be left to compare
                lengths = np.minimum(lengths, np.maximum(room, 0))
            _count_dropped(dropped, "too_long", is_kept, np.asarray(is_long))
        starts = offsets[places] + num_shared
        _count_dropped(dropped, "empty_answer", is_kept, (lengths == 0).any(axis=0))
        if len(places) == 2:
            is_equal = np.zeros(len(num_shared), dtype=bool)
            find_equal(ids, starts, lengths, is_equal)
            _count_dropped(dropped, "equal_sides", is_kept, is_equal)
        all_starts = np.concatenate([offsets[places[:1]], starts]).T[is_kept]
        all_lengths = np.concatenate([num_shared[None], lengths]).T[is_kept]
        flat = all_lengths.ravel()
        before = np.cumsum(flat) - flat
        indices = np.arange(int(flat.sum())) + np.repeat(all_starts.ravel() - before, flat)
        return _Parts(ids[indices], all_lengths, is_kept, num_cut)

    def _build_rows(self, batch: pa.RecordBatch, parts: _Parts) -> pa.RecordBatch:
        schema = make_preference_schema(batch.schema, self._vocab_size)
        num_rows, num_parts = parts.lengths.shape
        ends = np.concatenate([[0], np.cumsum(parts.lengths.sum(axis=1))]).astype(np.int32)
        part_ends = np.arange(num_rows + 1, dtype=np.int32) * num_parts
        columns = {
            **{name: batch.column(name) for name in schema.names if name not in (INPUT_IDS, LENGTHS)},
            INPUT_IDS: pa.ListArray.from_arrays(pa.array(ends), pa.array(parts.ids.astype(self._dtype))),
            LENGTHS: pa.ListArray.from_arrays(pa.array(part_ends), pa.array(parts.lengths.ravel().astype(np.int32))),
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


class _Parts:
    """The parts of the rows that are kept: all ids, and for each row the lengths of its prompt and its answers."""

    def __init__(
        self, ids: NDArray[np.uint32], lengths: NDArray[np.int64], is_kept: NDArray[np.bool_], num_cut: int
    ) -> None:
        self.ids = ids
        self.lengths = lengths
        self.is_kept = is_kept
        self.num_cut = num_cut


def _count_dropped(dropped: dict[str, int], reason: str, is_kept: NDArray[np.bool_], is_bad: NDArray[np.bool_]) -> None:
    """Drop rows that were kept so far, and count them."""
    if count := int(np.count_nonzero(is_kept & is_bad)):
        dropped[reason] = count
    is_kept &= ~is_bad


def _count_true(mask: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the marked ids of each text."""
    totals = np.concatenate([[0], np.cumsum(mask)])
    counts: NDArray[np.int64] = totals[offsets[1:]] - totals[offsets[:-1]]
    return counts


def _stack_sides(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Make a batch of all texts, first the chosen ones, with the range of each up to where its answer begins."""
    num_rows = batch.num_rows
    texts, literals = [batch.column(TEXT)], [batch.column(LITERALS)]
    if REJECTED in batch.schema.names:
        joined = pc.binary_join_element_wise(batch.column(PROMPT), batch.column(REJECTED), pa.scalar("", TEXT_TYPE))
        texts.append(joined)
        literals.append(batch.column(REJECTED_LITERALS))
    borders = pc.binary_length(batch.column(PROMPT)).to_numpy().astype(np.int64)
    spans = np.stack([np.zeros_like(borders), borders + 1], axis=1).ravel()
    num_sides = len(texts)
    trained = pa.ListArray.from_arrays(
        pa.array(2 * np.arange(num_sides * num_rows + 1, dtype=np.int32)), pa.array(np.tile(spans, num_sides))
    )
    return pa.RecordBatch.from_pydict(
        {
            ORIGIN: pa.concat_arrays([batch.column(ORIGIN)] * num_sides),
            TEXT: pa.concat_arrays(texts),
            LITERALS: pa.concat_arrays(literals),
            TRAINED: trained,
            _ROW: np.tile(np.arange(num_rows), num_sides),
            _SIDE: np.repeat(np.arange(num_sides), num_rows),
        }
    )


def _drop_literals(batch: pa.RecordBatch, dropped: dict[str, int]) -> pa.RecordBatch:
    """Drop the rows in which someone wrote a special token."""
    is_kept = np.ones(batch.num_rows, dtype=bool)
    sides = _stack_sides(batch)
    has_some = np.diff(sides.column(LITERALS).offsets.to_numpy()) > 0
    for place in np.flatnonzero(has_some).tolist():
        data, spans = sides.column(TEXT)[place].as_py().encode(), sides.column(LITERALS)[place].as_py()
        if not all(is_inside_word(data, *span) for span in zip(spans[::2], spans[1::2], strict=True)):
            is_kept[place % batch.num_rows] = False
    if is_kept.all():
        return batch
    dropped["special_token"] = int(np.count_nonzero(~is_kept))
    return batch.filter(pa.array(is_kept))


@kernel
def share_prompts(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    places: NDArray[np.int64],
    prompts: NDArray[np.int64],
    num_shared: NDArray[np.int64],
) -> None:
    """Count for each row the ids that its texts begin with in common, at most those of each prompt."""
    for row in range(len(num_shared)):
        first = places[0, row]
        count = prompts[first]
        for side in range(1, len(places)):
            other = places[side, row]
            count = min(count, prompts[other])
            for token in range(count):
                if ids[offsets[first] + token] != ids[offsets[other] + token]:
                    count = token
                    break
        num_shared[row] = count


@kernel
def find_equal(
    ids: NDArray[np.uint32],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    is_equal: NDArray[np.bool_],
) -> None:
    """Find the rows whose two answers have the same ids."""
    for row in range(len(is_equal)):
        is_equal[row] = lengths[0, row] == lengths[1, row]
        for token in range(lengths[0, row]):
            if not is_equal[row]:
                break
            is_equal[row] = ids[starts[0, row] + token] == ids[starts[1, row] + token]
