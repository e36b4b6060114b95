"""A job as data: sources, steps and the output folder. Created in Python, or from YAML by `gristmill.recipe`.

A source may also be Python objects, recognized by their shape: an iterable of dicts or of texts, a table (a frame of
pandas or polars, Arrow tables, anything that exports Arrow streams), or a dataset of `datasets`. Peeking at the first
records does not consume them: a later read of all records returns them again. Reading all records consumes a generator.
A second read of it is refused, since it would look like a source without records.
"""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import msgspec

from gristmill.core.checks import find_nearest, parse_byte_size
from gristmill.core.errors import UsageError
from gristmill.core.splits import TRAIN
from gristmill.core.step import Step, UserCode, find_untrusted_template

AUTO: Literal["auto"] = "auto"
DEFAULT_UNIT_BYTES = 64 << 20
DEFAULT_SAMPLES = 12
MAX_SAMPLES = 1000
"""The numbers of records of each kind that a report shows: by default, and at most."""
DEFAULT_NAME = "records"
"""The name of the part of a Python source that has no splits."""


class Source(msgspec.Struct, frozen=True):
    """A source of records, with steps for these records only. They run before the common steps."""

    read: Step
    steps: Sequence[Step] = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "steps", tuple(self.steps))


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The section `run` of a recipe: how it is run. None of it changes the output, and options of a run come first."""

    timeout: float | None = None
    """The longest time in seconds for about 4 MiB of input. A record that takes longer is quarantined."""
    pin: Literal["none", "cores", "numa"] = "none"
    """Bind each worker to one CPU (`cores`), or to the CPUs and memory of one NUMA node (`numa`)."""
    keep_work: bool = False
    """Keep the work folder in the output, and intermediate data."""
    wait_for_nodes: float | None = None
    """On a Ray cluster, seconds to wait for a node with room; by default 600 if there is no node yet, else 60."""
    stall_timeout: float = 900.0
    """Seconds without progress after which the run says which tasks it waits for, and where they are."""
    stop_on_stall: bool = False
    """Stop the run then. The same command resumes it."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A whole job: `Recipe(sources={"web": Read(read="*.jsonl")}, steps=[Length(min_chars=3)], output="out")`.

    A source is a `Read`, or a `Source` if it has steps that others do not have. These run first, in order.
    """

    sources: Mapping[str, Any]
    """Name and source: the name becomes a folder of the output and part of every record's identity."""
    output: str
    """The folder of the dataset: new, empty, or made by an earlier run."""
    steps: Sequence[Step] = ()
    """What happens to the records of all sources, in order."""
    seed: int = 0
    """Every random choice depends on it."""
    mixture: Mapping[str, float | Mapping[str, float]] | None = None
    """Weights of the sources when the dataset is streamed, or `{epochs: {web: 1, code: 2}}`: how often the rows of each
    are read for one pass over the others. They do not change what is written.
    """
    max_quarantine: float = 0.01
    """The share of a source's records that may be quarantined (always at least 10) before the run fails."""
    slice_bytes: int | Literal["auto"] = AUTO
    """How much input a task reads; "auto": tasks that keep all workers busy to the end. Never changes the output."""
    unit_bytes: int = DEFAULT_UNIT_BYTES
    """How much input becomes one shard, about: a multiple of 64 MiB. Larger ones are for datasets of more than
    20,000 shards, where `gristmill plan` proposes one. Changes the output.
    """
    identity: Literal["mtime", "content"] = "mtime"
    """How a changed input file is recognized: by size and modification time (or the store's etag), or by its
    content.
    """
    keep_dropped: Literal["samples", "all"] | None = None
    """Write dropped records to `dropped/STEP-REASON.jsonl`: 20 samples for each source, step and reason, chosen by a
    hash of their origins, or all.
    """
    keep_scores: Literal["file"] | None = "file"
    """Where a filter by scores runs, write what all filters measured in every document, kept or dropped, to
    [`scores/`](datasets.md#scores): thresholds can then be tuned without reading a text again. None: no. (A filter's
    own `keep_scores: true` adds the scores as columns.)
    """
    keep_stages: bool = False
    """Keep what [stages](storage.md#kept-stages) leave, so that `--update` after a change of `row_length` or of the
    last filter does not read and filter again: a stage also ends before the last filter, and before `pack`. Each
    takes the space of its records. Changes the blocks of shards, not their records.
    """
    work: str | None = None
    """A folder or URL for [intermediate data](storage.md#intermediate-data), which is removed when the run succeeds.
    None: the output. Never changes the output.
    """
    storage_options: Mapping[str, Any] | None = None
    """How the [stores](storage.md) of this recipe are reached: `endpoint`, `region`, `profile`, `anonymous`. Never a
    secret.
    """
    allow_empty: bool = False
    """Whether a dataset without records is published; otherwise such a run fails and says which step and rule
    dropped the last record. Never changes the output: it publishes a failed run from its receipts.
    """
    run: RunSettings = RunSettings()
    """[Settings of every run](#run) of this recipe. Never changes the output."""
    report: Mapping[str, int] | None = None
    """`{samples: n}`: how many records of each kind (kept, dropped, changed, quarantined) [report.html](report.md)
    shows, 0 for none; 12 by default. Never changes the data.
    """
    folder: str | None = None
    """In Python only: the folder where relative paths start. None: the current folder; from YAML, the folder of the
    recipe.
    """
    written: str | None = None
    """In Python only: the YAML that it was read from, which its report shows."""

    def __post_init__(self) -> None:
        _check_kinds(self.sources, self.steps)
        sources = {name: _make_source(name, value) for name, value in self.sources.items()}
        for name, value in (
            ("sources", sources),
            ("steps", tuple(self.steps)),
            ("output", os.fspath(self.output)),
            ("work", None if self.work is None else os.fspath(self.work)),
            ("run", _make_settings(self.run)),
            ("unit_bytes", parse_byte_size("unit_bytes", self.unit_bytes)),
            ("slice_bytes", AUTO if self.slice_bytes == AUTO else parse_byte_size("slice_bytes", self.slice_bytes)),
        ):
            msgspec.structs.force_setattr(self, name, value)
        _check_numbers(self)
        _check_mixture_and_report(self)
        for key, step in self.all_steps():
            _check_step(key, step)

    def all_steps(self) -> list[tuple[str, Step]]:
        """List every step with its key in the recipe: `sources.web.steps.0` or `steps.2`; reads are `sources.web`."""
        steps: list[tuple[str, Step]] = []
        for name, source in self.sources.items():
            steps.append((f"sources.{name}", source.read))
            steps += [(f"sources.{name}.steps.{index}", step) for index, step in enumerate(source.steps)]
        return steps + [(f"steps.{index}", step) for index, step in enumerate(self.steps)]

    @property
    def unit_scale(self) -> int:
        """How many times the usual input of a shard one of this recipe has."""
        return self.unit_bytes // DEFAULT_UNIT_BYTES

    @property
    def num_samples(self) -> int:
        """The number of records of each kind in the report."""
        return DEFAULT_SAMPLES if self.report is None else self.report.get("samples", DEFAULT_SAMPLES)

    def path(self, relative: str) -> str:
        """Return a path of this recipe as an absolute one; URLs stay as they are."""
        if "://" in relative:
            return relative
        if "\0" in relative:
            raise UsageError(f"{relative!r} is not a path: it holds the character NUL")
        # Not Path: `core` does no I/O, and Path.resolve would follow links.
        return os.path.abspath(os.path.join(self.folder or ".", relative))  # noqa: PTH100, PTH118


def step_parameters(step: Step) -> dict[str, Any]:
    """Return the fields of a step that differ from their defaults as plain data; functions and records stay objects."""
    parameters = {}
    for field in _list_fields(type(step)):
        value = getattr(step, field.name)
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        if value != default or type(value) is not type(default):
            is_object = isinstance(value, (UserCode, PythonRecords))
            parameters[field.encode_name] = value if is_object else msgspec.to_builtins(value)
    return parameters


@cache
def _list_fields(step_type: type[Step]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """List the fields of a step class. msgspec evaluates annotations each time, and a plan asks for each step often."""
    return msgspec.structs.fields(step_type)


def find_default(recipe: Recipe, key: str) -> object:
    """Find the default of a key such as `steps.0.length.min_chars`; None if there is none, or no such key."""
    structs: list[tuple[str, type[msgspec.Struct]]] = [("", Recipe)]
    for prefix, step in recipe.all_steps():
        is_read = prefix.count(".") == 1 and prefix.startswith("sources.")
        structs.append((f"{prefix}." if is_read else f"{prefix}.{step.name}.", type(step)))
    for prefix, struct in structs:
        for field in msgspec.structs.fields(struct):
            if f"{prefix}{field.encode_name}" == key:
                return None if field.default is msgspec.NODEFAULT else field.default
    return None


def runs_user_code(steps: Iterable[Step]) -> bool:
    """Whether a step runs code that is not part of Gristmill: a function, a template, or a step class of the user."""
    return any(find_untrusted_template(step) or not is_built_in(step) for step in steps)


def is_built_in(step: Step) -> bool:
    """Whether a step is one of Gristmill and calls no function of the user; templates are data."""
    holds_function = any(isinstance(getattr(step, name), UserCode) for name in step.__struct_fields__)
    return type(step).__module__.startswith("gristmill.") and not holds_function


def recipe_to_data(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain data in the layout of its YAML form; functions and records stay objects."""
    data: dict[str, Any] = {"output": recipe.output}
    for name, default in (
        ("seed", 0),
        ("max_quarantine", 0.01),
        ("slice_bytes", AUTO),
        ("unit_bytes", DEFAULT_UNIT_BYTES),
        ("identity", "mtime"),
        ("mixture", None),
        ("keep_dropped", None),
        ("keep_scores", "file"),
        ("keep_stages", False),
        ("work", None),
        ("storage_options", None),
        ("allow_empty", False),
        ("run", RunSettings()),
        ("report", None),
    ):
        value = getattr(recipe, name)
        if value != default:
            data[name] = value if isinstance(value, str) else msgspec.to_builtins(value)
    data["sources"] = {
        name: step_parameters(source.read) | ({"steps": _steps_to_data(source.steps)} if source.steps else {})
        for name, source in recipe.sources.items()
    }
    if recipe.steps:
        data["steps"] = _steps_to_data(recipe.steps)
    return data


def _steps_to_data(steps: Sequence[Step]) -> list[Any]:
    entries: list[Any] = []
    for step in steps:
        parameters = step_parameters(step)
        entries.append({step.name: parameters} if parameters else step.name)
    return entries


def _make_settings(run: Any) -> RunSettings:
    try:
        return run if isinstance(run, RunSettings) else msgspec.convert(dict(run), RunSettings)
    except (TypeError, ValueError) as error:
        raise UsageError(f"run: {error}", help="write run: {timeout: 60}", key="run") from None


def _check_kinds(sources: object, steps: object) -> None:
    if not isinstance(sources, Mapping):
        raise UsageError(f"sources must be a dict of names and Reads, not {sources!r}", key="sources")
    if not isinstance(steps, Sequence) or isinstance(steps, str):
        raise UsageError(f"steps must be a list of steps, not {steps!r}", key="steps")


def check_source_name(name: object) -> None:
    """Refuse a name that cannot be a folder of the output."""
    is_text = isinstance(name, str) and name.isprintable()
    if not is_text or any(character in str(name) for character in "/\\") or str(name)[:1] in ("", ".", "_"):
        raise UsageError(
            f"a source cannot be called {name!r}",
            help="it becomes a folder of the output: no slashes, no dot or underscore first, nothing unprintable",
            key=f"sources.{name}",
        )


def _make_source(name: object, value: object) -> Source:
    check_source_name(name)
    if isinstance(value, Source):
        return value
    if isinstance(value, Step):
        return Source(value)
    raise UsageError(
        f"source {name} must be a Read, not {value!r:.100}",
        help='write Read(read="data/*.jsonl") or Read(read=records)',
    )


def _check_numbers(recipe: Recipe) -> None:
    if not recipe.sources:
        raise UsageError("a recipe needs at least one source", key="sources")
    if not recipe.output:
        raise UsageError("a recipe needs an output folder", key="output")
    if recipe.work == "":
        raise UsageError("work is empty", help="name a folder or URL, or leave the key out", key="work")
    if not 0 <= recipe.max_quarantine <= 1:
        raise UsageError(
            f"max_quarantine must be a share from 0 to 1, not {recipe.max_quarantine}", key="max_quarantine"
        )
    if recipe.slice_bytes != AUTO and recipe.slice_bytes < 1:
        raise UsageError(f"slice_bytes must be at least 1, not {recipe.slice_bytes}", key="slice_bytes")
    if recipe.unit_bytes < 1 or recipe.unit_bytes % DEFAULT_UNIT_BYTES:
        raise UsageError(
            f"unit_bytes must be a multiple of 64 MiB, not {recipe.unit_bytes}",
            help="for smaller shards write: {max_shard_bytes: …}",
            key="unit_bytes",
        )
    if recipe.identity not in ("mtime", "content"):
        raise UsageError(f"identity must be mtime or content, not {recipe.identity!r}", key="identity")


def find_mixture_epochs(mixture: object) -> Mapping[str, float] | None:
    """Find the epochs of each source in a mixture; None: it has weights.

    >>> find_mixture_epochs({"epochs": {"web": 1, "code": 2}}), find_mixture_epochs({"web": 1})
    ({'web': 1, 'code': 2}, None)
    """
    epochs = mixture.get("epochs") if isinstance(mixture, Mapping) and len(mixture) == 1 else None
    return epochs if isinstance(epochs, Mapping) else None


def _check_mixture_and_report(recipe: Recipe) -> None:
    for name, weight in (find_mixture_epochs(recipe.mixture) or recipe.mixture or {}).items():
        if name not in recipe.sources:
            nearest = find_nearest(name, recipe.sources)
            raise UsageError(
                f'mixture names "{name}", which is not a source',
                help=f'did you mean "{nearest}"?' if nearest else f"the sources are {', '.join(recipe.sources)}",
                key=f"mixture.{name}",
            )
        if isinstance(weight, Mapping) or not 0 < weight < float("inf"):
            raise UsageError(f"mixture: the weight of {name} must be above 0, not {weight}", key=f"mixture.{name}")
    for key, value in (recipe.report or {}).items():
        if key != "samples":
            raise UsageError(f'report has no key "{key}"', help="write report: {samples: 12}", key=f"report.{key}")
        if not 0 <= value <= MAX_SAMPLES:
            raise UsageError(f"report: samples must be from 0 to {MAX_SAMPLES}, not {value}", key="report.samples")


def _check_step(key: str, step: object) -> None:
    """Check the types of a step's fields: msgspec checks them only in steps that come from YAML."""
    if not isinstance(step, Step):
        is_read = key.count(".") == 1 and key.startswith("sources.")
        raise UsageError(
            f"{key} must be a {'Read' if is_read else 'step'}, not {step!r:.100}",
            help="write Source(Read(read=...))" if is_read else None,
        )
    try:
        msgspec.convert(msgspec.structs.asdict(step), type(step))
    except msgspec.ValidationError as error:
        raise UsageError(f"{key} ({step.name}): {error}") from error


class PythonRecords:
    """The records that `Read(read=...)` got instead of paths.

    >>> records = PythonRecords.of({"text": text} for text in "abc")
    >>> [part] = records.parts.values()
    >>> part.peek(1), list(part.take_all())
    ([{'text': 'a'}], [{'text': 'a'}, {'text': 'b'}, {'text': 'c'}])
    """

    __slots__ = ("_kind", "has_splits", "parts")

    def __init__(self, kind: str, parts: Mapping[str, RecordIterable], *, has_splits: bool) -> None:
        self._kind = kind
        self.parts = dict(parts)
        """Iterables by name: the splits of a DatasetDict, or the split of a Dataset; else `records`."""
        self.has_splits = has_splits

    @classmethod
    def of(cls, value: object) -> PythonRecords:
        """Recognize an object as a source of records. Raises `UsageError` if it is none."""
        kind = type(value).__name__
        if isinstance(value, Mapping):
            if not value or not all(_is_dataset(split) for split in value.values()):
                raise UsageError(
                    f"read: a {kind} is not a source of records",
                    help="put records in a list; splits are {'train': …, 'validation': …}",
                )
            return cls(kind, {str(name): RecordIterable(split) for name, split in value.items()}, has_splits=True)
        is_records = isinstance(value, Iterable) or is_table(value)
        if not is_records or isinstance(value, (bytes, bytearray, memoryview)):
            hint = "pass paths, a table, or an iterable of dicts or texts"
            if hasattr(type(value), "collect"):  # a lazy frame
                hint = "collect it first: read=frame.collect()"
            elif callable(value):
                hint = "call it: read=my_records()"
            raise UsageError(f"read: {value!r:.100} is neither paths nor records", help=hint)
        # `train[:10%]` is a part of a split, `train+test` is neither.
        split = str(getattr(value, "split", None) or TRAIN).partition("[")[0] if _is_dataset(value) else TRAIN
        has_splits = split != TRAIN
        return cls(kind, {split if has_splits else DEFAULT_NAME: RecordIterable(value)}, has_splits=has_splits)

    @classmethod
    def join(cls, splits: Mapping[str, PythonRecords]) -> PythonRecords:
        """Join the records of several splits."""
        parts = {split: part for split, records in splits.items() for part in records.parts.values()}
        return cls("dict", parts, has_splits=True)

    def __str__(self) -> str:
        return f"<{self._kind} from Python>"

    __repr__ = __str__


class RecordIterable:
    """An iterable of records that can be peeked at."""

    __slots__ = ("_ahead", "_batches", "_is_spent", "_iterator", "_source")

    def __init__(self, value: Any) -> None:
        self._source = value
        self._iterator: Iterator[Any] | None = value if isinstance(value, Iterator) else None
        self._ahead: list[Any] = []
        self._batches: RecordIterable | None = None
        self._is_spent = inspect.isgenerator(value) and inspect.getgeneratorstate(value) == inspect.GEN_CLOSED

    @property
    def is_table(self) -> bool:
        """Whether its records are rows of a table, which keep the types of its columns."""
        return is_table(self._source)

    @property
    def dataset(self) -> Any | None:
        """The dataset, if it is one of `datasets` with an Arrow table."""
        is_table = _is_dataset(self._source) and hasattr(self._source, "data") and hasattr(self._source, "_indices")
        return self._source if is_table else None

    def as_iterator(self, make: Callable[[Any], Iterator[Any]]) -> RecordIterable:
        """Return an iterable over what `make` returns, such as batches of a table. A stream always has the same one."""
        if not hasattr(self._source, "read_next_batch"):
            return RecordIterable(make(self._source))
        if self._batches is None:
            self._batches = RecordIterable(make(self._source))
        return self._batches

    def peek(self, count: int) -> list[Any]:
        """Return the first records; `take_all` returns them again."""
        self._refuse_spent()
        if self._iterator is None:
            return list(itertools.islice(self._source, count))
        self._ahead += itertools.islice(self._iterator, max(0, count - len(self._ahead)))
        return self._ahead[:count]

    def take_all(self) -> Iterator[Any]:
        """Return all records, those that were peeked at included. A generator or stream can be read only once."""
        self._refuse_spent()
        if self._iterator is None:
            return iter(self._source)
        self._is_spent = True
        ahead, self._ahead = self._ahead, []
        return itertools.chain(ahead, self._iterator)

    def _refuse_spent(self) -> None:
        if self._is_spent:
            raise UsageError(
                "read: this generator or stream has already been read to its end",
                help="create a new one for each run; finished work of an earlier run is kept",
            )


def is_table(value: object) -> bool:
    """Whether it exports its rows as an Arrow stream, such as a frame of pandas or polars. Neither is imported."""
    kind = type(value)
    has_columns = hasattr(kind, "columns") or hasattr(kind, "schema")  # a single column exports a stream, too
    return hasattr(kind, "__arrow_c_stream__") and has_columns and not _is_dataset(value)


def _is_dataset(value: object) -> bool:
    """Whether it is a Dataset or IterableDataset of `datasets`, which is not imported."""
    return all(hasattr(value, name) for name in ("with_format", "features", "__iter__"))
