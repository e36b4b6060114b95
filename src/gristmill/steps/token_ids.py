"""`token_ids`: the step that makes documents of tokens out of records that hold token ids already.

The plan inserts it where a source names `ids`. All of it is a few passes over flat arrays, about 25 ns a token.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import (
    INPUT_IDS,
    LOSS_MASK,
    LOSS_WEIGHTS,
    RECORD,
    TEXT,
    TEXT_TYPE,
    StepResult,
)
from gristmill.core.step import LocalStep, StepKernel, StepTraits
from gristmill.shards.manifest_file import SnapshotFile, TokenizerSnapshot
from gristmill.shards.stored_files import TokenizerIdentity
from gristmill.steps.column_names import require_column
from gristmill.steps.record_functions import quarantine_row
from gristmill.text.tokenizers.check_tokenizer import id_type
from gristmill.text.tokenizers.engine import load_engine
from gristmill.text.tokenizers.files import TokenizerFacts, TokenizerFiles, find_tokenizer, read_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.readers.read import Read

_IGNORED = -100
"""The label of a token that is not trained."""
_MAX_SAMPLED_TOKENS = 20_000
_MIN_SAME_SHARE = 0.9
"""The share of sampled ids that a tokenizer usually makes again of their text, if it made them."""


class TokenIds(LocalStep, tag="token_ids", frozen=True, kw_only=True):
    """Take token ids, and what belongs to each of them, from the fields of records.

    A record whose arrays differ in length, or with an id outside the vocabulary, a label that is neither its id nor
    -100, or a weight that is negative or not a number, is quarantined. What belongs to the ids of the last field only
    is 0 for those before it, and they are not trained.

    >>> from gristmill.core.records import documents
    >>> batch = documents(["", ""], ids=[[5, 6, 7], [9]], labels=[[-100, 6, 7], [-100]])
    >>> step = TokenIds(ids=("ids",), labels="labels", vocab_size=8)
    >>> result = step.apply(batch, seed=0)
    >>> result.batch.column("input_ids").to_pylist(), result.batch.column("loss_mask").to_pylist()
    ([[5, 6, 7]], [[False, True, True]])
    >>> [record.message for record in result.quarantined]
    ["id 9 of 'ids' is outside the vocabulary of 8 tokens"]
    """

    traits: ClassVar[StepTraits] = StepTraits(makes_text=True, selects_columns=True, is_added_by_plan=True)
    not_fingerprinted: ClassVar[tuple[str, ...]] = ("tokenizer", "files", "facts")

    ids: tuple[str, ...]
    labels: str | None = None
    mask: str | None = None
    weights: str | None = None
    token_columns: tuple[str, ...] = ()
    vocab_size: int
    tokenizer: str = ""
    files: TokenizerFiles | None = None
    facts: TokenizerFacts | None = None
    content: str = ""
    """What identifies the vocabulary: ids of equal ones may be mixed."""
    decodes: bool = False
    """Whether a later step reads the text, which is decoded from the ids."""

    @classmethod
    def of(cls, read: Read, folder: str, *, decodes: bool) -> TokenIds:
        """Make the step of a source, with its tokenizer looked up."""
        files = facts = None
        vocab_size, content = read.vocab_size or 0, f"vocab_size={read.vocab_size}"
        if read.tokenizer is not None:
            files = find_tokenizer(read.tokenizer, folder)
            facts = read_facts(files)
            vocab_size, content = facts.vocab_size, files.content
        elif decodes:
            raise UsageError(
                "a step reads the text of records of token ids, and no tokenizer is named to decode it",
                help="name the tokenizer that made them instead of vocab_size; split can use by: origin",
            )
        return cls(
            ids=read.id_fields,
            labels=read.labels,
            mask=read.mask,
            weights=read.weights,
            token_columns=tuple(read.token_columns),
            vocab_size=vocab_size,
            tokenizer=read.tokenizer or "",
            files=files,
            facts=facts,
            content=content,
            decodes=decodes,
        )

    @property
    def loaded_content(self) -> tuple[str, ...]:
        return (self.content,) if self.decodes else ()

    @property
    def is_masked(self) -> bool:
        """Whether only some tokens are trained."""
        return len(self.ids) > 1 or any(name is not None for name in (self.labels, self.mask, self.weights))

    def columns_needed(self) -> tuple[str, ...]:
        others = [name for name in (self.labels, self.mask, self.weights) if name is not None]
        return (*self.ids, *others, *self.token_columns)

    def columns_added(self) -> tuple[str, ...]:
        names = [INPUT_IDS, *([LOSS_MASK] if self.is_masked else []), *([LOSS_WEIGHTS] if self.weights else [])]
        return (*names, *([TEXT] if self.decodes else []))

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        needed = self.columns_needed()
        for name in needed:
            require_column("ids", name, schema)
            numbers = schema.field(name).type
            is_list = any(
                test(numbers) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
            )
            if not is_list or not self._takes(name, numbers.value_type):
                raise UsageError(
                    f"{name} is {numbers}, not {self._describe(name)}",
                    help="name the fields that have a number for each token",
                )
        fields = [field for field in schema if field.name not in (*needed, RECORD)]
        for field in fields:
            if pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
                raise UsageError(
                    f"columns: {field.name} is {field.type}",
                    help=f"if it has a number for each token, name it in token_columns: [{field.name}]",
                )
        if self.decodes:
            fields.insert(1, pa.field(TEXT, TEXT_TYPE))
        fields.append(pa.field(INPUT_IDS, pa.list_(pa.type_for_alias(id_type(self.vocab_size)))))
        if self.is_masked:
            fields.append(pa.field(LOSS_MASK, pa.list_(pa.bool_())))
        if self.weights is not None:
            fields.append(pa.field(LOSS_WEIGHTS, pa.list_(pa.float32())))
        for name in self.token_columns:
            kind = schema.field(name).type.value_type
            is_float, is_bool = pa.types.is_floating(kind), pa.types.is_boolean(kind)
            fields.append(pa.field(name, pa.list_(pa.float32() if is_float else pa.uint8() if is_bool else kind)))
        return pa.schema(fields)

    def _takes(self, name: str, kind: pa.DataType) -> bool:
        if pa.types.is_integer(kind):
            return True
        is_float = pa.types.is_floating(kind) and (name == self.weights or name in self.token_columns)
        return is_float or (pa.types.is_boolean(kind) and (name == self.mask or name in self.token_columns))

    def _describe(self, name: str) -> str:
        if name in self.ids or name == self.labels:
            return "a list of whole numbers"
        return "a list of 0 and 1, or of booleans" if name == self.mask else "a list of numbers"

    def adapt_to_sample(self, sample: pa.RecordBatch) -> Self:
        """Refuse labels that are shifted by one."""
        if self.labels is None:
            return self
        lists = zip(sample.column(self.ids[-1]).to_pylist(), sample.column(self.labels).to_pylist(), strict=True)
        rows = [(ids, labels) for ids, labels in lists if ids and labels and len(ids) == len(labels) > 1]
        is_shifted = [
            all(label in (_IGNORED, token) for token, label in zip(ids[1:], labels, strict=False))
            and any(label not in (_IGNORED, token) for token, label in zip(ids, labels, strict=True))
            for ids, labels in rows
        ]
        if rows and sum(is_shifted) * 2 > len(rows):
            raise UsageError(
                f"{self.labels} are shifted: each is the id that follows", help="give the label of each token itself"
            )
        return self

    def sample_notes(self, sample: pa.RecordBatch) -> list[str]:
        """Decode a sample, and tell whether the tokenizer makes the same ids of the text."""
        if self.files is None:
            return []
        ids = self.apply(sample, 0).batch.column(INPUT_IDS).to_pylist()
        engine = load_engine(self.files, specials_as_text=False)
        shown, num_same, num_all = "", 0, 0
        for tokens in ids:
            text = engine.decode(tokens)
            shown = shown or text
            again, _ = engine.encode([text])
            num_same += (Counter(tokens) & Counter(again.tolist())).total()
            num_all += len(tokens)
            if num_all > _MAX_SAMPLED_TOKENS:
                break
        if not num_all:
            return []
        share = num_same / num_all
        note = f"{share:.1%} of {num_all:,} sampled ids are those that {self.tokenizer} makes of their text: "
        note += repr(shown[:60])
        if share < _MIN_SAME_SHARE:
            note = f"warning: only {note}; did another tokenizer make them?"
        return [note]

    def notes(self) -> list[str]:
        checked = f"tokenizer {self.tokenizer}" if self.files is not None else "no tokenizer"
        return [f"token ids of {' and '.join(self.ids)}: {checked}, a vocabulary of {self.vocab_size:,} tokens"]

    def make_snapshot(self) -> TokenizerSnapshot:
        """Make the dataset's copy of the tokenizer; without one, what is known of the vocabulary."""
        facts, tokenizer_files = self.facts, self.files
        identity = TokenizerIdentity(
            name=self.tokenizer,
            content=self.content,
            files=[],
            vocab_size=self.vocab_size,
            eos_id=facts.eos_id if facts else None,
            bos_id=facts.bos_id if facts else None,
            pad_id=facts.pad_id if facts else None,
            engine="",
            engine_version="",
            why="the records held the ids",
            parity={},
        )
        checksums = tokenizer_files.files if tokenizer_files is not None else {}
        files = {name: SnapshotFile(str(tokenizer_files.location(name)), xxh3) for name, xxh3 in checksums.items()}  # type: ignore[union-attr]
        return TokenizerSnapshot(identity, files)

    def load(self) -> TokenIdsKernel:
        return TokenIdsKernel(self)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        """Apply the step once, for tests and trials. A run calls `load` once a worker."""
        return self.load().apply(batch, seed)


class _Lists(NamedTuple):
    """The lists of a column: all values one after the other, and how many each row has."""

    values: NDArray[Any]
    sizes: NDArray[np.int64]
    has_value: NDArray[np.bool_]
    """False where the list itself is null."""
    has_null: NDArray[np.bool_]
    """Whether one of its values is."""

    @property
    def starts(self) -> NDArray[np.int64]:
        return np.cumsum(self.sizes) - self.sizes

    def any_in_row(self, is_bad: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """For each row whether a value is bad."""
        total = np.concatenate([[0], np.cumsum(is_bad)])
        starts = self.starts
        is_bad_row: NDArray[np.bool_] = total[starts + self.sizes] > total[starts]
        return is_bad_row

    def first_in_row(self, row: int, is_bad: NDArray[np.bool_]) -> int:
        """Find the first bad value of a row, by its place among the values of the row."""
        start = int(self.starts[row])
        return int(np.argmax(is_bad[start : start + int(self.sizes[row])]))


class TokenIdsKernel(StepKernel):
    """The step in a worker."""

    def __init__(self, step: TokenIds) -> None:
        self._step = step

    @cached_property
    def _decode(self) -> object:
        assert self._step.files is not None
        return load_engine(self._step.files, specials_as_text=False).decode

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        step = self._step
        schema = step.output_schema(batch.schema)
        lists = {name: _open_lists(batch.column(name)) for name in step.columns_needed()}
        reasons: dict[int, tuple[str, str]] = {}
        for row, reason, message in self._find_problems(lists):
            reasons.setdefault(row, (reason, message))
        if reasons:
            quarantined = [quarantine_row(batch, row, *reasons[row]) for row in sorted(reasons)]
            good_rows = pa.array(np.setdiff1d(np.arange(batch.num_rows), list(reasons)))
            good = self.apply(batch.take(good_rows), 0)
            return StepResult(good.batch, quarantined=quarantined)
        sizes = np.sum([lists[name].sizes for name in step.ids], axis=0)
        columns = {INPUT_IDS: self._join_ids(lists, sizes)}
        last = lists[step.ids[-1]].sizes
        if step.is_masked:
            columns[LOSS_MASK] = self._find_mask(lists, sizes, last)
        if step.weights is not None:
            columns[LOSS_WEIGHTS] = _spread(lists[step.weights], sizes, last)
        columns |= {name: _spread(lists[name], sizes, last) for name in step.token_columns}
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
        arrays: dict[str, pa.Array] = {}
        for name, values in columns.items():
            kind = schema.field(name).type
            dtype = np.bool_ if name == LOSS_MASK else kind.value_type.to_pandas_dtype()
            arrays[name] = pa.ListArray.from_arrays(offsets, pa.array(values.astype(dtype, copy=False)), type=kind)
        if step.decodes:
            documents = np.split(columns[INPUT_IDS], np.cumsum(sizes)[:-1]) if len(sizes) else []
            arrays[TEXT] = pa.array([self._decode(tokens) for tokens in documents], TEXT_TYPE)  # type: ignore[operator]
        rows = [arrays[name] if name in arrays else batch.column(name) for name in schema.names]
        return StepResult(pa.RecordBatch.from_arrays(rows, schema=schema))

    def _find_problems(self, lists: dict[str, _Lists]) -> Iterator[tuple[int, str, str]]:
        """Find the rows that cannot be used, with a reason and a message; those that are found first count."""
        step = self._step
        for name, column in lists.items():
            for row in _rows(~column.has_value):
                yield row, "missing_ids" if name in step.ids else "missing_values", f"no value in {name!r}"
            for row in _rows(column.has_null):
                yield row, "null_in_tokens", f"{name!r} holds a null"
        whole, last = np.sum([lists[name].sizes for name in step.ids], axis=0), lists[step.ids[-1]].sizes
        for name, column in lists.items():
            if name not in step.ids:
                for row in _rows((column.sizes != whole) & (column.sizes != last)):
                    message = f"{name!r} has {column.sizes[row]} values for {whole[row]} ids"
                    yield row, "unequal_lengths", message
        for name in step.ids:
            column = lists[name]
            is_outside = (column.values < 0) | (column.values >= step.vocab_size)
            for row in _rows(column.any_in_row(is_outside)):
                token = column.values[int(column.starts[row]) + column.first_in_row(row, is_outside)]
                message = f"id {token} of {name!r} is outside the vocabulary of {step.vocab_size:,} tokens"
                yield row, "id_outside_vocabulary", message
        if step.weights is not None:
            column = lists[step.weights]
            is_bad = ~(np.isfinite(column.values) & (column.values >= 0))
            for row in _rows(column.any_in_row(is_bad)):
                place = column.first_in_row(row, is_bad)
                weight = column.values[int(column.starts[row]) + place]
                yield row, "bad_weight", f"the weight {weight} at token {place} of {step.weights!r}"
        if step.mask is not None:
            column = lists[step.mask]
            is_bad = (column.values != 0) & (column.values != 1)
            for row in _rows(column.any_in_row(is_bad)):
                yield row, "bad_mask", f"{step.mask!r} holds other numbers than 0 and 1"
        if step.labels is not None:
            yield from self._find_other_labels(lists, whole, last)

    def _find_other_labels(
        self, lists: dict[str, _Lists], whole: NDArray[np.int64], last: NDArray[np.int64]
    ) -> Iterator[tuple[int, str, str]]:
        assert self._step.labels is not None
        labels = lists[self._step.labels]
        fits = (labels.sizes == whole) | (labels.sizes == last)
        ids = self._join_ids(lists, whole)
        # The id of each label: labels may be those of the last ids only.
        first = np.cumsum(whole) - labels.sizes
        places = np.arange(len(labels.values)) + np.repeat(first - labels.starts, labels.sizes)
        is_other = np.zeros(len(labels.values), np.bool_)
        usable = np.repeat(fits, labels.sizes)
        is_other[usable] = labels.values[usable] != ids[places[usable]]
        is_other &= labels.values != _IGNORED
        for row in _rows(labels.any_in_row(is_other)):
            place = labels.first_in_row(row, is_other)
            message = f"the label {labels.values[int(labels.starts[row]) + place]} of token {place} is not its id"
            yield row, "label_is_not_id", message

    def _join_ids(self, lists: dict[str, _Lists], sizes: NDArray[np.int64]) -> NDArray[Any]:
        columns = [lists[name] for name in self._step.ids]
        if len(columns) == 1:
            return columns[0].values
        joined = np.empty(int(sizes.sum()), np.result_type(*(column.values for column in columns)))
        begin = np.cumsum(sizes) - sizes
        for column in columns:
            joined[np.arange(len(column.values)) + np.repeat(begin - column.starts, column.sizes)] = column.values
            begin = begin + column.sizes
        return joined

    def _find_mask(
        self, lists: dict[str, _Lists], sizes: NDArray[np.int64], last: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        step = self._step
        is_trained = _spread(_Lists(np.ones(int(last.sum()), np.bool_), last, last >= 0, last < 0), sizes, last)
        if step.labels is not None:
            labels = lists[step.labels]
            is_trained = _spread(labels._replace(values=labels.values != _IGNORED), sizes, last)
        elif step.mask is not None:
            mask = lists[step.mask]
            is_trained = _spread(mask._replace(values=mask.values != 0), sizes, last)
        elif step.weights is not None:
            weights = lists[step.weights]
            is_trained = _spread(weights._replace(values=weights.values != 0), sizes, last)
        return is_trained.astype(np.bool_, copy=False)


def _spread(column: _Lists, sizes: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[Any]:
    """Return a value for each id: where a row has values for the last of its fields only, those before are 0."""
    if np.array_equal(column.sizes, sizes):
        return column.values
    values = np.zeros(int(sizes.sum()), column.values.dtype)
    first = np.cumsum(sizes) - np.where(column.sizes == sizes, sizes, last)
    values[np.arange(len(column.values)) + np.repeat(first - column.starts, column.sizes)] = column.values
    return values


def _open_lists(column: pa.Array) -> _Lists:
    has_value = column.is_valid().to_numpy(zero_copy_only=False)
    sizes = column.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    if pa.types.is_fixed_size_list(column.type):
        sizes = np.where(has_value, column.type.list_size, 0)
    values = column.flatten()
    lists = _Lists(np.empty(0), sizes, has_value, np.zeros(len(column), np.bool_))
    if values.null_count:
        lists = lists._replace(has_null=lists.any_in_row(values.is_null().to_numpy(zero_copy_only=False)))
        values = values.fill_null(False if pa.types.is_boolean(values.type) else 0)
    return lists._replace(values=values.to_numpy(zero_copy_only=False))


def _rows(mask: NDArray[np.bool_]) -> list[int]:
    rows: list[int] = np.flatnonzero(mask).tolist()
    return rows
