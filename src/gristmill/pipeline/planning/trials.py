"""A trial of the steps: a few real records go through every local step before any work starts.

Steps that run the user's own code do so in a worker: a function that crashes or never returns on a sample record must
not stop the plan. The run itself finds such a record and quarantines it.

An untrusted chat template is a program that came with a model, and Jinja computes its constants while it compiles. So
the parent never compiles one: plan, `template check` and `explain` send it to a worker, which can be killed and limits
its CPU time (`TemplateLimits`) and memory. A trial also loads tokenizers and compares their engines, so the time of the
whole is limited generously: it only ends what hangs.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import process_time
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import pyarrow.compute as pc

from gristmill.core.books import max_quarantined_records
from gristmill.core.errors import ItemTimeoutError, OutOfMemoryError, UsageError, WorkerDiedError
from gristmill.core.quantities import format_count
from gristmill.core.recipe import is_built_in, runs_user_code
from gristmill.core.records import INPUT_IDS, ORIGIN
from gristmill.core.step import UserCode, find_untrusted_template, load_kernel
from gristmill.engine.tasks import Task, run_tasks
from gristmill.readers.formats import RECORD_FORMATS, file_format
from gristmill.readers.source import open_reader
from gristmill.runtime.functions import Function
from gristmill.runtime.process import block_pandas_import
from gristmill.storage.patterns import find_narrower_pattern
from gristmill.storage.urls import find_protocol
from gristmill.text.chats.jinja_environment import MAX_GROWTH_BYTES, MAX_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from gristmill.core.errors import GristmillError
    from gristmill.core.records import QuarantinedRecord, SourceFile
    from gristmill.core.step import LocalStep
    from gristmill.engine.tasks import Context
    from gristmill.engine.worker_pool import WorkerPool
    from gristmill.readers.read import Read


OutcomeAndNotes = tuple["SampleOutcome", list[str]]
"""The outcome of a sample, and notes for the user."""

_KEPT_FUNCTION = Function("kept_in_a_worker.py", "function")
_MAX_RECORDS = 100
_MAX_SECONDS = 60.0
_MAX_SHOWN = 3
_MAX_CELLS = 64
"""Number of cells that the plan reads in search of a first record. The run counts the rest."""
TRIAL_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class SampleTrial:
    """A trial of some steps on the first records of a file."""

    read: Read
    file: SourceFile
    schema: pa.Schema
    steps: tuple[LocalStep, ...]
    expected: pa.Schema
    """The columns that must come out of the last step."""
    seed: int
    max_quarantine: float
    batch: pa.RecordBatch | None = None
    """The records, if they have been read already: a worker could not read those from Python."""
    runs_templates_here: bool = False
    """Whether this process may run untrusted templates."""
    stops: bool = False
    """Whether the user's own code is not called again once it has raised."""

    @property
    def template_names(self) -> str:
        """Names of the untrusted chat templates that the steps run; empty without one."""
        return ", ".join(filter(None, map(find_untrusted_template, self.steps)))

    def read_first_records(self) -> pa.RecordBatch | None:
        cells = open_reader(self.read, self.file, self.schema).read_cells(0, 1)
        return next((cell.batch.slice(0, _MAX_RECORDS) for cell in cells), None)


class SampleCounts(NamedTuple):
    """The numbers of a trial: what the local steps left of the sample, and how long they took."""

    records: int = 0
    kept: int = 0
    """Records of which something is left."""
    examples: int = 0
    """What is left: `render` may make several examples of a record."""
    tokens: int = 0
    cpu_seconds: float = 0.0
    """Without what the steps load and compile."""


@dataclass(frozen=True, slots=True)
class SampleOutcome:
    """The outcome of a trial: steps that are adapted to the sample, and mean sizes of its records."""

    steps: tuple[LocalStep, ...]
    """The steps, adapted to the sample."""
    record_bytes: float = 0.0
    """Mean size of a record in the input; 0: not known."""
    column_bytes: tuple[dict[str, float], ...] = ()
    """Mean size of each column of a record, as it is read and then after each step."""
    counts: SampleCounts = field(default_factory=SampleCounts)


def try_sample(
    sample: SampleTrial, *, in_worker: bool, timeout: float | None = None, pool: WorkerPool | None = None
) -> OutcomeAndNotes:
    """Adapt the steps to a sample, and collect notes for the user.

    With `in_worker` the user's own code runs in a worker process, from `pool` if there is one. Untrusted templates do
    so without it, too, unless they may run here.
    """
    result: OutcomeAndNotes
    if sample.template_names and not sample.runs_templates_here:
        sample = replace(sample, batch=sample.read_first_records())
        result = run_with_limits(
            _run_apart, sample, sample.template_names, steps=sample.steps, timeout=timeout, pool=pool
        )
        return _return_functions(sample.steps, result)
    if not (in_worker and runs_user_code(sample.steps)):
        return run_sample(sample)
    if find_protocol(sample.file.path) is not None:  # the worker of a trial does not know how to reach the store
        sample = replace(sample, batch=sample.read_first_records())
    tasks = [Task(f"sample of {sample.file.path}", sample)]
    seconds = timeout or _MAX_SECONDS
    try:
        [(_, result)] = run_tasks(
            _run_sample_task, tasks, workers=1, timeout=seconds, retries=0, desc="sample", progress=False, pool=pool
        )
    except (WorkerDiedError, OutOfMemoryError) as error:
        note = f"a sample record ends its worker: the run will find it and quarantine it ({error.message})"
        return SampleOutcome(sample.steps), [note]
    except UsageError as error:  # raised again without the engine's notes on tasks: it is about the recipe
        raise UsageError(error.message, help=error.help, **error.context) from None
    except ItemTimeoutError:
        note = f"the sample took more than {seconds:g} s and was not checked to the end: give the run a timeout"
        return SampleOutcome(sample.steps), [note]
    return _return_functions(sample.steps, result)


def _run_apart(sample: SampleTrial) -> OutcomeAndNotes:
    """Like `run_sample`, for a worker. Functions stay there: once called, they may hold a lock or a loaded model."""
    outcome, notes = run_sample(sample)
    steps = [
        msgspec.structs.replace(step, **dict.fromkeys(_find_functions(step), _KEPT_FUNCTION)) for step in outcome.steps
    ]
    return replace(outcome, steps=tuple(steps)), notes


def _return_functions(steps: Sequence[LocalStep], result: OutcomeAndNotes) -> OutcomeAndNotes:
    """Give the steps that a worker has adapted the functions that they had."""
    outcome, notes = result
    pairs = zip(steps, outcome.steps, strict=True)
    adapted = [msgspec.structs.replace(after, **_find_functions(step)) for step, after in pairs]
    return replace(outcome, steps=tuple(adapted)), notes


def _find_functions(step: LocalStep) -> dict[str, UserCode]:
    fields = {name: getattr(step, name) for name in step.__struct_fields__}
    return {name: value for name, value in fields.items() if isinstance(value, UserCode)}


def run_sample(sample: SampleTrial) -> OutcomeAndNotes:
    """Send the first records through the steps, and adapt each step to the records that reach it."""
    batch = sample.batch if sample.batch is not None else sample.read_first_records()
    if batch is None:
        return SampleOutcome(sample.steps), []
    adapted: list[LocalStep] = []
    notes: list[str] = []
    record_bytes, column_bytes = _measure_input_bytes(batch, sample), [_measure_column_bytes(batch)]
    num_records, cpu_seconds = batch.num_rows, 0.0
    for step in sample.steps:
        adapted.append(step.adapt_to_sample(batch))
        notes += adapted[-1].sample_notes(batch)
        batch, seconds = _apply_step(adapted[-1], batch, sample)
        cpu_seconds += seconds
        column_bytes.append(_measure_column_bytes(batch))
    if not batch.schema.equals(sample.expected):
        raise UsageError(
            f"the steps make other columns than they declare: {batch.schema.names}, not {sample.expected.names}"
        )
    has_tokens = INPUT_IDS in batch.schema.names
    outcome = SampleOutcome(
        tuple(adapted),
        record_bytes,
        tuple(column_bytes),
        SampleCounts(
            records=num_records,
            kept=pc.count_distinct(batch.column(ORIGIN).field("position")).as_py(),
            examples=batch.num_rows,
            tokens=(pc.sum(pc.list_value_length(batch.column(INPUT_IDS))).as_py() or 0) if has_tokens else 0,
            cpu_seconds=cpu_seconds,
        ),
    )
    return outcome, notes


def _measure_input_bytes(batch: pa.RecordBatch, sample: SampleTrial) -> float:
    """Measure the mean size of a record in the input: by the positions of lines, else by the columns in memory."""
    if not batch.num_rows:
        return 0.0
    if file_format(sample.file.path, sample.read.format) in RECORD_FORMATS and batch.num_rows > 1:
        positions = batch.column(ORIGIN).field("position")
        return float(positions[-1].as_py() - positions[0].as_py()) / float(batch.num_rows - 1)
    return float(batch.nbytes / batch.num_rows)


def _measure_column_bytes(batch: pa.RecordBatch) -> dict[str, float]:
    return {name: float(batch.column(name).nbytes) / max(1, batch.num_rows) for name in batch.schema.names}


def _apply_step(step: LocalStep, batch: pa.RecordBatch, sample: SampleTrial) -> tuple[pa.RecordBatch, float]:
    """Apply a step, and measure its CPU time: the load of the machine changes that less than the time on the clock."""
    kernel = load_kernel(step, stops=sample.stops)
    if is_built_in(step):
        kernel.begin_cell()
        kernel.apply(batch.slice(0, 1), sample.seed)  # what it compiles and loads late is not its speed
    kernel.begin_cell()
    begin = process_time()
    result = kernel.apply(batch, sample.seed)
    seconds = process_time() - begin
    num_bad = len(result.quarantined)
    if num_bad == batch.num_rows and num_bad > max_quarantined_records(num_bad, sample.max_quarantine):
        first = result.quarantined[0]
        raise UsageError(
            f"step {step.name}: none of {num_bad} sample records could be used; the first, in {sample.file.path} at "
            f"position {first.position}: {first.message}",
            help="fix the step, or the field names in the recipe; if only this file is unlike the others, read a "
            "narrower pattern",
        )
    return result.batch, seconds


def _run_sample_task(task: Task, context: Context) -> OutcomeAndNotes:  # noqa: ARG001
    return _run_apart(task.payload)


def explain_no_records(read: Read, files: Sequence[SourceFile], schema: pa.Schema) -> UsageError | None:
    """Make the error for a source whose files have bytes but no record; None if there is one, or not all was read."""
    num_cells = num_blank = 0
    first_bad: tuple[SourceFile, QuarantinedRecord] | None = None
    with_bytes = [file for file in files if file.num_bytes]
    for file in with_bytes:
        for cell in open_reader(read, file, schema).read_cells():
            num_cells += 1
            if cell.batch.num_rows or num_cells > _MAX_CELLS:
                return None
            num_blank += cell.num_blank
            if cell.quarantined and first_bad is None:
                first_bad = file, cell.quarantined[0]
    if first_bad is not None:
        return _make_unusable_error(read, *first_bad)
    if not with_bytes:
        return None
    num_bytes = sum(file.num_bytes for file in with_bytes)
    reason = f"{num_blank:,} blank ones" if num_blank else "none at all"
    return UsageError(
        f"{with_bytes[0].path}: no record in {len(with_bytes):,} files of {num_bytes:,} bytes, {reason}",
        help="check that read names the files with the records, and that `format` is theirs",
    )


def name_unlike_files(error: GristmillError, read: Read, files: Sequence[SourceFile], schema: pa.Schema) -> None:
    """Add to an error on bad records which files are unlike the others, and a pattern that leaves them out.

    `error.context` names files with bad records, which are looked at first. A file is unlike the others
    if most of its first records cannot be read, and those of another one can.
    """
    names = set(cast("list[str]", error.context["files"]))
    looked_at = sorted(files, key=lambda file: file.relative not in names)[:_MAX_CELLS]
    unlike = [file for file in looked_at if not _is_readable(read, file, schema)]
    if not 0 < len(unlike) < len(looked_at):
        return
    others = [file for file in files if file not in unlike]
    shown = ", ".join(file.path for file in unlike[:_MAX_SHOWN]) + (", …" if len(unlike) > _MAX_SHOWN else "")
    one = len(unlike) == 1
    error.add_note(
        f"{shown} {'is' if one else 'are'} unlike the other {format_count(len(others), 'file')} of the source"
    )
    pattern = find_narrower_pattern([file.relative for file in others], [file.relative for file in unlike])
    root = others[0].path[: -len(others[0].relative)]
    narrower = "" if pattern is None else f", such as {root}{pattern}"
    error.help = (
        f"if {'it does' if one else 'they do'} not belong there, read a narrower pattern{narrower}, or move "
        f"{'it' if one else 'them'} elsewhere; if {'it does' if one else 'they do'}, {error.help}"
    )


def _is_readable(read: Read, file: SourceFile, schema: pa.Schema) -> bool:
    """Whether most records of the first cell with records can be read."""
    for cell in open_reader(read, file, schema).read_cells():
        num_bad = sum(bad.num_records for bad in cell.quarantined)
        if cell.batch.num_rows or num_bad:
            return bool(cell.batch.num_rows > num_bad)
    return True


def _make_unusable_error(read: Read, file: SourceFile, bad: QuarantinedRecord) -> UsageError:
    hint = "check that read names the files with the records, and that `format` and `text` are theirs"
    if file_format(file.path, read.format) == "jsonl" and (bad.raw or b"").lstrip().startswith(b"["):
        hint = "it holds a JSON array, not one object per line: set `format: json`"
    if file_format(file.path, read.format) == "csv" and bad.reason == "invalid_utf8":
        hint = "name the encoding of the file: `encoding: latin-1`, `encoding: cp1252`, …"
    if bad.reason == "ragged_row":
        hint = "check the header line; set `delimiter` if the columns were split at the wrong character"
    return UsageError(
        f"{file.path}: no record can be used; the first, at position {bad.position}: {bad.reason}: {bad.message}",
        help=hint,
    )


def run_with_limits(
    function: Callable[[Any], Any],
    argument: Any,
    template: str,
    *,
    steps: Iterable[LocalStep] = (),
    timeout: float | None = None,
    pool: WorkerPool | None = None,
) -> Any:
    """Call `function(argument)` in a worker, and return its result.

    Args:
        function: The function.
        argument: Its only argument.
        template: The name of the template, for messages.
        steps: The steps that the function will load.
        timeout: Seconds for the call; None: `TRIAL_SECONDS`.
        pool: The pool that the worker is taken from; None: it is started for this call.

    Raises:
        UsageError: The template took more time or memory than it may, or ended the worker.
    """
    seconds = timeout or TRIAL_SECONDS
    try:
        [(_, result)] = run_tasks(
            _call_function,
            [Task(f"trial of {template}", None)],
            workers=1,
            setup=partial(_set_up_worker, function, argument, tuple(steps)),
            timeout=seconds,
            retries=0,
            max_growth_bytes=MAX_GROWTH_BYTES,
            desc="trial",
            progress=False,
            pool=pool,
        )
    except UsageError as error:  # raised again without the engine's notes on tasks: it is about the recipe
        raise UsageError(error.message, help=error.help, **error.context) from None
    except ItemTimeoutError:
        problem = f"took more than {MAX_SECONDS:g} s of CPU time, or its trial more than {seconds:g} s"
    except OutOfMemoryError:
        problem = f"takes more than {MAX_GROWTH_BYTES >> 30} GiB of memory"
    except WorkerDiedError as error:
        problem = f"ends the process that runs it ({error.message})"
    else:
        return result
    raise UsageError(
        f"the template of {template} {problem}",
        help="look for a loop or a large number in it, or name another template",
    )


def _set_up_worker(function: Callable[[Any], Any], argument: Any, steps: Sequence[LocalStep]) -> Any:
    """Load Jinja and tokenizers before the clock runs: they take seconds, which no template is to blame for."""
    from gristmill.text.chats.templates import ChatTemplate  # noqa: PLC0415  (only chats need it)

    functions = [step for step in steps if runs_user_code([step]) and not find_untrusted_template(step)]
    if not functions:
        block_pandas_import()
    ChatTemplate("", {}).render([])
    for step in steps:
        if not find_untrusted_template(step) and step not in functions:
            with suppress(Exception):  # loading fails again where the step is used, with the right message
                step.load()
    return function, argument


def _call_function(task: Task, context: Context) -> Any:  # noqa: ARG001
    function, argument = context.state
    return function(argument)
