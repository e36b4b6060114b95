"""Quarantined or dropped records of a dataset: files of JSON lines, of which the first thousands are shown."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.core.checks import check_choice
from gristmill.core.errors import GristmillError
from gristmill.report.markup import restore_pictures, show_record
from gristmill.report.view.describe import MARKED, cut_text, describe_record, list_pictures, mark_difference
from gristmill.report.view.rows import RowRange, Rows
from gristmill.report.view.search import make_record_blocks
from gristmill.shards.dataset import open_file
from gristmill.shards.formats.shard_format import open_shard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.report.view.rows import RowBlock
    from gristmill.shards.dataset import Dataset
    from gristmill.shards.stored_files import StoredFile


_MAX_LINES = 5000
_HIDDEN = {
    "place",
    "source",
    "file",
    "position",
    "part",
    "step",
    "reason",
    "record",
    "before",
    "after",
    "passage",
    "item",
    "item_text",
}


class LineRows(Rows):
    """Quarantined or dropped records, in the order of their sources and reasons."""

    def __init__(self, title: str, dataset: Dataset, files: list[StoredFile]) -> None:
        self.title = title
        lines: list[dict[str, Any]] = []
        notes = []
        for file in files:
            try:
                lines.extend(_read_lines(dataset, file))
            except GristmillError as error:  # what was read before the damage is shown, and so are all other files
                notes.append(f"Not all is shown: {error.message}.")
        self._lines = sorted(lines, key=_name_range)
        if len(lines) >= _MAX_LINES:
            notes.append(f"Of each file, the first {_MAX_LINES:,} records are shown.")
        self.note = " ".join(notes)
        names = [_name_range(line) for line in self._lines]
        starts = [number for number, name in enumerate(names) if not number or name != names[number - 1]]
        self._ranges = [
            RowRange(source=names[start][0], reason=names[start][1], start=start, rows=end - start)
            for start, end in pairwise([*starts, len(names)])
        ]
        self._failed = [_list_failed(line) for line in self._lines]

    @property
    def ranges(self) -> list[RowRange]:
        return self._ranges

    @property
    def score_names(self) -> list[str]:
        return list(dict.fromkeys(name for scores in self._failed for name in scores))

    def read_scores(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        check_choice("score", name, self.score_names)
        return np.arange(len(self._lines)), np.array([scores.get(name, np.nan) for scores in self._failed])

    def describe_row(self, number: int) -> dict[str, Any]:
        line = self._lines[number]
        source, reason = _name_range(line)
        described = {
            "number": number,
            "origin": str(line.get("place") or f"{source}:{line.get('file', '')}@{line.get('position', '')}"),
            "source": source,
            "reason": reason,
            "why": _explain(line),
            **describe_record({name: value for name, value in line.items() if name not in _HIDDEN}),
        }
        if "passage" in line:  # an item of a benchmark, and where a document holds it
            around = [(show_record(line.get("before", "")), 0), (show_record(line["passage"]), MARKED)]
            around.append((show_record(line.get("after", "")), 0))
            item = {"title": f"item {line.get('item', '')}", "pieces": [(show_record(line.get("item_text", "")), 0)]}
            return described | {"sides": [item, {"title": "document", "pieces": around}]}
        if "before" in line:
            before, after = mark_difference(show_record(line["before"]), show_record(line.get("after", "")))
            return described | {"sides": [{"title": "before", "pieces": before}, {"title": "after", "pieces": after}]}
        record = _decode_record(line.get("record"))
        if isinstance(record, dict):
            own = describe_record(record)
            columns = {**own.pop("columns"), **described["columns"]}
            return described | own | {"columns": columns}
        return described | ({} if record is None else {"text": cut_text(show_record(record))})

    def read_pictures(self, number: int) -> list[bytes]:
        return [content for _, content in list_pictures(_decode_record(self._lines[number].get("record")))]

    def read_blocks(self, start: int, end: int) -> Iterator[RowBlock]:
        return make_record_blocks(({"text": _show_line(line)} for line in self._lines[start:end]), start)


def _read_lines(dataset: Dataset, file: StoredFile) -> Iterator[dict[str, Any]]:
    with open_file(dataset, file) as path:
        yield from islice(open_shard(path, "jsonl").rows(), _MAX_LINES)


def _name_range(line: dict[str, Any]) -> tuple[str, str]:
    return str(line.get("source", "")), f"{line.get('step', '')}: {line.get('reason', '')}"


def _list_failed(line: dict[str, Any]) -> dict[str, float]:
    """List the scores that a record failed by. The lines may have been written by anyone."""
    failed = line.get("failed")
    values = failed.items() if isinstance(failed, dict) else ()
    return {f"{line.get('step', '')}.{name}": float(value) for name, value in values if type(value) in (int, float)}


def _explain(line: dict[str, Any]) -> str:
    """Explain why a record is here: the values next to their limits, or the error."""
    failed, limits = line.get("failed"), line.get("thresholds")
    if not isinstance(failed, dict):
        return str(line.get("error") or "").partition("\n")[0]
    limits = limits if isinstance(limits, dict) else {}
    signs = {"min": "<", "max": ">"}
    return ", ".join(
        f"{_show_value(value)} {signs.get(str(name)[:3], 'against')} {_show_value(limits[name])}"
        if name in limits
        else f"{name} {_show_value(value)}"
        for name, value in failed.items()
    )


def _show_value(value: object) -> str:
    return f"{value:,.6g}" if type(value) in (int, float) else show_record(value)


def _decode_record(record: object) -> object:
    if isinstance(record, str) and record.startswith("{"):
        try:
            return restore_pictures(msgspec.json.decode(record))
        except (msgspec.DecodeError, RecursionError):
            pass
    return record


def _show_line(line: dict[str, Any]) -> str:
    """Show what a search of a record sees: its text, its error and what it was changed to."""
    values = (_decode_record(line.get("record")), *(line.get(name) for name in ("error", "before", "passage", "after")))
    return "\n".join(show_record(value) for value in values if value is not None)
