"""The arrays of a batch of preferences: each answer after its prompt, as trainers compare them.

A stored row is a prompt and its answers. A batch is made of segments of such rows, each copied to its place by one
kernel. For a row with the prompt `p p`, chosen `c` and rejected `r r`:

    padded    p p c ·        completion_mask  0 0 1 0     chosen answers first, then rejected ones, as in TRL
              p p r r                         0 0 1 1
    packed    p p c p p r r  position_ids     0 1 2 0 1 2 3
    shared    p p c r r      position_ids     0 1 2 2 3   part_ids  0 0 1 2 2
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from gristmill.core.checks import check_bool, check_choice, check_whole_number
from gristmill.core.errors import UsageError
from gristmill.runtime.kernels import kernel
from gristmill.shards.token_rows import LABEL, list_parts
from gristmill.stream.collate import INPUT_IDS, MAX_WIDTH, Collate
from gristmill.stream.mapped_memory import memory
from gristmill.stream.stream_kernels import A_DOCUMENTS, A_ID_BYTES, A_IDS, A_LENGTHS, FLOOR, IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

PADDED, PACKED, SHARED = FORMS = ("padded", "packed", "shared")
_KL = "KL_"


class PairCollate(msgspec.Struct, frozen=True, kw_only=True):
    """The arrays of a batch of preferences, and their form.

    `padded`: a row for each answer with its prompt, those of chosen answers first: `input_ids`, `attention_mask` and
    `completion_mask`, as TRL's `DPOTrainer` makes them. Of labeled answers there is also `label`, and for the estimate
    of the KL divergence the prompts with the completions of the row before (`KL_input_ids`, …), as in `KTOTrainer`.

    `packed`: the same sequences in one row without padding, with `position_ids` and the ends of sequences.

    `shared`: each prompt once, followed by its answers in one row; `part_ids` say what a token belongs to (0 is the
    prompt, 1 the chosen answer, 2 the rejected one, -1 padding). An answer must not attend to the other one.

    >>> PairCollate(values=("margin",)).form
    'padded'
    """

    form: Literal["padded", "packed", "shared"] = "padded"
    """`padded`, `packed` or `shared`."""
    dtype: Literal["int64", "int32"] = "int64"
    pad_to_multiple: int = 1
    """Rows are padded to the longest of the batch, rounded up to a multiple of this; and so is one row for all."""
    pad_id: int | None = None
    """The id of padding. None: what the tokenizer defines, or else its end-of-text id."""
    labels: bool = False
    """Whether there are `labels`, too: the ids of answers, and -100 elsewhere."""
    kl: bool = True
    """Whether batches of labeled answers have the `KL_` arrays."""
    values: tuple[str, ...] = ()
    """Columns of the rows that batches hold as well: `margin`, `score_chosen`, `score_rejected`, `score`; nan where a
    record has none."""

    def __post_init__(self) -> None:
        check_choice("form", self.form, FORMS)
        check_choice("dtype", self.dtype, ("int64", "int32"))
        changes: dict[str, Any] = {
            "pad_to_multiple": check_whole_number("pad_to_multiple", self.pad_to_multiple, least=1, most=MAX_WIDTH),
            "labels": check_bool("labels", self.labels),
            "kl": check_bool("kl", self.kl),
            "values": tuple(self.values),
        }
        if self.pad_id is not None:
            changes["pad_id"] = check_whole_number("pad_id", self.pad_id, least=-(1 << 31), most=(1 << 31) - 1)
        for name, value in changes.items():
            msgspec.structs.force_setattr(self, name, value)

    @property
    def fields(self) -> tuple[str, ...]:
        """The arrays of each sequence."""
        names = {PADDED: ("attention_mask",), PACKED: ("position_ids",), SHARED: ("position_ids", "part_ids")}
        return (INPUT_IDS, *names[self.form], "completion_mask", *(("labels",) if self.labels else ()))

    @property
    def flatten(self) -> bool:
        """Whether all rows are in one."""
        return self.form != PADDED


def choose_collate(options: Collate | PairCollate | None, schema: pa.Schema, kind: str) -> Collate | PairCollate:
    """Choose how rows with these columns become batches.

    Raises:
        UsageError: The options are for other rows.
    """
    parts = list_parts(schema)
    if not parts:
        if isinstance(options, PairCollate):
            raise UsageError(f"collate: PairCollate is for preferences, and these are {kind}", help="use Collate")
        return options or Collate()
    if isinstance(options, Collate):
        raise UsageError(
            "collate: rows of preferences have a prompt and answers to it, which Collate would put one after another",
            help='use PairCollate(form="padded"), or leave collate out',
        )
    options = options or PairCollate()
    known = [name for name in schema.names if name.startswith(("margin", "score"))]
    for name in options.values:
        check_choice("values", name, known)
    return options


def collate_pairs(
    addresses: NDArray[np.int64],
    options: PairCollate,
    pad_id: int,
    read_values: Callable[[str], NDArray[Any]],
    *,
    has_labels: bool,
    new: Any = np.empty,
) -> dict[str, Any]:
    """Fill the arrays of a batch; `read_values` reads a column of its rows, `new` makes arrays."""
    num_answers = 1 if has_labels else 2
    lengths = np.zeros((len(addresses), 1 + num_answers), dtype=np.int64)
    read_lengths(addresses, memory().int32, lengths)
    rows = np.arange(len(addresses))
    answers = [(rows, rows, part) for part in range(1, num_answers + 1)]
    arrays = _fill_sequences(addresses, lengths, answers, options, pad_id, new)
    if has_labels:
        arrays[LABEL] = read_values(LABEL) == 1
        if options.kl:
            # The completions of the batch with the prompts after theirs, as TRL pairs them.
            real = rows[addresses[:, A_DOCUMENTS] > 0]
            mismatched = rows.copy()
            mismatched[real] = np.roll(real, 1)
            shifted = _fill_sequences(addresses, lengths, [(rows, mismatched, 1)], options, pad_id, new)
            arrays |= {_KL + name: array for name, array in shifted.items()}
    return arrays | {name: read_values(name) for name in options.values}


def _fill_sequences(
    addresses: NDArray[np.int64],
    lengths: NDArray[np.int64],
    answers: Sequence[tuple[NDArray[np.int64], NDArray[np.int64], int]],
    options: PairCollate,
    pad_id: int,
    new: Any,
) -> dict[str, Any]:
    """Fill the arrays of the sequences of some answers, each given as rows of prompts, rows of answers, and a part."""
    width = 0
    if options.form == SHARED:
        sizes = lengths.sum(axis=1)
        starts = np.cumsum(sizes) - sizes
        segments = [_list_segments(np.arange(len(lengths)), 0, np.zeros_like(starts), starts)]
        places = starts + lengths[:, 0]
        for _, rows, part in answers:
            segments.append(_list_segments(rows, part, lengths[:, 0], places))
            places = places + lengths[rows, part]
    else:
        sizes = np.concatenate([lengths[prompts, 0] + lengths[rows, part] for prompts, rows, part in answers])
        starts = np.cumsum(sizes) - sizes
        width = _round_up(int(sizes.max(initial=1)), options)
        if options.form == PADDED:
            starts = np.arange(len(sizes)) * width
        segments = []
        for number, (prompts, rows, part) in enumerate(answers):
            begins = starts[number * len(prompts) : (number + 1) * len(prompts)]
            segments.append(_list_segments(prompts, 0, np.zeros_like(begins), begins))
            segments.append(_list_segments(rows, part, lengths[prompts, 0], begins + lengths[prompts, 0]))
    shape = (len(sizes), width) if options.form == PADDED else (1, _round_up(int(sizes.sum()), options))
    empty = np.empty((0, 0), dtype=options.dtype)
    names = (INPUT_IDS, "attention_mask", "completion_mask", "labels", "position_ids", "part_ids")
    arrays = {name: new(shape, options.dtype) for name in options.fields}
    copy_segments(
        addresses,
        memory().uint16,
        memory().uint32,
        lengths,
        np.concatenate(segments),
        pad_id,
        *(np.asarray(arrays.get(name, empty)).reshape(-1) for name in names),
    )
    if options.form != PADDED:
        ends = np.append(np.concatenate([[0], np.cumsum(sizes)])[: 1 + len(sizes)], shape[1])
        ends = np.unique(ends).astype(np.int32)
        arrays["cu_seqlens"] = new((len(ends),), "int32")
        arrays["cu_seqlens"][:] = ends
        arrays["max_seqlen"] = int(np.diff(ends).max(initial=0))
    return arrays


def _round_up(width: int, options: PairCollate) -> int:
    return -(-max(width, 1) // options.pad_to_multiple) * options.pad_to_multiple


def _list_segments(
    rows: NDArray[np.int64], part: int, positions: NDArray[np.int64], places: NDArray[np.int64]
) -> NDArray[np.int64]:
    """List segments: the row and part that each is copied from, its first position, and its place in the batch."""
    return np.stack([rows, np.full(len(rows), part), positions, places], axis=1)


@kernel
def read_lengths(addresses: NDArray[np.int64], numbers: NDArray[np.int32], lengths: NDArray[np.int64]) -> None:
    """Read the lengths of the parts of each row; a row that only fills up a batch has none."""
    for row in range(len(addresses)):
        first = (addresses[row, A_LENGTHS] - FLOOR) >> 2
        for part in range(addresses[row, A_DOCUMENTS]):
            lengths[row, part] = numbers[first + part]


@kernel
def copy_segments(
    addresses: NDArray[np.int64],
    memory_16: NDArray[np.uint16],
    memory_32: NDArray[np.uint32],
    lengths: NDArray[np.int64],
    segments: NDArray[np.int64],
    pad_id: int,
    ids: NDArray[np.signedinteger],
    attention: NDArray[np.signedinteger],
    completion: NDArray[np.signedinteger],
    labels: NDArray[np.signedinteger],
    positions: NDArray[np.signedinteger],
    parts: NDArray[np.signedinteger],
) -> None:
    """Copy the segments to their places, and pad all others."""
    ids[:] = pad_id
    attention[:] = 0
    completion[:] = 0
    labels[:] = IGNORED
    parts[:] = -1
    positions[:] = 0
    for segment in range(len(segments)):
        row, part, first_position, place = segments[segment]
        length = lengths[row, part]
        source = 0
        for before in range(part):
            source += lengths[row, before]
        narrow = addresses[row, A_ID_BYTES] == 2
        source += (addresses[row, A_IDS] - FLOOR) >> (1 if narrow else 2)
        for token in range(length):
            number = int(memory_16[source + token]) if narrow else int(memory_32[source + token])
            ids[place + token] = number
            if part > 0 and len(labels):
                labels[place + token] = number
        if len(attention):
            attention[place : place + length] = 1
        if part > 0:
            completion[place : place + length] = 1
        if len(positions):
            for token in range(length):
                positions[place + token] = first_position + token
        if len(parts):
            parts[place : place + length] = part
