"""Steps are data: frozen structs whose fields are their recipe keys. Their kernels turn a batch into a batch.

A step has no state: it can be pickled, written to YAML, fingerprinted and run anywhere. The pipeline knows only the
classes of this module. Whatever is special about a step, it declares by the methods and class variables below.

The life cycle of a step, in the order of the calls:

1. Described: the struct as it is in the recipe. The constructor checks its fields and does no I/O. The plan calls
   `check_position`, which checks the step against the recipe around it.
2. Resolved: the plan calls `resolve` once, in the parent process. It looks up what the fields name (a tokenizer's
   folder, files); the content becomes part of the step, and so of every fingerprint. The result may be of another
   class: `Tokenize` becomes `ResolvedTokenize`, a `Split` by numbers becomes the global step `SplitByCount`.
3. Adapted to the sample: the plan sends up to 100 real records of the source through all its steps, one after another,
   and calls `adapt_to_sample` with the records that reach the step. Choices that depend on the data are made here. Only
   local steps have this phase. It runs in a worker process if a step of the source runs code of the user.
4. Loaded: each worker calls `load` once for the kernel, then `begin_cell` for each cell and `apply` for each batch. A
   global step has no kernel: its barrier runs between two stages (`pipeline/barriers`).

Phases 2 and 3 are part of planning (`pipeline/planning/source_draft.py`), phase 4 is part of the run.
`resolve` and `adapt_to_sample` return a step, a new one or the same; no step is ever changed in place.
"""

from __future__ import annotations

import dataclasses
import itertools
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self, get_args, get_origin, runtime_checkable

import msgspec

from gristmill.core.checks import check_choice
from gristmill.core.records import StepResult, count_dropped, select_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.core.records import Records, SourceFile
    from gristmill.core.scores import StepScores


class StepPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a step in a recipe, and what else the recipe has."""

    key: str
    """The key of the step in the recipe, such as `steps.2` or `sources.web.steps.0`."""
    sources: tuple[str, ...]
    """Names of all sources of the recipe."""
    is_common: bool
    """Whether the records of all sources reach the step."""
    is_packed: bool
    """Whether the recipe packs rows of tokens."""
    following: tuple[str, ...] = ()
    """Names of the steps that follow it in the same list of steps."""


def check_choices(step_type: type[Step], values: Mapping[str, object]) -> None:
    """Raise `UsageError` for a value that is not one of the choices of its field, whose type is a `Literal`.

    msgspec checks this too, but names neither the choices nor the nearest one. Fields without a value are not checked.
    """
    for name, (choices, others) in _find_choices(step_type).items():
        if name in values and not isinstance(values[name], others):
            check_choice(name, values[name], choices)


@cache
def _find_choices(step_type: type[Step]) -> dict[str, tuple[tuple[str, ...], tuple[type, ...]]]:
    """Return the choices of each field of type `Literal[...]`, and of which other types it may be: none, a list."""
    fields = {}
    for field in msgspec.structs.fields(step_type):
        kinds = [field.type] if get_origin(field.type) is Literal else get_args(field.type)
        literals = [kind for kind in kinds if get_origin(kind) is Literal]
        others = [get_origin(kind) or kind for kind in kinds if kind not in literals]
        if literals and all(kind in (tuple, type(None)) for kind in others):
            choices = tuple(choice for literal in literals for choice in get_args(literal))
            fields[field.encode_name] = choices, (*others, list) if tuple in others else tuple(others)
    return fields


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepTraits:
    """Facts about a class of steps, for the plan and the report. Most classes have none of them."""

    makes_text: bool = False
    """Whether it makes the text of records, which then need none before it."""
    needs_whole_record: bool = False
    """Whether it reads whole records, not only the columns in `columns_needed`."""
    selects_columns: bool = False
    """Whether only the columns that it names are left after it."""
    may_add_keys: bool = False
    """Whether JSON records may have keys after it that neither the files nor `columns_added` name."""
    is_added_by_plan: bool = False
    """Whether the plan adds it by itself. `explain` lists only the steps that a recipe has."""
    lists_removals: bool = False
    """Whether the manifest lists every record that it removes, so that `gristmill explain` can say why."""
    disk_copies: int = 1
    """The number of copies of the records that the barrier of a global step keeps on disk, for the plan's estimate."""
    warnings_by_counter: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Counters that the result of a run warns of, and the rest of the sentence that begins with the count."""


class UserCode:
    """The base class of values that hold code of the user, such as a function. Recipes keep them as objects."""

    __slots__ = ()


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all steps. `class Length(Step, tag="length")` sets the name in recipes."""

    version: ClassVar[int] = 1
    """The version of what the step computes. Raise it whenever the same parameters would give other output."""

    not_fingerprinted: ClassVar[tuple[str, ...]] = ()
    """Fields that do not change the output, such as the path of a file whose content is in another field."""

    preserves_text: ClassVar[bool] = False
    """Whether records keep their text: the step may only drop, order or count them."""

    traits: ClassVar[StepTraits] = StepTraits()

    kernel_modules: ClassVar[tuple[str, ...]] = ()
    """Modules of compiled functions that a plan's sample does not call; they are compiled before the workers start."""

    kernel_calls: ClassVar[str] = ""
    """The module whose function `call_kernels` calls all compiled functions of `kernel_modules`, on a few values."""

    @property
    def name(self) -> str:
        """The name of the step in recipes."""
        return str(self.__struct_config__.tag)

    @property
    def loaded_content(self) -> tuple[str, ...]:
        """Hashes of the tokenizers and models that it loads. Workers keep these as long as a later stage lists them."""
        return ()

    def expected_bytes(self, slice_bytes: int) -> int:  # noqa: ARG002
        """Estimate the memory that a worker needs for it, in addition to one cell, in a task of this size."""
        return 0

    @property
    def fingerprint_versions(self) -> object:
        """The versions of the step and of the code that it depends on: part of every fingerprint."""
        return self.version

    def check_position(self, position: StepPosition) -> None:
        """Raise `UsageError` if the step does not fit the recipe around it."""

    def resolve(self, folder: str) -> Step:  # noqa: ARG002
        """Look up what the parameters name; relative paths start at `folder`.

        Part of planning: raises `UsageError` for anything missing. The result (such as the content of files) is part of
        the returned step, and so of every fingerprint.
        """
        return self

    def input_files(self) -> Sequence[SourceFile]:
        """Return the files that a resolved step reads in addition to those of the sources."""
        return ()

    def columns_needed(self) -> tuple[str, ...]:
        """Return the columns that it reads."""
        return ()

    def columns_added(self) -> tuple[str, ...]:
        """Return the columns that it adds: later steps may use them though no file has them."""
        return ()

    def columns_removed(self) -> tuple[str, ...]:
        """Return the columns and keys of records that have another name after the step, or are gone."""
        return ()

    def splits_added(self) -> tuple[str, ...]:
        """Return the splits that it assigns records to."""
        return ()

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of its output. Raises `UsageError` if the input lacks what it needs."""
        return schema

    def notes(self) -> list[str]:
        """Return messages for the user before the run: what was detected and chosen."""
        return []


@runtime_checkable
class TemplateStep(Protocol):
    """A step that runs a chat template, resolved or not."""

    @property
    def untrusted_template(self) -> str:
        """The name of its template, if that came with a model: code that may never end. Else empty."""


@runtime_checkable
class ChatStep(Protocol):
    """A step that turns the chats in records into texts."""

    @property
    def keeps_record_beside(self) -> bool:
        """Whether the columns that it adds are written next to a JSON record, which stays as it was read."""

    def keys_consumed(self) -> tuple[str, ...]:
        """Return the keys of JSON records that it turns into columns. If there are any, it leaves no JSON record."""


def find_untrusted_template(step: Step) -> str:
    """Return the name of the chat template of a step that came with a model. Only worker processes load such a step."""
    return step.untrusted_template if isinstance(step, TemplateStep) else ""


def find_keys_consumed(step: Step) -> tuple[str, ...]:
    """Return the keys of JSON records that a step turns into columns."""
    return step.keys_consumed() if isinstance(step, ChatStep) else ()


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One number that a step measured in a record, and the rule that it was compared with."""

    name: str
    value: float | str
    definition: str = ""
    rule: str | None = None
    """The step's key, such as `min_words`; None if no rule uses the number."""
    threshold: float | str | None = None
    passed: bool = True


class StepKernel:
    """The part of a step that runs in a worker. It overrides `apply`, and `apply_to` where that saves work."""

    __slots__ = ()

    def begin_cell(self) -> None:
        """Forget all state of earlier cells. Called before the first batch of each cell.

        No result may depend on where tasks begin and end, so nothing is told about tasks.
        """

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        """Return the batch after the step, and account for every record that is gone."""
        raise NotImplementedError

    def apply_to(self, records: Records, seed: int) -> StepResult:
        """Like `apply`, for records whose texts may be Python strings, and of which the step before may have counts."""
        return self.apply(records.batch, seed)

    @property
    def shared_counters(self) -> frozenset[str] | None:
        """The names of the counts that it uses if a kernel before it has made them; None if it counts nothing."""
        return None

    def count_for(self, counters: frozenset[str]) -> None:
        """Make these counts too, for the kernels after it. Called before the first batch, if at all."""


def link_counting_kernels(kernels: Sequence[StepKernel]) -> None:
    """Let the first of several counting kernels in a row make the counts of all of them, in one pass over the texts."""
    for is_counting, group in itertools.groupby(kernels, lambda kernel: kernel.shared_counters is not None):
        if is_counting:
            first, *others = group
            first.count_for(frozenset().union(*(kernel.shared_counters or () for kernel in others)))


class LocalStep(Step, StepKernel, frozen=True, kw_only=True):
    """A step that looks at one batch at a time. Any number of them run in one pass."""

    is_slow: ClassVar[bool] = False
    """Whether it takes so long that the files before it are cut into smaller cells, for more workers to share."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Columns that must exist (see also `columns_needed`)."""

    def columns_needed(self) -> tuple[str, ...]:
        return self.needs

    def sample_notes(self, sample: pa.RecordBatch) -> list[str]:  # noqa: ARG002
        """Return messages for the user before the run that depend on the sample records that reach the step."""
        return []

    def describe_scores(self) -> StepScores | None:
        """Describe what it measures in every record and hands out as `StepResult.scores`; None if it measures nothing.

        Asked of resolved steps. It loads no model.
        """
        return None

    def explain(self, record: pa.RecordBatch) -> list[Finding]:  # noqa: ARG002
        """Return what the step measures in one record and decides about it, for `gristmill explain`."""
        return []

    def adapt_to_sample(self, sample: pa.RecordBatch) -> Self:  # noqa: ARG002
        """Return the step with the choices made that depend on real records. Called once, by the plan."""
        return self

    def load(self) -> StepKernel:
        """Load what a worker needs to run the step. Called once by each worker. Most steps are their own kernel."""
        return self


@runtime_checkable
class ReplayableStep(Protocol):
    """A step that calls the user's own code, which debug mode stops and repeats."""

    def load_stopping(self) -> StepKernel:
        """Like `load`, but the code is not called again after its first exception."""

    def replay(self, record: pa.RecordBatch) -> None:
        """Run the code on one record again and let its exception out."""


def load_kernel(step: LocalStep, *, stops: bool) -> StepKernel:
    """Load the kernel of a step; with `stops` it does not call the user's own code again once that has raised."""
    return step.load_stopping() if stops and isinstance(step, ReplayableStep) else step.load()


class FilterStep(LocalStep, frozen=True, kw_only=True):
    """A step that only drops records, each for a named reason."""

    preserves_text: ClassVar[bool] = True

    def drop_reasons(self, batch: pa.RecordBatch, seed: int) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
        """Return for each row 0 to keep it or 1 + the index of a reason, and the names of the reasons."""
        raise NotImplementedError

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        return keep_rows(batch, *self.drop_reasons(batch, seed))


def keep_rows(batch: pa.RecordBatch, codes: NDArray[np.uint8], reasons: tuple[str, ...]) -> StepResult:
    """Keep the rows whose code is 0; the others are dropped for the reason with the index code - 1."""
    dropped = count_dropped(codes, reasons)
    if not dropped:
        return StepResult(batch)
    return StepResult(select_rows(batch, codes == 0), dropped, codes=codes, reasons=reasons)


class GlobalStep(Step, frozen=True, kw_only=True):
    """A step that must see all records before it passes on the first. It ends a stage.

    The step is a description with pure functions. Its barrier brings the records together (counts, keys, buckets on
    disk); `pipeline/barriers/base.py` finds the barrier by the class of the step.
    """

    preserves_text: ClassVar[bool] = True

    @property
    def joins_sources(self) -> bool:
        """Whether the training records of all sources are written as one interleaved lane."""
        return False

    def expected_barrier_bytes(self, num_bytes: int, *, on_store: bool) -> int:  # noqa: ARG002
        """Estimate a worker's memory in the barrier's tasks, for `num_bytes` of text in total."""
        return 0

    def sample_step(self) -> LocalStep | None:
        """Return a local step that changes sample records as the barrier would; None if it changes no columns."""
        return None


@runtime_checkable
class LimitingStep(Protocol):
    """A global step that needs only the first records of a source: the stage before it reads no more of them."""

    def max_first(self, split: str) -> int | None:
        """Return how many of the first records of a split it needs; None means all of them."""
