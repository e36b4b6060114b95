"""A job as data: sources, steps and the output folder. Created in Python, or from YAML by `gristmill.recipe`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.names import find_nearest
from gristmill.core.numbers import parse_byte_size
from gristmill.core.python_records import PythonRecords
from gristmill.core.step import Step, UserCode

AUTO: Literal["auto"] = "auto"
DEFAULT_UNIT_BYTES = 64 << 20
DEFAULT_SAMPLES = 12
MAX_SAMPLES = 1000
"""The numbers of records of each kind that a report shows: by default, and at most."""


class Source(msgspec.Struct, frozen=True):
    """A source of records, with steps for these records only. They run before the common steps."""

    read: Step
    steps: Sequence[Step] = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "steps", tuple(self.steps))


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A whole job: `Recipe(sources={"web": Read(read="*.jsonl")}, steps=[Length(min_chars=3)], output="out")`.

    A source is a `Read`, or a `Source` when it has steps of its own. Steps run in order; a source's own come first.
    """

    sources: Mapping[str, Any]
    output: str
    steps: Sequence[Step] = ()
    seed: int = 0
    mixture: Mapping[str, float] | None = None
    """Weights of the sources when the dataset is streamed. They do not change what is written."""
    max_quarantine: float = 0.01
    """The share of a source's records that may be quarantined before the run fails."""
    slice_bytes: int | Literal["auto"] = AUTO
    """How much input a task reads; "auto": as much as keeps all workers busy. Never changes the output."""
    unit_bytes: int = DEFAULT_UNIT_BYTES
    """How much input becomes one shard, about: a multiple of 64 MiB, for datasets of very many shards."""
    identity: Literal["mtime", "content"] = "mtime"
    """How a changed input file is recognized: by size and modification time, or by its content."""
    keep_dropped: Literal["samples", "all"] | None = None
    """Write dropped records to `dropped/`: 20 for each source, step and reason, or all."""
    keep_scores: Literal["file"] | None = "file"
    """Whether what filters by scores measure in every document, kept or dropped, goes to `scores/`. None: no."""
    work: str | None = None
    """A folder or URL for intermediate data, which goes when the run succeeds. None: the output. Shapes no bytes."""
    storage_options: Mapping[str, Any] | None = None
    """How the stores of this recipe are reached: `endpoint`, `region`, `profile`, `anonymous`. Never a secret."""
    allow_empty: bool = False
    """Whether a dataset without records is published; otherwise such a run fails. Never changes the output."""
    report: Mapping[str, int] | None = None
    """`{samples: n}`: how many records of each kind `report.html` shows, 0 for none. Never changes the data."""
    folder: str | None = None
    """The folder that relative paths start at: that of the recipe's file. None: the current folder."""

    def __post_init__(self) -> None:
        _check_kinds(self.sources, self.steps)
        sources = {name: _make_source(name, value) for name, value in self.sources.items()}
        for name, value in (
            ("sources", sources),
            ("steps", tuple(self.steps)),
            ("output", os.fspath(self.output)),
            ("work", None if self.work is None else os.fspath(self.work)),
            ("unit_bytes", parse_byte_size("unit_bytes", self.unit_bytes)),
            ("slice_bytes", AUTO if self.slice_bytes == AUTO else parse_byte_size("slice_bytes", self.slice_bytes)),
        ):
            msgspec.structs.force_setattr(self, name, value)
        _check_numbers(self)
        _check_mixture(self)
        _check_report(self)
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


def runs_user_code(steps: Iterable[Step]) -> bool:
    """Whether a step runs code that is not part of Gristmill: a function, a template, or a step class of the user."""
    return any(step.runs_untrusted_code or not is_built_in(step) for step in steps)


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
        ("work", None),
        ("storage_options", None),
        ("allow_empty", False),
        ("report", None),
    ):
        value = getattr(recipe, name)
        if value != default:
            data[name] = dict(value) if isinstance(value, Mapping) else value
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


def _check_mixture(recipe: Recipe) -> None:
    for name, weight in (recipe.mixture or {}).items():
        if name not in recipe.sources:
            nearest = find_nearest(name, recipe.sources)
            raise UsageError(
                f'mixture names "{name}", which is not a source',
                help=f'did you mean "{nearest}"?' if nearest else f"the sources are {', '.join(recipe.sources)}",
                key=f"mixture.{name}",
            )
        if not 0 < weight < float("inf"):
            raise UsageError(f"mixture: the weight of {name} must be above 0, not {weight}", key=f"mixture.{name}")


def _check_report(recipe: Recipe) -> None:
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
