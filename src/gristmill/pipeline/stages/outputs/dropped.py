"""Records that steps have dropped, as JSON lines: samples of each reason, or all of them.

A task writes its own to a file next to its quarantine. When all tasks are done, these are joined into one file for each
step and reason. Samples are the records with the lowest hashes of their origins, so they depend neither on tasks nor on
workers.

A line names its record by one word, `SOURCE:FILE@POSITION`, which `gristmill explain` and `trace` accept. Files of
quarantined records hold such words, too.
"""

from __future__ import annotations

import base64
import heapq
import io
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from gristmill.core.records import ORIGIN, RECORD, TEXT, Records, StepResult
from gristmill.core.seeds import hash_origins
from gristmill.pipeline.stages.outputs.observers import SliceObserver
from gristmill.pipeline.stages.outputs.quarantine import MAX_RECORD_BYTES
from gristmill.pipeline.work_folder import work_path
from gristmill.shards.stored_files import StoredFile
from gristmill.steps.column_names import list_value_columns
from gristmill.storage.commit import PendingFile
from gristmill.storage.locations import relative_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa

    from gristmill.pipeline.stages.outputs.observers import LineFile, StepPlace
    from gristmill.storage.locations import Location


SAMPLES = "samples"
MAX_SAMPLES = 20
"""The number of samples of each source, step and reason."""
CHANGED = "changed"
"""In the place of a reason: samples of texts that a step has edited."""
_HASH = "hash"
_CHANGE_CHARS = 200


class LowestHashSamples:
    """The lines with the lowest hashes, for each key."""

    def __init__(self) -> None:
        self._heaps: dict[tuple[str, ...], list[tuple[int, bytes]]] = {}

    def accepts(self, key: tuple[str, ...], hashed: int) -> bool:
        """Tell whether a line with this hash would be a sample. Asked first, because encoding a line costs more."""
        heap = self._heaps.get(key, [])
        return len(heap) < MAX_SAMPLES or -heap[0][0] > hashed

    def add(self, key: tuple[str, ...], hashed: int, line: bytes) -> None:
        """Add a line, if it is one of the samples so far."""
        if self.accepts(key, hashed):
            heap = self._heaps.setdefault(key, [])
            (heapq.heappush if len(heap) < MAX_SAMPLES else heapq.heappushpop)(heap, (-hashed, line))

    def lines(self) -> Iterator[tuple[tuple[str, ...], bytes]]:
        """Iterate over keys and lines, in the order of keys and hashes."""
        for key in sorted(self._heaps):
            for _, line in sorted(self._heaps[key], reverse=True):
                yield key, line


class DroppedRecordWriter(SliceObserver):
    """Writes the records that the steps of one slice drop.

    `read_dropped` reads, once all is done, those that the barrier before the stage has dropped, with their reasons.
    """

    def __init__(
        self,
        source: str,
        entry_step: str,
        keep: str,
        seed: int,
        paths: Mapping[int, str],
        file: LineFile,
        read_dropped: Callable[[], Iterable[tuple[str, pa.RecordBatch]]],
    ) -> None:
        self._source = source
        self._entry_step = entry_step
        self._keep = keep
        self._seed = seed
        self._paths = paths
        self._file = file
        self._read_dropped = read_dropped
        self._samples = LowestHashSamples()

    def after_step(self, place: StepPlace, before: Records, applied: StepResult) -> None:
        self._add(place.step.name, before, applied)

    def commit(self) -> Mapping[str, Any]:
        for reason, batch in self._read_dropped():
            codes = np.ones(batch.num_rows, np.uint8)
            applied = StepResult(batch.slice(0, 0), {reason: batch.num_rows}, codes=codes, reasons=(reason,))
            self._add(self._entry_step, Records(batch), applied)
        for _, line in self._samples.lines():  # they are known only when the last record has been seen
            self._file.write(line)
        return {"dropped": self._file.commit()}

    def _add(self, step: str, before: Records, applied: StepResult) -> None:
        """Add what a step has dropped or edited; `before` is what the step got."""
        self._add_changes(step, before, applied)
        rows, reasons = _find_dropped_rows(before.rows, applied)
        if not len(rows):
            return
        batch = before.batch
        hashes = hash_origins(self._seed, "dropped", batch.column(ORIGIN).take(rows))
        for row, reason, hashed in zip(rows.tolist(), reasons, hashes.tolist(), strict=True):
            if self._keep == SAMPLES and not self._samples.accepts((step, reason), hashed):
                continue
            line = self._encode_line(step, reason, _describe_failed_rules(applied, reason, row), batch, row, hashed)
            if self._keep == SAMPLES:
                self._samples.add((step, reason), hashed, line)
            else:
                self._file.write(line)

    def _add_changes(self, step: str, before: Records, applied: StepResult) -> None:
        """Add samples of texts before and after the step, for any `keep_dropped`: edited records are not gone."""
        rows = np.empty(0, np.int64) if applied.changed_rows is None else np.flatnonzero(applied.changed_rows)
        if not len(rows):
            return
        batch = before.batch
        hashes = hash_origins(self._seed, "changed", batch.column(ORIGIN).take(rows))
        for row, hashed in zip(rows.tolist(), hashes.tolist(), strict=True):
            if self._samples.accepts((step, CHANGED), hashed):
                texts = batch.column(TEXT)[row].as_py(), applied.batch.column(TEXT)[row].as_py()
                entry = self._describe_record(step, CHANGED, batch, row) | _show_change(*texts) | {_HASH: hashed}
                self._samples.add((step, CHANGED), hashed, msgspec.json.encode(entry) + b"\n")

    def _encode_line(
        self, step: str, reason: str, failed: dict[str, Any], batch: pa.RecordBatch, row: int, hashed: int
    ) -> bytes:
        entry = {
            **self._describe_record(step, reason, batch, row),
            **failed,
            **_describe_content(batch, row),
            _HASH: hashed,
        }
        return msgspec.json.encode(entry, enc_hook=repr) + b"\n"

    def _describe_record(self, step: str, reason: str, batch: pa.RecordBatch, row: int) -> dict[str, Any]:
        origin = batch.column(ORIGIN)[row].as_py()
        return {
            "source": self._source,
            "file": self._paths.get(origin["file"], origin["file"]),
            "position": origin["position"],
            "part": origin["part"],
            "step": step,
            "reason": reason,
        }


def _show_change(before: str, after: str) -> dict[str, str]:
    """Return the texts around the first difference."""
    pairs = enumerate(zip(before, after, strict=False))
    first = next((number for number, (old, new) in pairs if old != new), min(len(before), len(after)))
    start = max(first - _CHANGE_CHARS, 0)
    return {"before": before[start : first + _CHANGE_CHARS], "after": after[start : first + _CHANGE_CHARS]}


def _describe_failed_rules(applied: StepResult, reason: str, row: int) -> dict[str, Any]:
    """Describe all rules that a record breaks, with the values they were applied to and their thresholds."""
    rules = [name for name, failing in applied.failed.items() if failing[row]] or [reason]
    measured_rules = {rule: applied.rule_values[rule].at(row) for rule in rules if rule in applied.rule_values}
    return {
        "failed": {rule: measured_rules[rule][0] if rule in measured_rules else True for rule in rules},
        "thresholds": {rule: threshold for rule, (_, threshold) in measured_rules.items() if threshold is not None},
    }


def _find_dropped_rows(batch: pa.RecordBatch, applied: StepResult) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Find the numbers of the rows that a step has dropped, and the reason for each."""
    if not applied.dropped:
        return np.empty(0, np.int64), []
    if applied.codes is not None:
        rows = np.flatnonzero(applied.codes)
        return rows, [applied.reasons[code - 1] for code in applied.codes[rows]]
    # The step does not say which rows it dropped: they are those that neither came out nor were quarantined.
    other_origins = {(bad.file, bad.position, bad.part) for bad in applied.quarantined}
    other_origins |= {tuple(origin.values()) for origin in applied.batch.column(ORIGIN).to_pylist()}
    origins = [tuple(origin.values()) for origin in batch.column(ORIGIN).to_pylist()]
    rows = np.array([row for row, origin in enumerate(origins) if origin not in other_origins], np.int64)
    return rows, ["+".join(sorted(applied.dropped))] * len(rows)


def _describe_content(batch: pa.RecordBatch, row: int) -> dict[str, Any]:
    """Describe a record as text: a JSON line as it is, columns as a JSON object."""
    if RECORD in batch.schema.names:
        raw: bytes = batch.column(RECORD)[row].as_py()
        size = len(raw)
    else:
        names = [field.name for field in list_value_columns(batch.schema)]
        record = batch.slice(row, 1).select(names)
        size = record.nbytes
        raw = b"" if size > MAX_RECORD_BYTES else msgspec.json.encode(record.to_pylist()[0], enc_hook=repr)
    if size > MAX_RECORD_BYTES:
        return {"bytes": size, "record": None}
    try:
        return {"bytes": size, "record": raw.decode()}
    except UnicodeDecodeError:
        return {"bytes": size, "record": None, "record_base64": base64.b64encode(raw).decode()}


def join_dropped(
    root: Location, pieces: Iterable[tuple[StoredFile, Mapping[int, str]]], keep: str, run_id: str
) -> dict[str, StoredFile]:
    """Join the files of all tasks into one for each step and reason, by its name.

    Each file comes with the relative paths of its source's input files, by id.
    """
    joined = {}
    with ExitStack() as stack:
        files: dict[str, PendingFile] = {}
        for (step, reason), line in _merge_lines(root, pieces, keep):
            name = name_dropped_file(step, reason)
            if name not in files:
                pending = PendingFile(root / work_path(f"dropped-{name}-{run_id}.jsonl"), run_id)
                files[name] = stack.enter_context(pending)
            files[name].write(line)
        for name, file in files.items():
            file.commit()
            path = relative_name(file.path, root)
            joined[name] = StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)
    return joined


def _merge_lines(
    root: Location, pieces: Iterable[tuple[StoredFile, Mapping[int, str]]], keep: str
) -> Iterator[tuple[tuple[str, str], bytes]]:
    """Iterate over the final lines with their step and reason; samples of all tasks become samples of a source."""
    samples = LowestHashSamples()
    for file, paths in pieces:
        for line in io.BytesIO(file.read_intact(root)):
            entry = msgspec.json.decode(line)
            hashed = entry.pop(_HASH)
            if isinstance(entry["file"], int):
                entry["file"] = paths[entry["file"]]
            place = format_position(entry["source"], entry["file"], entry["position"])
            final = msgspec.json.encode({"place": place, **entry}) + b"\n"
            if keep == SAMPLES or entry["reason"] == CHANGED:
                samples.add((entry["step"], entry["reason"], entry["source"]), hashed, final)
            else:
                yield (entry["step"], entry["reason"]), final
    for (step, reason, _), line in samples.lines():
        yield (step, reason), line


def name_dropped_file(step: str, reason: str) -> str:
    """Name the file for a step and reason, without its suffix.

    >>> name_dropped_file("length", "too_short")
    'length-too_short'
    """
    return re.sub(r"[^\w.+-]", "_", f"{step}-{reason}")


class InputPosition(NamedTuple):
    """The position of a record in the input of a source."""

    source: str | None
    """None: any source that reads the file."""
    file: str
    """Its path, or its path below the source's root."""
    position: int
    """The byte, row or member, as in an origin."""

    def is_in_source(self, source: str) -> bool:
        return self.source is None or self.source == source


def format_position(source: str, file: str, position: int) -> str:
    """Write a position as one word.

    >>> format_position("web", "a.jsonl", 17)
    'web:a.jsonl@17'
    """
    return f"{source}:{file}@{position}"


def parse_positions(word: str, sources: list[str]) -> list[InputPosition]:
    """List what a word may mean, with and without the name of a source before the colon; empty: it is no position.

    >>> parse_positions("web:a.jsonl@17", ["web"])[0]
    InputPosition(source='web', file='a.jsonl', position=17)
    >>> parse_positions("s3://bucket/a.jsonl@17", ["web"])
    [InputPosition(source=None, file='s3://bucket/a.jsonl', position=17)]
    """
    match = re.fullmatch(r"(.+)@([0-9]{1,19})", word, re.DOTALL)
    if match is None:
        return []
    path, position = match[1], int(match[2])
    named = [
        InputPosition(name, path.removeprefix(f"{name}:"), position) for name in sources if path.startswith(f"{name}:")
    ]
    return [*named, InputPosition(None, path, position)]
