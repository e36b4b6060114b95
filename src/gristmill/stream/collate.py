"""The arrays of a batch: rows are widened, padded and labeled by one kernel that writes every array in one pass."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec
import numpy as np

from gristmill.core.checks import check_bool, check_choice, check_whole_number
from gristmill.core.errors import UsageError
from gristmill.core.records import LOSS_WEIGHTS
from gristmill.core.token_kinds import TOKEN_KINDS, check_kinds
from gristmill.stream.mapped_memory import memory
from gristmill.stream.stream_kernels import A_DOCUMENTS, A_FILLED, A_SHARD, A_STORED, align_documents, fill

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray


INPUT_IDS = "input_ids"
MATRICES = (INPUT_IDS, "labels", "position_ids", "document_ids", "attention_mask")
FIELDS = (*MATRICES, LOSS_WEIGHTS, "cu_seqlens", "row_mask")
_MAX_WIDTH = 1 << 24
_EMPTY_MATRICES = {dtype: np.empty((0, 0), dtype=dtype) for dtype in ("int64", "int32")}
_NO_ENDS = np.empty(0, dtype=np.int32)
_NO_WEIGHTS = np.empty((0, 0), dtype=np.float32)
_NO_KINDS = np.empty(0, dtype=np.float32)
_AS_STORED = -1.0


class Collate(msgspec.Struct, frozen=True, kw_only=True):
    """The arrays that a batch holds, and their form.

    `fields` names the arrays: `Collate(fields=("input_ids", "labels", "position_ids", "cu_seqlens"))`; there are also
    `document_ids`, `attention_mask` and `row_mask`.

    `train` and `weights` say by [kind](chats.md#kinds-of-tokens) what is trained, instead of the loss mask that the
    dataset was rendered with: `Collate(train=("assistant", "call", "end"), weights={"reasoning": 0.5})`. With
    `loss_weights` among the fields, a batch has the weight of each label.

    `labels` are the ids themselves, as `transformers` expects them (the model shifts), or with `labels="shifted"` the
    ids that follow, as Megatron expects them. Padding and tokens that are not trained have the label -100.
    """

    fields: tuple[str, ...] = (INPUT_IDS, "labels")
    """The arrays: input_ids, labels, position_ids, document_ids (-1 on padding), attention_mask, loss_weights (float32,
    0 where labels are -100), cu_seqlens (with max_seqlen; padding counts as a document), row_mask (False for rows that
    only fill up the last batch)."""
    dtype: Literal["int64", "int32"] = "int64"
    labels: Literal["same", "shifted"] = "same"
    train: tuple[str, ...] | None = None
    """The kinds of tokens that are trained: system, user, result, assistant, reasoning, call, end, template, context,
    document. None: those of the stored loss mask."""
    weights: dict[str, float] = {}
    """The weights of kinds, which are trained with them: 0 leaves a kind out. Other kinds have the weight 1."""
    learn_first_token: bool = True
    """Whether the first token of a document is trained, although it is predicted from the end of another document."""
    pad_to_multiple: int = 1
    """Rows of different lengths are padded to the longest of the batch, rounded up to a multiple of this."""
    align: int = 1
    """Pad each document to a multiple of this, in rows that were packed with `pack: {align: …}`. The padding belongs to
    the document in position_ids and cu_seqlens, and first tokens of documents are not trained."""
    pad_id: int | None = None
    """The id of all padding. None: rows keep the padding that they were packed with, and added padding has the id that
    the tokenizer defines, or else its end-of-text id."""
    flatten: bool = False
    """Put all rows of a batch into one, as models of transformers expect packed documents. `cu_seqlens` then has the
    names that their flash attention reads: cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k. First tokens of
    documents are not trained. Needs position_ids."""
    token_columns: tuple[str, ...] = ()
    """Other stored columns with a number for each token, such as `loss_weights` or `logprobs` of literal tokens; 0 on
    padding. Each number is at the place of its token, also with shifted labels."""
    cu_seqlens_size: int | None = None
    """Fill `cu_seqlens` up to this many numbers with its last one, so that its shape never changes."""

    def __post_init__(self) -> None:
        fields: Any = self.fields
        if isinstance(fields, str):
            raise UsageError(f'fields must be a list: ("{fields}",)')
        changes: dict[str, Any] = {
            "fields": tuple(fields),
            "pad_to_multiple": check_whole_number("pad_to_multiple", self.pad_to_multiple, least=1, most=_MAX_WIDTH),
            "align": check_whole_number("align", self.align, least=1, most=_MAX_WIDTH),
            "learn_first_token": check_bool("learn_first_token", self.learn_first_token),
            "flatten": check_bool("flatten", self.flatten),
        }
        if self.pad_id is not None:
            changes["pad_id"] = check_whole_number("pad_id", self.pad_id, least=-(1 << 31), most=(1 << 31) - 1)
        if self.cu_seqlens_size is not None:
            changes["cu_seqlens_size"] = check_whole_number(
                "cu_seqlens_size", self.cu_seqlens_size, least=2, most=1 << 31
            )
        names: Any = self.token_columns
        if isinstance(names, str):
            raise UsageError(f'token_columns must be a list: ("{names}",)')
        changes["token_columns"] = tuple(names)
        for name, value in changes.items():
            msgspec.structs.force_setattr(self, name, value)
        for field in self.fields:
            check_choice("fields", field, FIELDS)
        check_choice("dtype", self.dtype, ("int64", "int32"))
        check_choice("labels", self.labels, ("same", "shifted"))
        if self.token_columns and self.align > 1:
            raise UsageError("align spaces out documents, and token_columns stay where they are", help="leave one out")
        if INPUT_IDS not in self.fields:
            raise UsageError("a batch must hold input_ids", help=f'fields=("{INPUT_IDS}", …)')
        self._check_kinds()
        if self.flatten and "position_ids" not in self.fields:
            raise UsageError(
                "flatten needs position_ids: without them a model counts positions through all rows of the batch",
                help='fields=("input_ids", "labels", "position_ids", "cu_seqlens")',
            )

    def _check_kinds(self) -> None:
        weights: Any = self.weights
        if self.train is not None:
            msgspec.structs.force_setattr(self, "train", check_kinds("train", self.train))
        if not isinstance(weights, Mapping):
            raise UsageError(f"weights must be a mapping of kinds to numbers, not {weights!r:.80}")
        check_kinds("weights", list(weights))
        for kind, weight in weights.items():
            if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
                raise UsageError(f"the weight of {kind} must be a number from 0 on, not {weight!r:.40}")
        has_weights = any(weight not in (0, 1) for weight in weights.values())
        if has_weights and LOSS_WEIGHTS not in self.fields:
            raise UsageError(
                "weights: labels alone can only leave tokens out, and these weights are neither 0 nor 1",
                help=f'add "{LOSS_WEIGHTS}" to the fields, and multiply the loss of each token by it',
            )
        if LOSS_WEIGHTS in self.fields and "labels" not in self.fields:
            raise UsageError(f"{LOSS_WEIGHTS} are the weights of labels", help='add "labels" to the fields')

    @property
    def chooses_kinds(self) -> bool:
        """Whether the kinds of tokens decide what is trained."""
        return self.train is not None or bool(self.weights)


class Batch(dict[str, Any]):
    """The arrays of a batch by name, so that `model(**batch)` works, with the rows that it consists of as attributes.

    `first_row` and `next_row` are those of the *global* batch, the same on every rank. A run that has used this batch
    resumes at `next_row`.
    """

    first_row: int
    next_row: int
    sources: NDArray[np.int64]
    """The source of each row, as a number in `Stream.sources`; -1 for rows that only fill up the last batch."""
    tokens: NDArray[np.int64]
    """The number of tokens in each row, without padding."""
    num_positions: int
    """The number of tokens in all rows together, with padding."""
    num_replaced: int = 0
    """The number of samples that could not be used, and were replaced by others."""
    num_skipped: int = 0
    """The number of samples that `transform` left out, and that were replaced by others."""
    kinds: NDArray[np.int64] | None = None
    """The number of tokens of each kind, in the order of `TOKEN_KINDS`; None: no row is of a chat."""

    def to(self, *arguments: Any, **options: Any) -> Self:
        """Return the batch with its tensors on another device; the arguments are those of `torch.Tensor.to`.

        Lightning and accelerate call this too, instead of making a plain copy of the mapping without the attributes.
        """
        moved = copy.copy(self)
        moved.update({name: _move(value, arguments, options) for name, value in self.items()})
        return moved

    def __getattr__(self, name: str) -> NoReturn:
        """Explain why an attribute is missing: a plain `Trainer` and parts of accelerate copy only the arrays."""
        reason = ""
        if name in (*Batch.__annotations__, "row_mask"):
            reason = (
                ": a library made it of the arrays of another batch, with type(batch)({…}); read the attributes before "
                "that, put row_mask into the fields of Collate, or use StreamTrainer"
            )
        raise AttributeError(f"this batch has no attribute {name!r}{reason}", name=name, obj=self)

    @property
    def row_mask(self) -> NDArray[np.bool_]:
        """False for rows that only fill up the last batch."""
        return self.sources >= 0


def _move(value: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if hasattr(value, "to"):
        return value.to(*arguments, **options)
    if isinstance(value, dict):
        return {name: _move(each, arguments, options) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        moved = [_move(each, arguments, options) for each in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    return value


def find_width(addresses: NDArray[np.int64], options: Collate) -> int:
    """Find the width of a batch of rows that differ in length: the longest, rounded up, and never 0."""
    longest = int(addresses[:, A_STORED].max(initial=1))
    return -(-longest // options.pad_to_multiple) * options.pad_to_multiple


def collate(
    addresses: NDArray[np.int64], options: Collate, width: int, pad_id: int, new: Any = np.empty
) -> dict[str, Any]:
    """Fill the arrays of a batch; `new` makes them (a trainer may want them in pinned memory)."""
    num_rows = len(addresses)
    if options.pad_id is not None:  # it also replaces the padding that rows were packed with
        addresses = addresses.copy()
        addresses[:, A_STORED] = addresses[:, A_FILLED]
    arrays: dict[str, Any] = {}
    for name in MATRICES:
        if name in options.fields:
            arrays[name] = new((num_rows, width), options.dtype)
    empty = _EMPTY_MATRICES[options.dtype]  # a kernel takes arrays only: an empty one stands for None
    weights = new((num_rows, width), "float32") if LOSS_WEIGHTS in options.fields else _NO_WEIGHTS
    wants_ends = "cu_seqlens" in options.fields
    # At most a 0, the end of each document and that of each row.
    most_ends = max(1 + num_rows + int(addresses[:, A_DOCUMENTS].sum()), options.cu_seqlens_size or 0)
    ends = new((most_ends,), "int32") if wants_ends else _NO_ENDS
    outputs = (*(arrays.get(name, empty) for name in MATRICES), weights, ends)
    if LOSS_WEIGHTS in options.fields:
        arrays[LOSS_WEIGHTS] = weights
    shift = 1 if options.labels == "shifted" else 0
    learn_first = 1 if options.learn_first_token and options.align == 1 and not options.flatten else 0
    by_kind = _weigh_kinds(options) if options.chooses_kinds else _NO_KINDS
    num_ends, longest = fill(addresses, *memory(), by_kind, pad_id, shift, learn_first, *outputs)
    if options.align > 1:
        row, num_ends, longest = align_documents(addresses, memory().int32, pad_id, options.align, *outputs)
        if row >= 0:
            raise UsageError(
                f"a row of {width} tokens has no space to pad its documents to multiples of {options.align}",
                help=f"pack the dataset with pack: {{align: {options.align}}}, or leave out align",
            )
    if wants_ends:
        arrays["cu_seqlens"] = _resize_ends(ends, num_ends, num_rows * width, options)
        arrays["max_seqlen"] = longest
    if "row_mask" in options.fields:
        arrays["row_mask"] = new((num_rows,), "bool")
        arrays["row_mask"][:] = addresses[:, A_SHARD] >= 0
    if not options.flatten:
        return arrays
    # All rows become one, and the ends of documents are named as by flash attention in transformers.
    matrices = (*MATRICES, LOSS_WEIGHTS)
    flat = {name: array.reshape(1, -1) if name in matrices else array for name, array in arrays.items()}
    if "cu_seqlens" in flat:
        flat["cu_seq_lens_q"] = flat["cu_seq_lens_k"] = flat.pop("cu_seqlens")
        flat["max_length_q"] = flat["max_length_k"] = flat.pop("max_seqlen")
    return flat


def _weigh_kinds(options: Collate) -> NDArray[np.float32]:
    """Return the weight of each kind; `_AS_STORED`: as the dataset was rendered."""
    trained = options.train
    rest = 0.0 if trained is not None else _AS_STORED
    by_name = dict.fromkeys(trained or (), 1.0) | options.weights
    return np.array([by_name.get(kind, rest) for kind in TOKEN_KINDS], np.float32)


def choose_pad_id(options: Collate, pad_id: int | None, eos_id: int | None = None) -> int:
    """Choose the id of padding that is added: as the options say, else as the tokenizer says, else 0."""
    return next((candidate for candidate in (options.pad_id, pad_id, eos_id) if candidate is not None), 0)


def _resize_ends(ends: Any, num_ends: int, last: int, options: Collate) -> Any:
    size = options.cu_seqlens_size
    if size is None:
        return ends[:num_ends]
    if num_ends > size:
        raise UsageError(
            f"a batch has {num_ends - 1} documents and paddings, so cu_seqlens needs {num_ends} numbers, not {size}",
            help="raise cu_seqlens_size",
        )
    ends[num_ends:] = last
    return ends[:size]
