"""Rows as the viewer shows them: any row by its number, and a search from any row on.

A dataset is opened by its manifest alone; a shard is opened when one of its rows is asked for. So the first page of
10^8 rows costs what the first page of ten does.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.report.collect import show_record
from gristmill.shards.formats.shard_format import open_shard
from gristmill.shards.token_rows import LENGTHS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gristmill.shards.dataset import Dataset
    from gristmill.shards.formats.base import ShardReader

_SUFFIXES = {".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".arrow": "arrow", ".tar": "webdataset"}
_SNIPPET = 60


class RowRange(msgspec.Struct, frozen=True):
    """Consecutive rows with one name: a source of a split, or a file."""

    name: str
    start: int
    rows: int


class Rows(Protocol):
    """Something with numbered rows that can be looked at."""

    title: str
    kind: str
    lanes: list[RowRange]

    def describe_row(self, number: int) -> dict[str, Any]:
        """Describe a row as plain data for the page."""

    def read_text(self, number: int) -> str:
        """Return the text of a row, for a search."""


def count_rows(rows: Rows) -> int:
    """Count the rows of a collection."""
    return sum(lane.rows for lane in rows.lanes)


class DatasetRows:
    """The rows of a dataset, in the order of its manifest."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.title = dataset.folder.name
        self.kind = dataset.manifest.kind
        self.lanes = _list_lanes(dataset)
        self._has_tokenizer = dataset.manifest.tokenizer is not None and bool(dataset.manifest.tokenizer.files)
        self._names = {file.path: file.relative for file in dataset.manifest.files.values()}

    def describe_row(self, number: int) -> dict[str, Any]:
        record = self.dataset[number]
        origins = [
            f"{origin.source}:{self._names.get(origin.path, origin.path)}@{origin.position}"
            for origin in self.dataset.origins(number)
        ]
        if self.dataset.manifest.holds_rows:
            return {"number": number, "documents": self._describe_documents(record, origins)}
        return {"number": number, "origin": origins[0] if origins else "", **describe_record(record)}

    def _describe_documents(self, record: Mapping[str, Any], origins: list[str]) -> list[dict[str, Any]]:
        """Describe the documents of a row: for each token its id, its text and whether it is trained."""
        ends = np.cumsum([0, *record[LENGTHS].tolist()]).tolist()
        documents = []
        for origin, (start, end) in zip(origins, pairwise(ends), strict=True):
            ids = record[INPUT_IDS][start:end].tolist()
            trained = record[LOSS_MASK][start:end].tolist() if LOSS_MASK in record else [True] * len(ids)
            texts = [self._decode([token]) for token in ids]
            documents.append({"origin": origin, "tokens": list(zip(ids, texts, map(int, trained), strict=True))})
        return documents

    def _decode(self, ids: list[int]) -> str:
        return self.dataset.decode_ids(np.array(ids)) if self._has_tokenizer else " ".join(map(str, ids))

    def read_text(self, number: int) -> str:
        record = self.dataset[number]
        if not self.dataset.manifest.holds_rows:
            return show_record(record)
        return self._decode(record[INPUT_IDS][: int(record[LENGTHS].sum())].tolist())


def _list_lanes(dataset: Dataset) -> list[RowRange]:
    lanes: list[RowRange] = []
    start = 0
    for split, sources in dataset.manifest.splits.items():
        for source, shards in sources.items():
            num_rows = sum(shard.rows for shard in shards)
            lanes.append(RowRange(f"{split}/{source}", start, num_rows))
            start += num_rows
    return lanes


class LineRows:
    """Quarantined or dropped records of a dataset: files of JSON lines, of which the first thousands are shown."""

    max_lines = 5000

    def __init__(self, title: str, files: Mapping[str, Path]) -> None:
        self.title = title
        self.kind = "records"
        self._records: list[dict[str, Any]] = []
        self.lanes = []
        for name, path in files.items():
            start = len(self._records)
            for record in open_shard(path, "jsonl").rows():
                self._records.append(record)
                if len(self._records) - start == self.max_lines:
                    break
            self.lanes.append(RowRange(name, start, len(self._records) - start))

    def describe_row(self, number: int) -> dict[str, Any]:
        record = self._records[number]
        reason = f"{record.get('step', '')}: {record.get('reason', '')}"
        return {"number": number, "origin": str(record.get("place", "")), "reason": reason, **describe_record(record)}

    def read_text(self, number: int) -> str:
        return show_record(self._records[number])


class FileRows:
    """The records of raw files, before any recipe exists."""

    def __init__(self, paths: list[Path]) -> None:
        self.title = ", ".join(path.name for path in paths[:3]) + (" …" if len(paths) > 3 else "")
        self.kind = "records"
        self.lanes = []
        self._readers: list[ShardReader] = []
        start = 0
        for path in paths:
            file_format = next((name for suffix, name in _SUFFIXES.items() if suffix in path.suffixes), None)
            if file_format is None:
                raise UsageError(
                    f"{path} has no format that can be shown", help=f"known are {', '.join(_SUFFIXES)}, also compressed"
                )
            reader = open_shard(path, file_format)
            num_rows = reader.count_rows()
            self._readers.append(reader)
            self.lanes.append(RowRange(path.name, start, num_rows))
            start += num_rows

    def _read(self, number: int) -> dict[str, Any]:
        for lane, reader in zip(self.lanes, self._readers, strict=True):
            if lane.start <= number < lane.start + lane.rows:
                return reader.row(number - lane.start)
        raise IndexError(f"there is no record {number}")

    def describe_row(self, number: int) -> dict[str, Any]:
        return {"number": number, "origin": "", **describe_record(self._read(number))}

    def read_text(self, number: int) -> str:
        return show_record(self._read(number))


def describe_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a record: its turns if it is a chat, its text if it has one, and its other columns."""
    described: dict[str, Any] = {}
    turns = record.get("messages") or record.get("conversations")
    if isinstance(turns, list) and turns and all(isinstance(turn, dict) for turn in turns):
        described["turns"] = [
            {
                "role": str(turn.get("role") or turn.get("from") or ""),
                "text": show_record(turn.get("content", turn.get("value", ""))),
            }
            for turn in turns
        ]
    elif isinstance(record.get("text"), str):
        described["text"] = record["text"]
    shown = {"messages", "conversations"} if "turns" in described else {"text"} if "text" in described else set()
    described["columns"] = {
        str(name): show_record(value) for name, value in record.items() if name not in shown and value is not None
    }
    return described


def search_rows(rows: Rows, query: str, *, is_regex: bool, start: int, end: int) -> Iterator[dict[str, Any] | int]:
    """Yield the hits from a row on, each with the text around it; a number in between says how far the search is."""
    try:
        pattern = re.compile(query if is_regex else re.escape(query), re.IGNORECASE)
    except re.error as error:
        raise UsageError(f"{query!r} is no regular expression: {error}") from None
    for number in range(start, end):
        text = rows.read_text(number)
        match = pattern.search(text)
        if match is not None:
            before = max(0, match.start() - _SNIPPET)
            yield {
                "number": number,
                "before": text[before : match.start()],
                "match": match[0][:200],
                "after": text[match.end() : match.end() + _SNIPPET],
            }
        elif (number - start) % 500 == 499:
            yield number
