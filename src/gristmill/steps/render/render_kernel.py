"""Chats to text in a worker: each record is decoded, rendered to one or more texts, and kept in buffers only.

Chats of nothing but roles and contents are recognised while they are decoded. The keys of the first records decide a
struct, into which msgspec decodes the others without a dict in between. A record that does not fit, by a key or by a
type, is decoded as usual, and so is one with a key that has a meaning for chats; it is plain if nothing but roles and
contents is left of it. So no record is read differently from what it is.

Of some records, what a traced template makes of them is compared with what Jinja makes of them. A difference ends the
run.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np

from gristmill.core.errors import ParityError
from gristmill.core.records import ORIGIN, RECORD, TEXT_TYPE, QuarantinedRecord, StepResult, describe_origin
from gristmill.core.seeds import hash_bound, hash_origins
from gristmill.core.step import StepKernel
from gristmill.steps.column_names import has_text_beside
from gristmill.steps.record_functions import (
    RefusedRecord,
    decode_record,
    decode_records,
    quarantine_exception,
    quarantine_row,
)
from gristmill.steps.render.example_rows import ExampleRows, encode_example
from gristmill.text.chats.answers import find_common_length
from gristmill.text.chats.jinja_environment import TemplateTimeout
from gristmill.text.chats.record_plan import RecordPlans
from gristmill.text.chats.shapes import KEYS_WITH_MEANING, MESSAGES, NotAChat
from gristmill.text.chats.tracing.template_tracer import NUM_COMPARED, TRACE_HELP
from gristmill.text.tokenizers.special_tokens import SpecialLiterals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.text.chats.example_maker import ExampleMaker
    from gristmill.text.chats.jinja_environment import TemplateLimits
    from gristmill.text.chats.options import RenderedRecord
    from gristmill.text.chats.record_plan import RecordPlan


COMPARED_SHARE = 1 / 10_000
"""The share of records that are also rendered by Jinja, if the template is traced."""
_MAX_SINGLE_SEARCHES = 8
"""Number of records that are searched for special tokens one by one, before all of their batch are."""


class RenderKernel(StepKernel):
    """A compiled template that renders the records of a batch."""

    def __init__(
        self,
        maker: ExampleMaker,
        output_schema: Callable[[pa.Schema], pa.Schema],
        special_tokens: Sequence[str],
        limits: TemplateLimits | None = None,
        count_tokens: Callable[[pa.Array], NDArray[np.int64]] | None = None,
        refer_to_images: Callable[[Sequence[str]], list[dict[str, Any]]] | None = None,
    ) -> None:
        self.maker = maker
        self._limits = limits
        self._output_schema = output_schema
        self._count_tokens = count_tokens
        self._refer_to_images = refer_to_images
        self._decoder = PlainChatDecoder(maker)
        self._plans = RecordPlans(maker) if maker.usual_finder.template.tracer is not None else None
        # A JSON line may hold a token without its letters: by escapes, or in content parts that are joined later.
        is_escaped = any(character < " " or character in '\\"' for token in special_tokens for character in token)
        hiding = ("\\", '"type"') if is_escaped else ("\\u", "\\/", '"type"')
        self._suspicious = SpecialLiterals((*special_tokens, *hiding))

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        with self._limits or nullcontext():
            return self._apply(batch, seed)

    def _apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        schema = self._output_schema(batch.schema)
        suspects = _SuspectRows(batch, self._suspicious)
        compared = self._choose_compared(batch, seed).tolist()
        has_lines = RECORD in batch.schema.names
        is_decoded = not has_lines or has_text_beside(batch.schema)
        records: Sequence[Any] = list(decode_records(batch)) if is_decoded else batch.column(RECORD).to_pylist()
        rows = ExampleRows(schema, self._refer_to_images)
        quarantined: list[QuarantinedRecord] = []
        dropped: Counter[str] = Counter()
        counters: Counter[str] = Counter()
        created = 0
        for row, (record, is_compared) in enumerate(zip(records, compared, strict=True)):
            if self._limits is not None:
                self._limits.restart()
            try:
                chat = self._decoder.decode(record) if not is_decoded else None
                if chat is None:
                    if not is_decoded:
                        record = decode_record(record)  # noqa: PLW2901
                    if isinstance(record, RefusedRecord):
                        raise NotAChat(record.reason, record.message)
                    if not has_lines:
                        record = _without_nulls(record)  # noqa: PLW2901
                    chat = self._decoder.read(record) if self._plans is not None else None
                if chat is not None and self._plans is not None:
                    filled = self._plans.fill(*chat)
                    if filled is not None:
                        plan, pieces = filled
                        if is_compared or plan.num_compared < NUM_COMPARED:
                            plan.num_compared += 1
                            compare_filled(self.maker, _decode_if_raw(record), plan, pieces)
                        rows.add_filled(row, plan, pieces)
                        continue
                record = _decode_if_raw(record)  # noqa: PLW2901
                if is_compared:
                    rendered = make_both_ways(self.maker, record, may_hold_literals=suspects.has(row))
                else:
                    rendered = self.maker.make(record, may_hold_literals=suspects.has(row))
                rows.add(row, rendered)
            except NotAChat as problem:
                quarantined.append(quarantine_row(batch, row, problem.reason, problem.message))
                continue
            except TemplateTimeout as error:
                quarantined.append(quarantine_row(batch, row, "timeout", f"the template {error}"))
                continue
            except ParityError as difference:
                origin = batch.column(ORIGIN)[row].as_py()
                message = f"{difference.message}; it is at {describe_origin(origin)}"
                raise ParityError(message, help=difference.help, **origin) from None
            except Exception as error:  # a template can raise anything: that costs one record, not the run
                quarantined.append(quarantine_exception(batch, row, error))
                continue
            created += len(rendered.examples) + len(rendered.dropped) - 1
            dropped.update(rendered.dropped)
            for name, count in rendered.counts:
                counters[name] += count
        for plan, num_records in rows.count_filled():
            for name, count in plan.counts:
                counters[name] += count * num_records
        texts = rows.to_batch(batch, self._count_tokens)
        return StepResult(texts, dict(dropped), created=created, quarantined=quarantined, counters=dict(counters))

    def _choose_compared(self, batch: pa.RecordBatch, seed: int) -> NDArray[np.bool_]:
        """For each row whether it is also rendered by Jinja."""
        if self._plans is None:
            return np.zeros(batch.num_rows, dtype=bool)
        hashes = hash_origins(seed, "render/parity", batch.column(ORIGIN))
        return hashes < np.uint64(hash_bound(COMPARED_SHARE))


class _SuspectRows:
    """The records that may hold a special token, visible in the raw line or hidden by escapes. Found when asked for.

    With plans few records are asked about, and a search through all lines would take a tenth of the time of the batch.
    """

    def __init__(self, batch: pa.RecordBatch, suspicious: SpecialLiterals) -> None:
        self._batch = batch
        self._suspicious = suspicious
        self._num_asked = 0

    def has(self, row: int) -> bool:
        if RECORD not in self._batch.schema.names:
            return True
        self._num_asked += 1
        if self._num_asked > _MAX_SINGLE_SEARCHES:
            return bool(self._is_suspect[row])
        return bool(self._search(self._batch.slice(row, 1))[0])

    @cached_property
    def _is_suspect(self) -> NDArray[np.bool_]:
        return self._search(self._batch)

    def _search(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        is_suspect: NDArray[np.bool_] = self._suspicious.count(batch.column(RECORD).cast(TEXT_TYPE)) > 0
        return is_suspect


def _decode_if_raw(record: Any) -> Any:
    return decode_record(record) if type(record) is bytes else record


def _without_nulls(value: Any) -> Any:
    """Remove nulls: in columns every message has the fields of all messages, so most nulls were never written."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None or key == "content"}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value


_MAX_MISSES = 64


class _PlainMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: str
    content: str


class PlainChatDecoder:
    """Decodes lines of JSON that are plain chats."""

    def __init__(self, maker: ExampleMaker) -> None:
        self._maker = maker
        self._reads_messages = maker.options.shape in ("auto", MESSAGES) and not maker.options.fields
        self._decoder: msgspec.json.Decoder[Any] | None = None
        self._num_misses = 0

    def decode(self, line: bytes) -> tuple[tuple[str, ...], list[str]] | None:
        """Decode the roles and contents of a line; None if it has to be decoded as usual."""
        if self._decoder is None:
            return None
        try:
            messages = self._decoder.decode(line).messages
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._num_misses += 1
            if self._num_misses > _MAX_MISSES:
                self._decoder = None
            return None
        return tuple([message.role for message in messages]), [message.content for message in messages]

    def read(self, record: Mapping[str, Any]) -> tuple[tuple[str, ...], list[str]] | None:
        """Read the roles and contents of a decoded record; None if it is not a plain chat."""
        try:
            conversation = self._maker.parse(record)
        except NotAChat:
            return None
        if not conversation.is_plain:
            return None
        if self._decoder is None and self._reads_messages and self._num_misses <= _MAX_MISSES:
            self._expect_keys(record)
        messages = conversation.messages
        return tuple([message["role"] for message in messages]), [message["content"] for message in messages]

    def _expect_keys(self, record: Mapping[str, Any]) -> None:
        """Expect the keys of this record in those that follow."""
        others = [key for key in record if key != MESSAGES]
        if len(others) < len(record) and KEYS_WITH_MEANING.isdisjoint(others):
            fields = [(f"field_{number}", Any, msgspec.field(name=key)) for number, key in enumerate(others)]
            chat = msgspec.defstruct(
                "PlainChat", [(MESSAGES, list[_PlainMessage]), *fields], forbid_unknown_fields=True, gc=False
            )
            self._decoder = msgspec.json.Decoder(chat)


_SHOWN_CHARS = 200


def compare_filled(maker: ExampleMaker, record: Mapping[str, Any], plan: RecordPlan, pieces: list[bytes]) -> None:
    """Compare the example that a plan has filled in with the one that is made of the whole record with Jinja.

    Raises:
        ParityError: They differ, in the text, its places or what is counted.
    """
    with maker.without_tracing():
        rendered = _describe(lambda: maker.make(record))
    changes, last_answer = plan.find_places(pieces)
    example = (b"".join(pieces), changes, list[int](), last_answer, ())
    if rendered != ([example], list[str](), plan.counts):
        _raise_difference(repr(record), repr(rendered), repr(example))


def make_both_ways(maker: ExampleMaker, record: Mapping[str, Any], *, may_hold_literals: bool) -> RenderedRecord:
    """Make the examples of a record twice, traced and with Jinja, and compare them.

    Raises:
        NotAChat: The record is no chat, both ways.
        ParityError: The two differ.
    """

    def make() -> RenderedRecord:
        return maker.make(record, may_hold_literals=may_hold_literals)

    with maker.without_tracing():
        expected = _describe(make)
    traced = _describe(make)
    if traced != expected:
        _raise_difference(repr(record), repr(expected), repr(traced))
    return make()


def _describe(
    make: Callable[[], RenderedRecord],
) -> tuple[Sequence[object], list[str], list[tuple[str, int]]] | tuple[str, str]:
    """Describe what becomes of a record, so that it can be compared."""
    try:
        rendered = make()
        examples = [(*encode_example(example), example.images) for example in rendered.examples]
        return examples, rendered.dropped, rendered.counts
    except NotAChat as problem:
        return problem.reason, problem.message


def _raise_difference(record: str, expected: str, traced: str) -> NoReturn:
    start = max(0, find_common_length(expected, traced) - _SHOWN_CHARS // 4)
    raise ParityError(
        f"render: the traced template makes {traced[start : start + _SHOWN_CHARS]} of a record where Jinja makes "
        f"{expected[start : start + _SHOWN_CHARS]}; the record is {record:.1000}",
        help=TRACE_HELP,
    )
