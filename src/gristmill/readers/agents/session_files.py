"""Files of agent sessions, told by their content.

* A log: each line is an event. The file is one session and one cell, of up to 1 GiB; its sequences are its records,
  and their positions are those of their first events.
* Rows: each line is a session with its messages (`messages`, `trajectory`, `history`, or `prompt` and `completion`),
  which may be JSON in a string. Cells are those of JSON lines, and so are positions.
* A document: one JSON value. An object is one row (`.traj` of SWE-agent); an array holds the events of one session
  (OpenHands) or rows.

A record is a chat: `messages`, or `prompt` and `completion` if its first answers are in another record too; `tools`;
`session`, `part` (its number in the session) and `sequence` (`main`, `sidechain`, `compaction`, `branch`); of rows also
their other fields. Cost: the lines are decoded once and the records encoded, 100 to 300 MB/s a core.
"""

from __future__ import annotations

from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.core.json_values import decode_json, encode_json
from gristmill.core.records import QuarantinedRecord
from gristmill.readers.agents.events import Event, Log, OpenHandsLog, find_log
from gristmill.readers.agents.messages import ASSISTANT, USER, Message, count_name, join_texts, read_message
from gristmill.readers.agents.sequences import AgentSequence, build_sequences
from gristmill.readers.texts.csv_file import RowRecords
from gristmill.readers.texts.delimited_file import (
    BYTE_ORDER_MARK,
    CutRecords,
    DelimitedFile,
    RawCell,
    cut_records,
    read_head,
)
from gristmill.readers.texts.json_elements import ElementScanner
from gristmill.readers.texts.json_lines import LINE_END, JsonLinesReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from gristmill.core.records import SourceFile
    from gristmill.readers.cells import CellBatch, FilePart
    from gristmill.readers.read import Read

LOG, ROWS, DOCUMENT = "log", "rows", "document"
_SESSION_BYTES = 1 << 30
_HEAD_BYTES = 64 << 10
_FIRST_LINES = 50
_MESSAGE_KEYS = ("messages", "history", "trajectory", "conversations")
_SPACE = b" \t\r\n"
_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NOT_A_SESSION = "not_a_session"


def open_file(part: FilePart, schema: pa.Schema) -> SessionReader:
    """Open a file for reading."""
    return SessionReader(part.read, open_cells(part), schema, find_kind(part.file.path))


def open_cells(part: FilePart) -> DelimitedFile:
    """Open the plain bytes of the cells of a file."""
    cell_bytes = part.cell_bytes if find_kind(part.file.path) == ROWS else _SESSION_BYTES
    return DelimitedFile(part.file, LINE_END, part.read.max_record_bytes, part.piece, cell_bytes)


def sample_records(read: Read, file: SourceFile, most: int) -> list[bytes]:
    """Return the records in the first bytes of a file."""
    kind = find_kind(file.path)
    data = read_head(file.path, 0, b"" if kind == DOCUMENT else LINE_END, most)
    if kind != DOCUMENT:
        data = data[: data.rfind(LINE_END) + 1] or data
    mark = len(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else 0
    raw = RawCell(0, mark, memoryview(data[mark:]), is_terminated=True, num_left_out=0)
    return [record for record, _ in SessionParser(read, file.id, kind).parse(raw).records]


def find_kind(path: str) -> str:
    """Find what a file is by its first lines."""
    head = read_head(path, 0, LINE_END, _HEAD_BYTES).removeprefix(BYTE_ORDER_MARK).lstrip(_SPACE)
    if head.startswith(b"["):
        return DOCUMENT
    lines = head.split(LINE_END)[:_FIRST_LINES]
    for line in lines:
        value: Any = None
        with suppress(*_ERRORS):
            value = decode_json(line)
        if isinstance(value, dict):
            if find_log(value) is not None:
                return LOG
            if _find_messages(value) is not None:
                return ROWS
    # The first line of an object over several lines is a bracket and perhaps its first key.
    return DOCUMENT if len(lines) > 1 and lines[0].startswith(b"{") and not lines[0].rstrip().endswith(b"}") else ROWS


def _find_messages(row: dict[str, Any]) -> str | None:
    """Find the field of a row that holds its session."""
    if row.get("prompt") is not None and row.get("completion") is not None:
        return "prompt"
    return next((key for key in _MESSAGE_KEYS if isinstance(row.get(key), (list, str))), None)


class ParsedSessions:
    """The records of a cell as JSON, and what was left out of them."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, int]] = []
        """Each with its position in the file."""
        self.quarantined: list[QuarantinedRecord] = []
        self.counts: Counter[str] = Counter()
        self.num_blank = 0


class SessionParser:
    """Makes records of the lines of a cell."""

    def __init__(self, read: Read, file: int, kind: str) -> None:
        self._max_record_bytes = read.max_record_bytes
        self._file = file
        self._kind = kind

    def parse(self, raw: RawCell) -> ParsedSessions:
        parsed = ParsedSessions()
        if self._kind == DOCUMENT:
            self._parse_document(raw, parsed)
            return parsed
        cut = cut_records(raw, self._file, LINE_END, self._max_record_bytes)
        parsed.quarantined += cut.quarantined
        if self._kind == LOG:
            losses = sorted(record.position for record in cut.quarantined)
            self._add_log(self._decode(cut, parsed), losses, parsed)
            if not parsed.records and not parsed.quarantined and raw.rest is None:
                parsed.num_blank += 1
                parsed.counts["sessions_without_messages"] += 1
            return parsed
        for value, position, line in self._decode(cut, parsed):
            if value is not None:
                self._add_row(value, position, line, parsed)
        return parsed

    def _decode(
        self, cut: CutRecords, parsed: ParsedSessions
    ) -> Iterator[tuple[dict[str, Any] | None, int, memoryview]]:
        """Decode the lines of a cell; None for one that is quarantined."""
        for line, position in zip(cut, cut.positions.tolist(), strict=True):
            try:
                value = decode_json(line)  # type: ignore[arg-type]  # any buffer
                if isinstance(value, dict):
                    yield value, position, line
                    continue
                reason, message = "not_an_object", f"a line is {type(value).__name__}, not an object"
            except RecursionError:
                reason, message = "invalid_json", "objects or arrays nest too deeply"
            except _ERRORS as error:
                reason, message = "invalid_json", str(error)
            content = bytes(line)
            if content.strip(_SPACE):
                self._quarantine(parsed, position, reason, message, content)
                yield None, position, line
            elif self._kind == ROWS:
                parsed.num_blank += 1

    def _quarantine(self, parsed: ParsedSessions, position: int, reason: str, message: str, content: bytes) -> None:
        is_malformed = reason == "invalid_json"
        parsed.quarantined.append(
            QuarantinedRecord(
                self._file, position, 0, reason, message, content, len(content), is_malformed=is_malformed
            )
        )

    def _add_log(
        self,
        lines: Iterable[tuple[dict[str, Any] | None, int, memoryview]],
        losses: list[int],
        parsed: ParsedSessions,
    ) -> None:
        """Add the sequences of a log; `losses` are the positions of lines that were left out before."""
        log: Log | None = None
        events: list[Event] = []
        unknown: list[tuple[dict[str, Any], int, memoryview]] = []
        losses_before = deque(losses)
        for value, position, line in lines:
            if value is None:
                losses.append(position)
                if log is not None:
                    log.note_loss(position)
                continue
            if log is None:
                log_class = find_log(value)
                if log_class is None:
                    unknown.append((value, position, line))
                    continue
                log = log_class()
                if len(losses) > len(losses_before):  # lines before this one that are not JSON
                    log.note_loss(losses[-1])
            while losses_before and losses_before[0] < position:
                log.note_loss(losses_before.popleft())
            event = log.read(value, position, len(line))
            if event is not None:
                events.append(event)
        for value, position, line in unknown:
            if log is None:
                self._quarantine(parsed, position, _NOT_A_SESSION, _describe_keys(value), bytes(line))
            else:
                count_name(log.facts.counts, "unknown_event", value.get("type"))
        if log is not None:
            self._add_sequences(log, events, min(losses, default=None), {}, parsed)

    def _add_sequences(
        self, log: Log, events: list[Event], first_loss: int | None, others: dict[str, Any], parsed: ParsedSessions
    ) -> None:
        facts = log.facts
        built = build_sequences(events, facts, first_loss)
        for part, sequence in enumerate(built.sequences):
            record = {"session": facts.session, "part": part, "sequence": sequence.kind, "agent": log.name, **others}
            if facts.tools:
                record["tools"] = facts.tools
            parsed.records.append((encode_json(record | _make_chat(sequence)), sequence.position))
        for lost in built.lost:
            parsed.quarantined.append(
                QuarantinedRecord(self._file, lost.position, 0, lost.reason, lost.message, None, lost.num_bytes)
            )
        parsed.counts += facts.counts

    def _parse_document(self, raw: RawCell, parsed: ParsedSessions) -> None:
        """Add the session or the rows of a file that is one JSON value."""
        data = bytes(raw.data)
        num_bytes = len(data) + raw.num_left_out
        if raw.rest is not None or not data.strip(_SPACE):
            parsed.num_blank += raw.rest is None
            if raw.rest is not None and data:
                message = "the file is damaged before the end of its JSON"
                self._quarantine(parsed, raw.start, "truncated_stream", message, data)
            return
        start = raw.start + len(data) - len(data.lstrip(_SPACE))
        data = data.lstrip(_SPACE)
        if num_bytes > self._max_record_bytes:
            message = f"{num_bytes} bytes, more than max_record_bytes ({self._max_record_bytes})"
            parsed.quarantined.append(
                QuarantinedRecord(self._file, start, 0, "too_large", message, None, num_bytes, is_malformed=True)
            )
            return
        try:
            value = decode_json(data.decode())
        except _ERRORS as error:
            reason = "invalid_utf8" if isinstance(error, UnicodeDecodeError) else "invalid_json"
            self._quarantine(parsed, start, reason, str(error), data)
            return
        if isinstance(value, dict):
            self._add_row(value, start, memoryview(data), parsed)
            return
        elements = ElementScanner(is_open=False).split(data) if isinstance(value, list) else None
        if elements is None or not value:
            self._quarantine(parsed, start, "not_an_object", f"the file is {type(value).__name__}", data)
            return
        places = zip(elements.starts.tolist(), elements.stops.tolist(), strict=True)
        lines: list[tuple[dict[str, Any] | None, int, memoryview]] = []
        for element, (first, stop) in zip(value, places, strict=True):
            line = memoryview(data)[first:stop]
            if not isinstance(element, dict):
                self._quarantine(parsed, start + first, "not_an_object", "an element is not an object", bytes(line))
            lines.append((element if isinstance(element, dict) else None, start + first, line))
        if any(find_log(element) for element in value):
            self._add_log(lines, [], parsed)
            return
        for element, position, line in lines:
            if element is not None:
                self._add_row(element, position, line, parsed)

    def _add_row(self, row: dict[str, Any], position: int, line: memoryview, parsed: ParsedSessions) -> None:
        """Add the session of a row, with the row's other fields."""
        key = _find_messages(row)
        if key is None:
            self._quarantine(parsed, position, _NOT_A_SESSION, _describe_keys(row), bytes(line))
            return
        steps = _parse_messages(row[key])
        if key == "trajectory" and "history" in row:  # SWE-agent's steps, each with all messages before it
            key, steps = "history", _parse_messages(row["history"])
        skipped = {key, "trajectory", "replay_config"} if key == "history" else {key}
        others = {name: value for name, value in row.items() if name not in skipped}
        if key == "prompt":
            self._add_rollout(row, position, parsed)
        elif steps is None:
            self._quarantine(
                parsed, position, "invalid_messages", f"{key} is no list of messages, nor its JSON", bytes(line)
            )
        elif any(find_log(step) for step in steps):
            log = OpenHandsLog()
            events = [log.read(step, position, 0) for step in steps if isinstance(step, dict)]
            before = len(parsed.records)
            self._add_sequences(log, [event for event in events if event is not None], None, others, parsed)
            if len(parsed.records) == before:
                self._quarantine(parsed, position, _NOT_A_SESSION, f"{key} has no messages", bytes(line))
        else:
            messages = self._read_messages(steps, parsed)
            parsed.records.append((encode_json({**others, "messages": messages}), position))

    def _add_rollout(self, row: dict[str, Any], position: int, parsed: ParsedSessions) -> None:
        """Add a row of a prompt and a completion, which are texts or messages."""
        record = dict(row)
        for key in ("prompt", "completion"):
            steps = _parse_messages(row[key])
            if steps is not None:
                record[key] = self._read_messages(steps, parsed)
        if isinstance(record["prompt"], str) and isinstance(record["completion"], list):
            record["prompt"] = [{"role": USER, "content": record["prompt"]}]
        parsed.records.append((encode_json(record), position))

    def _read_messages(self, steps: list[Any], parsed: ParsedSessions) -> list[Message]:
        messages: list[Message] = []
        for step in steps:
            if isinstance(step, dict):
                if "from" in step and "role" not in step:  # ShareGPT's turns
                    step = {"role": _SPEAKERS.get(step["from"], step["from"]), "content": step.get("value")}  # noqa: PLW2901
                messages += read_message(step, parsed.counts)
            else:
                count_name(parsed.counts, "unknown_role", None)
        return messages


_SPEAKERS = {"gpt": ASSISTANT, "human": USER, "function_response": "tool", "observation": "tool"}


def _describe_keys(value: dict[str, Any]) -> str:
    return f"this is no session, nor an event of a log: its keys are {', '.join(map(str, list(value)[:8]))}"


def _parse_messages(value: Any) -> list[Any] | None:
    """Return a list of messages, which may be JSON in a string; None if it is none."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        try:
            value = decode_json(value)
        except _ERRORS:
            return None
    return value if isinstance(value, list) else None


def _make_chat(sequence: AgentSequence) -> dict[str, Any]:
    if sequence.repeats_answers:
        return {"prompt": sequence.context, "completion": sequence.messages}
    context, messages = sequence.context, sequence.messages
    if context and context[-1]["role"] == messages[0]["role"] == USER:
        joined = {**messages[0], "content": join_texts(context[-1]["content"], messages[0]["content"])}
        return {"messages": [*context[:-1], joined, *messages[1:]]}
    return {"messages": [*context, *messages]}


class SessionReader(JsonLinesReader):
    """A reader of a file of sessions, cell by cell."""

    def __init__(self, read: Read, cells: DelimitedFile, schema: pa.Schema, kind: str) -> None:
        super().__init__(read, cells, schema)
        self._parser = SessionParser(read, cells.file.id, kind)
        self._parsed = ParsedSessions()

    def parse(self, raw: RawCell) -> CellBatch:
        cell = super().parse(raw)
        cell.num_blank += self._parsed.num_blank
        cell.counters += self._parsed.counts
        return cell

    def _cut_cell(self, raw: RawCell) -> CutRecords:
        parsed = self._parsed = self._parser.parse(raw)
        lines = [line for line, _ in parsed.records]
        positions = np.array([position for _, position in parsed.records], np.int64)
        sizes = np.fromiter(map(len, lines), np.int64, len(lines))
        stops = np.cumsum(sizes + 1) - 1
        records = RawCell(raw.cell, 0, memoryview(b"\n".join(lines)), is_terminated=False, num_left_out=0)
        return RowRecords(records, stops - sizes, stops, parsed.quarantined, positions)

    def _account_for_rest(
        self, rest: QuarantinedRecord, batch: pa.RecordBatch, quarantined: list[QuarantinedRecord]
    ) -> tuple[pa.RecordBatch, int]:
        """Quarantine the rest of a damaged file, with its last line: a cut line may look like a whole one."""
        quarantined.append(rest)
        return batch, 0
