"""What differs between two datasets: pairs of documents with the same origin and another content, and single ones.

The datasets are compared when the first of these rows is asked for, as `gristmill diff` does: only shards that differ
are read, and each of their documents takes 28 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gristmill.report.differences import match_documents
from gristmill.report.markup import show_record
from gristmill.report.view.dataset_rows import name_origin
from gristmill.report.view.describe import find_spans, mark_difference
from gristmill.report.view.rows import RowRange, Rows
from gristmill.report.view.search import make_record_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gristmill.report.documents import LaneDocuments
    from gristmill.report.view.dataset_rows import DatasetRows
    from gristmill.report.view.describe import Piece
    from gristmill.report.view.rows import RowBlock


_MAX_TOKENS = 16_384
"""Tokens of a document that are shown, around the first one that differs."""
_MAX_PIECE = 20_000
"""Characters of an equal or a differing piece that are shown; of a longer one, both ends."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A document of A and the one of B with the same origin, by their numbers in the lane; None: there is none."""

    lane_a: LaneDocuments
    lane_b: LaneDocuments
    a: int | None
    b: int | None


class DifferenceRows(Rows):
    """The documents in which two datasets differ, side by side."""

    kind = "differences"
    is_slow = True

    def __init__(self, a: DatasetRows, b: DatasetRows) -> None:
        self._sides = a, b
        self.names = (a.title, b.title) if a.title != b.title else (str(a.dataset.folder), str(b.dataset.folder))
        self.title = f"{self.names[0]} | {self.names[1]}"

    @cached_property
    def _found(self) -> tuple[list[_Pair], list[RowRange]]:
        a, b = (side.dataset for side in self._sides)
        pairs: list[_Pair] = []
        ranges: list[RowRange] = []
        for lane, match in match_documents(a, b):
            for reason, indices in (
                ("changed", match.changed),
                (f"only in {self.names[0]}", [(index, None) for index in match.only_a]),
                (f"only in {self.names[1]}", [(None, index) for index in match.only_b]),
            ):
                ranges.append(
                    RowRange(split=lane.split, source=lane.source, reason=reason, start=len(pairs), rows=len(indices))
                )
                pairs += [_Pair(match.documents_a, match.documents_b, *pair) for pair in indices]
        return pairs, [part for part in ranges if part.rows]

    @property
    def ranges(self) -> list[RowRange]:
        return self._found[1]

    @property
    def note(self) -> str:  # type: ignore[override]
        of_a, of_b = (side.dataset.manifest for side in self._sides)
        if of_a.dataset_hash == of_b.dataset_hash:
            return "The two datasets hold the same bytes in the same order."
        if of_a.kind != of_b.kind:
            return (
                f"{self.names[0]} holds {of_a.kind} and {self.names[1]} {of_b.kind}: their documents are not compared."
            )
        return "" if self.ranges else "The same documents, in another order or in other rows."

    def describe_row(self, number: int) -> dict[str, Any]:
        pair = self._found[0][number]
        place = self._name_place(0, pair.lane_a, pair.a) or self._name_place(1, pair.lane_b, pair.b)
        part = next(part for part in self.ranges if part.start <= number < part.start + part.rows)
        described = {"number": number, "origin": place, "reason": part.reason}
        sides = self._compare(pair)
        for side in sides:
            if "pieces" in side:
                side["pieces"] = list(map(_cut_piece, side["pieces"]))
        return described | {"sides": sides}

    def _compare(self, pair: _Pair) -> list[dict[str, Any]]:
        return self._compare_tokens(pair) if self._sides[0].has_tokens else self._compare_records(pair)

    def _name_place(self, side: int, lane: LaneDocuments, index: int | None) -> str:
        if index is None:
            return ""
        origin = lane.dataset.origins(int(lane.rows[index]))[int(lane.numbers[index])]
        return name_origin(self._sides[side].origins.names, origin)

    def _compare_records(self, pair: _Pair) -> list[dict[str, Any]]:
        records = [
            None if index is None else lane.dataset[int(lane.rows[index])]
            for lane, index in ((pair.lane_a, pair.a), (pair.lane_b, pair.b))
        ]
        texts = [_show_record(record) for record in records]
        marked = mark_difference(*texts) if None not in (pair.a, pair.b) else tuple([(text, 0)] for text in texts)
        sides = zip((pair.lane_a, pair.lane_b), (pair.a, pair.b), self.names, marked, strict=True)
        return [{**_name_side(lane, index, name), "pieces": pieces} for lane, index, name, pieces in sides]

    def _compare_tokens(self, pair: _Pair) -> list[dict[str, Any]]:
        sides = ((pair.lane_a, pair.a), (pair.lane_b, pair.b))
        tokens = [[] if index is None else _read_tokens(lane, index) for lane, index in sides]
        spans = find_spans(*tokens) if None not in (pair.a, pair.b) else [[(0, len(side), False)] for side in tokens]
        shared = min(own_spans[0][1] for own_spans in spans)
        first = max(0, shared - _MAX_TOKENS // 2) if None not in (pair.a, pair.b) else 0
        described = []
        for rows, (lane, index), name, own, own_spans in zip(
            self._sides, sides, self.names, tokens, spans, strict=True
        ):
            differs = [int(flag) for start, end, flag in own_spans for _ in range(start, end)][first:][:_MAX_TOKENS]
            window = own[first : first + _MAX_TOKENS]
            shown = rows.token_texts.describe([token for token, _ in window], [flag for _, flag in window])
            marked = [(*token, flag) for token, flag in zip(shown, differs, strict=True)]
            described.append({**_name_side(lane, index, name), "tokens": marked})
        return described

    def read_blocks(self, start: int, end: int) -> Iterator[RowBlock]:
        def show(number: int) -> str:
            return "\n".join(
                "".join(piece[0] if "pieces" in side else piece[1] for piece in side.get("pieces") or side["tokens"])
                for side in self._compare(self._found[0][number])
            )

        return make_record_blocks(({"text": show(number)} for number in range(start, end)), start)


def _name_side(lane: LaneDocuments, index: int | None, name: str) -> dict[str, Any]:
    return {"title": name, "row": None if index is None else int(lane.rows[index])}


def _show_record(record: Mapping[str, Any] | None) -> str:
    """Show all columns of a record, the text first."""
    if record is None:
        return ""
    others = {name: value for name, value in record.items() if name != "text" and value is not None}
    text = record.get("text")
    parts = [text] if isinstance(text, str) else []
    return "\n\n".join([*parts, *([show_record(others)] if others else [])])


def _cut_piece(piece: Piece) -> Piece:
    """Cut the middle out of a long piece: what differs is at its ends."""
    text, differs = piece
    if len(text) <= _MAX_PIECE:
        return piece
    half = _MAX_PIECE // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters are not shown …\n{text[-half:]}", differs


def _read_tokens(lane: LaneDocuments, index: int) -> list[tuple[int, bool]]:
    ids, trained = lane.tokens(index)
    return list(zip(ids.tolist(), trained.tolist(), strict=True))
