"""Rendered chats to ids, loss masks and kinds.

For byte-level tokenizers and SentencePiece's kind, the position of each token in the text follows from the ids alone:
the running sum of their lengths in bytes. If that sum is not the length of a text (because it was normalised), the text
is encoded again by the reference, which reports positions; so is every text of another kind of tokenizer.

A token has the kind of its first byte, and is trained if that is. A token that begins in the prompt and continues into
the answer (such as a line feed of the prompt and one of the answer, merged) is not trained: no model has to write it.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core import token_kinds
from gristmill.core.errors import ParityError
from gristmill.core.records import (
    IMAGES,
    INPUT_IDS,
    KINDS,
    LITERALS,
    LOSS_MASK,
    ORIGIN,
    SPLIT,
    TEXT,
    WEIGHTS,
    StepResult,
    Texts,
)
from gristmill.core.token_kinds import TRAINED
from gristmill.runtime.kernels import kernel
from gristmill.shards.token_rows import encode_weights, pack_bits
from gristmill.steps.tokenize.text_kernel import (
    AS_TOKEN,
    REJECT,
    EncodingKernel,
    find_quarantined,
    quarantine_not_encoded,
)
from gristmill.text.buffers import get_text_buffers
from gristmill.text.tokenizers.byte_lengths import read_byte_lengths
from gristmill.text.tokenizers.check_tokenizer import id_type
from gristmill.text.tokenizers.engine import REFERENCE, EncodingError, ReferenceEngine, load_engine
from gristmill.text.tokenizers.special_tokens import (
    PlainTextEngine,
    SpecialTokenFinder,
    compile_tokens,
    find_unmarked_controls,
    is_inside_word,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.core.records import QuarantinedRecord
    from gristmill.text.tokenizers.byte_lengths import ByteLengths
    from gristmill.text.tokenizers.engine import Engine
    from gristmill.text.tokenizers.files import TokenizerFiles


_NO_WEIGHTS = np.empty(0, np.float32)


def add_mask_to_schema(schema: pa.Schema, vocab_size: int) -> pa.Schema:
    """Return the schema of tokenized chats: origin and split, the ids, which of them are trained, and their kinds."""
    common = [schema.field(name) for name in (ORIGIN, SPLIT, IMAGES) if name in schema.names]
    ids = pa.list_(pa.type_for_alias(id_type(vocab_size)))
    weights = [pa.field(WEIGHTS, pa.list_(pa.float32()))] if WEIGHTS in schema.names else []
    of_tokens = [pa.field(LOSS_MASK, pa.list_(pa.bool_())), pa.field(KINDS, pa.list_(pa.uint8()))]
    return pa.schema([*common, pa.field(INPUT_IDS, ids), *of_tokens, *weights], schema.metadata)


class TokenizeChatsKernel(EncodingKernel):
    """The kernel for chats: special tokens of the template become tokens, those that people wrote stay text."""

    def __init__(
        self,
        files: TokenizerFiles,
        engine: str,
        policy: str,
        *,
        vocab_size: int,
        max_tokens: int | None,
        cuts: bool,
        image_token: str | None = None,
    ) -> None:
        super().__init__(files, engine, AS_TOKEN, vocab_size=vocab_size)
        self._literal_policy = policy
        self._max_tokens = max_tokens
        self._cuts = cuts
        self._image_id = None if image_token is None else self._engine.facts.added_tokens[image_token]
        self._lengths = read_byte_lengths(files)
        self._specials = SpecialTokenFinder(files)
        self._unmarked = compile_tokens(find_unmarked_controls(self._engine.facts))

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        dropped: dict[str, int] = {}
        if self._literal_policy == REJECT:
            has_none = np.diff(batch.column(LITERALS).offsets.to_numpy()) == 0
            for row in np.flatnonzero(~has_none).tolist():
                data, spans = batch.column(TEXT)[row].as_py().encode(), batch.column(LITERALS)[row].as_py()
                has_none[row] = all(is_inside_word(data, *span) for span in zip(spans[::2], spans[1::2], strict=True))
            if not has_none.all():
                dropped["special_token"] = int(np.count_nonzero(~has_none))
                batch = batch.filter(pa.array(has_none))
        texts = Texts(batch.column(TEXT))
        num_before = self._num_by_reference
        batch, texts, ids, offsets, quarantined = self._encode(batch, texts)
        sizes = texts.sizes
        self._refuse_unknown(ids)
        num_checked = self._check_parity(batch, texts, ids, offsets, seed)
        ids, offsets, codes, num_by_reference, not_placed = self._code_tokens(batch, ids, offsets, sizes)
        if not_placed:
            quarantined += not_placed
            is_good = ~find_quarantined(batch, not_placed)
            is_token_good = np.repeat(is_good, np.diff(offsets))
            ids, codes = ids[is_token_good], codes[is_token_good]
            offsets = np.concatenate([[0], np.cumsum(np.diff(offsets)[is_good])])
            batch, sizes = batch.filter(pa.array(is_good)), sizes[is_good]
        if self._image_id is not None:
            ids, offsets, codes = _repeat_image_tokens(self._image_id, batch.column(IMAGES), ids, offsets, codes)
        lengths = np.diff(offsets)
        ids, offsets, codes, is_kept = self._fit_to_limit(ids, offsets, codes, dropped)
        counters = {
            "tokens": len(ids),
            "trained_tokens": int(np.count_nonzero((codes & TRAINED) != 0)),
            "bytes": int(sizes[is_kept].sum()),
            "placed_by_reference": num_by_reference,
            "parity_checked": num_checked,
        }
        counters |= self._count_by_reference(num_before)
        num_cut = (lengths[is_kept] - np.diff(offsets)) if self._cuts else np.zeros(0, np.int64)
        if num_cut.any():
            counters |= {"cut_chats": int(np.count_nonzero(num_cut)), "cut_tokens": int(num_cut.sum())}
        if not is_kept.all():
            batch = batch.filter(pa.array(is_kept))
        built = self._build_chat_batch(batch, ids, offsets, codes)
        return StepResult(built, dropped, quarantined=quarantined, counters=counters)

    def _code_tokens(
        self, batch: pa.RecordBatch, ids: NDArray[np.uint32], offsets: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.unsignedinteger], int, list[QuarantinedRecord]]:
        """Return the ids with their codes, how many rows were encoded again, and the rows that no engine can encode so.

        A row is encoded again if it holds literals, or if the lengths of its tokens do not add up.
        """
        kinds = batch.column(KINDS)
        dtype: type[np.unsignedinteger] = np.uint16 if WEIGHTS in batch.schema.names else np.uint8
        codes, is_unplaced = _code_by_lengths(self._lengths, ids, offsets, sizes, kinds, dtype)
        if self._lengths is not None and self._lengths.unicode_form is not None:
            is_unplaced |= _is_changed_by(self._lengths.unicode_form, batch.column(TEXT))
        has_literals = np.diff(batch.column(LITERALS).offsets.to_numpy()) > 0
        if self._literal_policy == AS_TOKEN:
            has_literals[:] = False  # then literals are tokens like those of the template: nothing to encode again
        replaced: dict[int, tuple[NDArray[np.uint32], NDArray[np.unsignedinteger]]] = {}
        not_placed: list[QuarantinedRecord] = []
        for row in np.flatnonzero(is_unplaced | has_literals).tolist():
            text = batch.column(TEXT)[row].as_py()
            changes = np.array(kinds[row].as_py(), dtype=np.int64).reshape(-1, 2)
            try:
                if has_literals[row]:
                    row_ids, token_spans = self._encode_around_literals(text, batch.column(LITERALS)[row].as_py())
                else:
                    reference = self._reference
                    assert isinstance(reference, ReferenceEngine)
                    row_ids, token_spans = reference.token_spans(text)
            except EncodingError as error:
                not_placed.append(quarantine_not_encoded(batch.column(ORIGIN)[row].as_py(), text, error))
                continue
            replaced[row] = row_ids, _code_by_spans(token_spans, changes, dtype)
        if replaced:
            ids, offsets, codes = _replace_rows(ids, offsets, codes, replaced)
        return ids, offsets, codes, len(replaced), not_placed

    def _encode_around_literals(self, text: str, literals: list[int]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode a text in which special tokens outside the literals are tokens, and those inside are text."""
        ids: list[NDArray[np.uint32]] = []
        token_spans: list[NDArray[np.int64]] = []
        start = 0
        data = text.encode()
        begins, ends = literals[::2], literals[1::2]
        for begin, end, token in self._find_special_tokens(data):
            # The last literal that begins before the token ends. If it reaches into the token, a person wrote that.
            inside = bisect_right(begins, end - 1) - 1
            if inside >= 0 and begin < ends[inside]:
                continue
            self._add_text(data[start:begin].decode(), start, ids, token_spans)
            ids.append(np.array([self._engine.facts.added_tokens[token]], dtype=np.uint32))
            token_spans.append(np.array([[begin, end]], dtype=np.int64))
            start = end
        self._add_text(data[start:].decode(), start, ids, token_spans)
        return np.concatenate(ids), np.concatenate(token_spans)

    def _find_special_tokens(self, data: bytes) -> Iterator[tuple[int, int, str]]:
        """Like `SpecialTokenFinder.find`, with positions in bytes."""
        text = data.decode()
        position = end_byte = 0
        for begin, end, token in self._specials.find(text):
            begin_byte = end_byte + len(text[position:begin].encode())
            end_byte = begin_byte + len(text[begin:end].encode())
            yield begin_byte, end_byte, token
            position = end

    def _add_text(
        self, text: str, start: int, ids: list[NDArray[np.uint32]], token_spans: list[NDArray[np.int64]]
    ) -> None:
        if not text:
            return
        if self._unmarked is not None and self._unmarked.search(text):
            text_ids, spans = self._plain_engine.token_spans(text)
            ids.append(text_ids)
            token_spans.append(spans + start)
            return
        text_ids, _ = self._text_engine.encode([text])
        whole = np.array([0, len(text_ids)])
        ends = np.cumsum(self._lengths.of(text_ids, whole)) if self._lengths is not None else None
        if ends is not None and len(ends) and ends[-1] == len(text.encode()):
            spans = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1)
        else:
            text_ids, spans = self._text_reference.token_spans(text)
        ids.append(text_ids)
        token_spans.append(spans + start)

    @property
    def _num_by_reference(self) -> int:
        text_engine = vars(self).get("_text_engine")  # only if it is loaded: asking the property would load it
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
        codes: NDArray[np.unsignedinteger],
        dropped: dict[str, int],
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.unsignedinteger], NDArray[np.bool_]]:
        """Cut or drop chats that are too long, and drop those without a trained token; return which are kept."""
        lengths = np.diff(offsets)
        is_kept = np.ones(len(lengths), dtype=bool)
        if self._max_tokens is not None and (lengths > self._max_tokens).any():
            if self._cuts:
                is_within = np.arange(len(ids)) - np.repeat(offsets[:-1], lengths) < self._max_tokens
                ids, codes, lengths = ids[is_within], codes[is_within], np.minimum(lengths, self._max_tokens)
                offsets = np.concatenate([[0], np.cumsum(lengths)])
            else:
                is_kept = lengths <= self._max_tokens
                dropped["too_long"] = int(np.count_nonzero(~is_kept))
        # After the cut: a chat whose answers were all cut off would cost a row and train nothing.
        is_trained = np.zeros(len(lengths), dtype=bool)
        find_trained_rows(codes, _as_read_only(offsets), is_trained)
        if not is_trained[is_kept].all():
            dropped["no_trained_tokens"] = int(np.count_nonzero(is_kept & ~is_trained))
            is_kept &= is_trained
        if not is_kept.all():
            is_token_kept = np.repeat(is_kept, lengths)
            ids, codes = ids[is_token_kept], codes[is_token_kept]
            offsets = np.concatenate([[0], np.cumsum(lengths[is_kept])])
        return ids, offsets, codes, is_kept

    def _build_chat_batch(
        self,
        batch: pa.RecordBatch,
        ids: NDArray[np.uint32],
        offsets: NDArray[np.int64],
        codes: NDArray[np.unsignedinteger],
    ) -> pa.RecordBatch:
        schema = add_mask_to_schema(batch.schema, self._vocab_size)
        starts = pa.array(offsets.astype(np.int32))
        columns = {
            **{name: batch.column(name) for name in (ORIGIN, SPLIT, IMAGES) if name in schema.names},
            INPUT_IDS: pa.ListArray.from_arrays(starts, pa.array(ids.astype(self._dtype))),
            LOSS_MASK: pa.ListArray.from_arrays(starts, pack_bits((codes & TRAINED) != 0)),
            KINDS: pa.ListArray.from_arrays(starts, pa.array((codes & token_kinds.KIND_BITS).astype(np.uint8))),
        }
        if WEIGHTS in schema.names:
            columns[WEIGHTS] = _make_weight_runs(batch.column(WEIGHTS), offsets, codes)
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _repeat_image_tokens(
    image_id: int,
    images: pa.ListArray,
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    codes: NDArray[np.unsignedinteger],
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.unsignedinteger]]:
    """Repeat the token of each image as often as the image has tokens; none of them is trained."""
    is_image = ids == image_id
    ends = np.concatenate([[0], np.cumsum(is_image)])
    num_written = np.diff(ends[offsets])
    if not np.array_equal(num_written, np.diff(images.offsets.to_numpy())):
        row = int(np.argmax(num_written != np.diff(images.offsets.to_numpy())))
        raise ParityError(
            f"a chat has {len(images[row])} images and {num_written[row]} image tokens: {images[row].as_py()!r:.200}"
        )
    repeats = np.ones(len(ids), dtype=np.int64)
    repeats[is_image] = images.flatten().field("tokens").to_numpy()
    starts = np.concatenate([[0], np.cumsum(repeats)])
    return (
        np.repeat(ids, repeats),
        starts[offsets],
        np.repeat(np.where(is_image, codes.dtype.type(token_kinds.IMAGE), codes), repeats),
    )


def _make_weight_runs(
    tables: pa.ListArray, offsets: NDArray[np.int64], codes: NDArray[np.unsignedinteger]
) -> pa.ListArray:
    """Return the weights of chats as runs. Each has a table of its weights, whose numbers are in the codes."""
    runs: list[list[float]] = []
    for table, start, end in zip(tables.to_pylist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        weights = (
            np.array([1.0, *table], np.float32)[codes[start:end] >> token_kinds.CODE_BITS] if table else _NO_WEIGHTS
        )
        runs.append(encode_weights(weights))
    return pa.array(runs, pa.list_(pa.float32()))


def _code_by_lengths(
    lengths: ByteLengths | None,
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
    kinds: pa.ListArray,
    dtype: type[np.unsignedinteger],
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.bool_]]:
    """Return the code of each id, and the rows for which the lengths of their tokens cannot tell."""
    codes, is_unplaced = np.zeros(len(ids), dtype), np.ones(len(sizes), dtype=bool)
    if lengths is not None:
        change_offsets = kinds.offsets.to_numpy().astype(np.int64)
        code_tokens(
            *(_as_read_only(ids), _as_read_only(offsets), lengths.by_id, lengths.is_added),
            *(lengths.marks_text, lengths.marks_behind_added, _as_read_only(sizes)),
            *(_as_read_only(kinds.flatten().to_numpy()), change_offsets - change_offsets[0]),
            codes,
            is_unplaced,
        )
    return codes, is_unplaced


def _as_read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of an array that may or may not be written to: kernels would be compiled for both kinds."""
    view = array.view()
    view.flags.writeable = False
    return view


def _is_changed_by(unicode_form: str, texts: pa.LargeStringArray) -> NDArray[np.bool_]:
    """For each text whether it is not in this normal form of Unicode."""
    is_changed: NDArray[np.bool_] = pc.invert(pc.string_is_ascii(texts)).to_numpy(zero_copy_only=False)
    if unicode_form == "NFC" and is_changed.any():
        find_composable_texts(*get_text_buffers(texts), is_changed)
    suspects = np.flatnonzero(is_changed)
    if len(suspects):
        chosen = texts.take(pa.array(suspects))
        normal = pc.utf8_normalize(chosen, unicode_form)
        is_changed[suspects] = pc.not_equal(normal, chosen).to_numpy(zero_copy_only=False)
    return is_changed


def _code_by_spans(
    token_spans: NDArray[np.int64], changes: NDArray[np.int64], dtype: type[np.unsignedinteger]
) -> NDArray[np.unsignedinteger]:
    """Return the code of the byte at which each token begins."""
    numbers = np.searchsorted(changes[:, 0], token_spans[:, 0], side="right")
    codes: NDArray[np.unsignedinteger] = np.concatenate([[0], changes[:, 1]]).astype(dtype)[numbers]
    return codes


def _replace_rows(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    codes: NDArray[np.unsignedinteger],
    replaced: dict[int, tuple[NDArray[np.uint32], NDArray[np.unsignedinteger]]],
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.unsignedinteger]]:
    """Replace the ids and codes of some rows."""
    new_ids, new_codes, lengths = [], [], np.diff(offsets)
    num_copied = 0
    for row, (row_ids, row_codes) in sorted(replaced.items()):
        new_ids += [ids[offsets[num_copied] : offsets[row]], row_ids]
        new_codes += [codes[offsets[num_copied] : offsets[row]], row_codes]
        lengths[row] = len(row_ids)
        num_copied = row + 1
    new_ids.append(ids[offsets[num_copied] :])
    new_codes.append(codes[offsets[num_copied] :])
    return np.concatenate(new_ids), np.concatenate([[0], np.cumsum(lengths)]), np.concatenate(new_codes)


@kernel
def code_tokens(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int32],
    is_added: NDArray[np.bool_],
    begins_text: bool,  # noqa: FBT001
    begins_after_added: bool,  # noqa: FBT001
    sizes: NDArray[np.int64],
    changes: NDArray[np.int64],
    change_offsets: NDArray[np.int64],
    codes: NDArray[np.unsignedinteger],
    is_unplaced: NDArray[np.bool_],
) -> None:
    """Find the code of the byte at which each token begins; and the texts whose tokens do not add up to their size.

    `lengths` and `is_added` are by id. A piece of text may begin with a mark that stands for nothing: at the beginning
    of a text (`begins_text`), and after each added token.
    """
    for row in range(len(sizes)):
        position = 0
        change, last_change = change_offsets[row], change_offsets[row + 1]
        code = 0
        has_mark = begins_text
        for token in range(offsets[row], offsets[row + 1]):
            number = ids[token]
            while change < last_change and changes[change] <= position:
                code = changes[change + 1]
                change += 2
            codes[token] = code
            position += lengths[number]
            if is_added[number]:
                has_mark = begins_after_added
            else:
                position -= has_mark
                has_mark = False
        is_unplaced[row] = position != sizes[row]


@kernel
def find_composable_texts(data: NDArray[np.uint8], offsets: NDArray[np.int64], may_compose: NDArray[np.bool_]) -> None:
    """Find the texts that NFC might change, among those that are marked: those with a character outside of some ranges.

    The ranges are U+0000 to U+02FF (Latin), U+0400 to U+047F (Cyrillic), U+2010 to U+205F (punctuation), U+3000 to
    U+3029, U+3040 to U+3098 and U+309B to U+9FFF (Chinese, Japanese), U+AC00 to U+D7A3 (Korean), U+FF00 to U+FFFF
    (wide forms) and U+1F000 to U+1FFFF (emoji): none of these composes with another one, decomposes, or is sorted.
    """
    for row in range(len(offsets) - 1):
        if not may_compose[row]:
            continue
        position, stop = offsets[row], offsets[row + 1]
        is_stable = True
        while position < stop and is_stable:
            first = data[position]
            if first < 0xCC:  # ASCII, continuation bytes, and characters of two bytes up to U+02FF
                position += 1
                continue
            if 0xE4 <= first <= 0xE9:  # U+4000 to U+9FFF, most of all Chinese characters
                position += 3
                continue
            is_stable = False
            if 0xD0 <= first <= 0xD1:
                is_stable = True
                position += 2
            elif 0xE2 <= first <= 0xEF:
                code = (first & 15) << 12 | (data[position + 1] & 63) << 6 | (data[position + 2] & 63)
                is_stable = (
                    0x309B <= code <= 0x9FFF
                    or 0x3040 <= code <= 0x3098
                    or 0x2010 <= code <= 0x205F
                    or 0x3000 <= code <= 0x3029
                    or 0xAC00 <= code <= 0xD7A3
                    or code >= 0xFF00
                )
                position += 3
            elif first == 0xF0 and data[position + 1] == 0x9F:
                is_stable = True
                position += 4
        may_compose[row] = not is_stable


@kernel
def find_trained_rows(
    codes: NDArray[np.unsignedinteger], offsets: NDArray[np.int64], is_trained: NDArray[np.bool_]
) -> None:
    """Find the texts that have a trained token."""
    for row in range(len(is_trained)):
        is_trained[row] = False
        for token in range(offsets[row], offsets[row + 1]):
            if codes[token] & TRAINED:
                is_trained[row] = True
                break
