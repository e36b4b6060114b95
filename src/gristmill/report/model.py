"""The keys of `report.json`: what follows from the manifest, what was read from the shards, what was measured.

All but `run` is the same for the same dataset. `docs/reference/report.schema.json` is made from these classes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gristmill.shards.derived_files import DatasetReport
from gristmill.shards.manifest import DuplicateCluster
from gristmill.shards.stored_files import StoredFile  # noqa: TC001  (msgspec looks at the types)


class ShownRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record of the dataset, or one that a step has dropped, quarantined or changed."""

    place: str
    """Where it came from."""
    text: str = ""
    """Its text, or its columns as JSON."""
    pictures: list[str] = []
    """Its first images, made small, as `data:` addresses."""
    num_characters: int = 0
    """The length of the whole text, if `text` is only the beginning."""
    split: str = ""
    step: str = ""
    reason: str = ""
    failed: dict[str, Any] = {}
    """Every rule that it broke, with the value that broke it."""
    thresholds: dict[str, Any] = {}
    """What these rules demand."""
    before: str = ""
    """The text around the first change, before and after the step; around `passage`, if there is one."""
    after: str = ""
    item: str = ""
    """The item of a benchmark that the record holds, and the passage that holds it."""
    passage: str = ""
    num_alike: int = 1
    """The number of records with this error, of those at the beginning of the quarantine."""
    spans: list[tuple[str, bool]] = []
    """The text of a row of chats in pieces, each with whether it is trained."""


class ShownCluster(DuplicateCluster, frozen=True, kw_only=True):
    """A cluster of duplicates, with what is known of the removed documents of which there are samples."""

    similarities: list[float] = msgspec.field(default_factory=list)
    """How similar each of them is to the one that was kept."""
    pictures: list[str] = msgspec.field(default_factory=list)
    """The images, made small, as `data:` addresses: first the one that was kept."""


class ShownSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Some records of each kind, chosen by hashes."""

    wanted: int
    """The largest number of records of each kind; 0: the report holds none."""
    num_records: int
    """How many records, or pieces of records, the report holds."""
    kept: list[ShownRecord]
    dropped: list[ShownRecord]
    changed: list[ShownRecord]
    quarantined: list[ShownRecord]
    clusters: list[ShownCluster]
    """The largest clusters of duplicates, with the beginnings of some texts."""


class Bin(msgspec.Struct, frozen=True, array_like=True):
    """One bar of a histogram: from `low` to below `high`."""

    low: float
    high: float
    count: int


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """The lengths of documents."""

    unit: str
    """`tokens`, or `bytes` of text."""
    documents: int
    """The number of documents that were measured."""
    is_sample: bool
    """Whether these are only some of the documents: evenly spread blocks of shards."""
    shortest: int
    median: float
    mean: float
    longest: int
    bins: list[Bin]


class LanguageCount(msgspec.Struct, frozen=True, kw_only=True):
    """A language, and the measured documents in it."""

    language: str
    documents: int
    amount: int = 0
    """Their tokens, or bytes of text: the unit of `lengths`."""
    reached: int = 0
    """Documents in it that reached the filters by scores; 0 where the run kept no scores."""
    kept: int = 0
    """Those of them that these filters kept."""


class BorderText(msgspec.Struct, frozen=True, kw_only=True):
    """A document whose score is near a threshold."""

    place: str
    value: float
    is_kept: bool
    """Whether this rule keeps it."""
    text: str
    """The beginning of its text in the input."""


class RuleCurve(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of a filter: how many documents it alone would keep at each of some thresholds. Exact."""

    name: str
    threshold: float
    """The threshold of the recipe."""
    position: int
    """Its place in `thresholds`."""
    thresholds: list[float]
    documents: list[int]
    examples: list[BorderText] = []
    """Documents just below and just above the threshold of the recipe, in the order of their scores. Only for the
    rules that remove most, and where the input can be read."""


class StepCurves(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one filter, over all documents that reached it, kept or dropped."""

    step: str
    documents: int
    """Documents that its thresholds decide about."""
    rules: list[RuleCurve]
    language: str = ""
    """The language with these thresholds; empty: all languages without separate ones."""
    others: int = 0
    """Documents that reached it, in languages with separate thresholds that are not shown."""
    sample_documents: int
    sample: str
    """Base64 of one byte for each sampled document and rule: how many of the thresholds it passes, from the weakest
    on: the lowest of a minimum, the highest of a maximum."""


class WorkerTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The time and memory of one worker in one job."""

    name: str
    tasks: int
    cpu_seconds: float
    """On another machine: as that machine said last, every half second while the worker was busy; 0 if it never did.
    So is `peak_bytes`."""
    peak_bytes: int
    node: str = ""
    """The id of its node in a cluster; empty for the machine of the run itself."""
    host: str = ""
    """The name of the machine of that node."""


class JobTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The time and memory of one job of the run: a stage, or the work of a barrier."""

    name: str
    seconds: float
    tasks: int
    deaths: int
    records: int
    bytes: int
    workers: list[WorkerTimes]


class RunTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The time and memory of the run that made the dataset. Another run gives other numbers."""

    finished: str
    """The time, as ISO 8601."""
    seconds: float
    backend: str
    jobs: list[JobTimes]
    recipe: str = ""
    """The recipe as it was written, with its name and the changes of `--set` as comments; empty if it has no YAML."""


class RunFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run that has left no dataset."""

    message: str
    help: str
    is_stopped: bool
    """Whether it was stopped by a person or a signal."""
    ended: str
    """The time, as ISO 8601."""

    def describe(self) -> str:
        """Describe the end of the run, as the rest of a sentence about it."""
        return "was stopped" if self.is_stopped else f"failed: {self.message}"


class Report(DatasetReport, frozen=True, kw_only=True):
    """The whole content of `report.json`."""

    samples: ShownSamples | None = None
    lengths: Lengths | None = None
    languages: list[LanguageCount] = msgspec.field(default_factory=list)
    curves: list[StepCurves] = msgspec.field(default_factory=list)
    """What other thresholds would keep; empty where the run kept no scores."""
    run: RunTimes | None = None
    """None: the report was made later, or the run reused everything."""
    failure: RunFailure | None = None
    """Why there is no dataset: the run has failed, or was stopped."""
    page: StoredFile | None = None
    """`report.html`, with its checksum."""


def make_schema() -> dict[str, Any]:
    """Make the JSON Schema of `report.json`."""
    schema = msgspec.json.schema(Report)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
