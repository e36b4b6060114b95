"""Steps are data: frozen structs whose fields are their recipe keys. Their kernels take a batch and give a batch.

A step knows no other step and keeps no state: it can be pickled, written to YAML, fingerprinted and run anywhere. What
its parameters name (a tokenizer's folder) is looked up once, in the plan, and loaded once a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, Self

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.records import StepResult

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all steps. `class Length(Step, tag="length")` names it in recipes."""

    version: ClassVar[int] = 1
    """Raised whenever the same parameters would give other output."""

    not_fingerprinted: ClassVar[tuple[str, ...]] = ()
    """Fields that no output depends on, such as the path of a file whose content is in another field."""

    preserves_text: ClassVar[bool] = False
    """It may drop, order or count records, but what passes has the text that it had."""

    @property
    def name(self) -> str:
        """Its name in recipes."""
        return str(self.__struct_config__.tag)

    @property
    def is_global(self) -> bool:
        """It must have seen every record before it can say what becomes of the first one."""
        return False

    @property
    def runs_untrusted_code(self) -> bool:
        """It runs code that is not ours, which may never end: a chat template. Only worker processes load it."""
        return False

    @property
    def fingerprint_versions(self) -> object:
        """Versions of the step and of what else it is made of: part of every fingerprint."""
        return self.version

    def resolve(self, folder: str) -> Step:  # noqa: ARG002
        """The step with what its parameters name looked up; relative paths start at `folder`.

        Part of planning: raises `UsageError` for what is not there. What it finds (the content of files) is part of the
        step that it gives, and so of every fingerprint.
        """
        return self


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One number that a step has found in a record, and the rule that it was held against."""

    name: str
    value: float | str
    definition: str = ""
    rule: str | None = None
    """The step's key, such as `min_words`; None: there is none for this number."""
    threshold: float | str | None = None
    passed: bool = True


class StepKernel(Protocol):
    """What runs in a worker."""

    def begin_task(self) -> None:
        """A task starts."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        """The batch after the step, and an account of what is gone."""


class LocalStep(Step, frozen=True, kw_only=True):
    """A step that looks at one batch at a time; any number of them run in one pass."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Columns that must be there (see also `columns_needed`)."""

    needs_whole_record: ClassVar[bool] = False
    """It looks at the whole record, whatever is in it, not only at columns that it can name."""

    def columns_needed(self) -> tuple[str, ...]:
        """Columns it reads, from its class or its parameters."""
        return self.needs

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of its output; raises `UsageError` when the input lacks what it needs."""
        return schema

    def notes(self) -> list[str]:
        """What the user should know of it before the run: what was found and chosen."""
        return []

    def sample_notes(self, sample: pa.RecordBatch) -> list[str]:  # noqa: ARG002
        """What the user should know before the run, after a look at some real records that reach the step."""
        return []

    def columns_added(self) -> tuple[str, ...]:
        """Columns that need not be in the files for later steps to find them."""
        return ()

    def explain(self, record: pa.RecordBatch) -> list[Finding]:  # noqa: ARG002
        """What the step finds in one record and what it makes of it, for `gristmill explain`."""
        return []

    def adapt_to_sample(self, sample: pa.RecordBatch) -> Self:  # noqa: ARG002
        """The step after a look at some real records, in the plan: where a choice hangs on what they are like."""
        return self

    def load(self) -> StepKernel:
        """What a worker needs to run it; called once a worker. Most steps are their own kernel."""
        return self

    def load_stopping(self) -> StepKernel:
        """Like `load`, for debug mode: behind the first exception the user's own code is not called again."""
        return self.load()

    def replay(self, record: pa.RecordBatch) -> None:
        """Do once more what the user's own code did to one record, and let its exception out: for debug mode."""

    def begin_task(self) -> None:
        """A task starts: nothing to do for a step without state."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        """The batch after this step, and an account of what is gone."""
        raise NotImplementedError


class FilterStep(LocalStep, frozen=True, kw_only=True):
    """A step that only drops records, each for a named reason."""

    preserves_text: ClassVar[bool] = True

    def drop_reasons(self, batch: pa.RecordBatch, seed: int) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
        """For each row 0 to keep it, or 1 + the index of a reason; and the reasons' names."""
        raise NotImplementedError

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        codes, reasons = self.drop_reasons(batch, seed)
        counts = np.bincount(codes, minlength=len(reasons) + 1)
        if counts[0] == len(codes):
            return StepResult(batch)
        dropped = {reason: int(count) for reason, count in zip(reasons, counts[1:], strict=True) if count}
        return StepResult(batch.filter(pa.array(codes == 0)), dropped, codes=codes, reasons=reasons)


class GlobalStep(Step, frozen=True, kw_only=True):
    """A step that must see all records before it gives the first: a barrier between two stages.

    It is a description and pure kernels; how records come together (counts, keys, buckets on disk) is the pipeline's.
    """

    preserves_text: ClassVar[bool] = True

    @property
    def is_global(self) -> bool:
        return True

    @property
    def joins_sources(self) -> bool:
        """What is for training is written as one lane, the records of all sources interleaved."""
        return False

    def columns_needed(self) -> tuple[str, ...]:
        """Columns it reads."""
        return ()

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of its output; raises `UsageError` when the input lacks what it needs."""
        return schema
