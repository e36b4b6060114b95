"""Benchmark records as items: what a model is asked, and what it should answer, under any of the usual keys.

Shapes that are recognised: `question` and `answer` (GSM8K), `question` with `choices` or `A` to `D` (MMLU, ARC), `ctx`
with `endings` (HellaSwag), `prompt` with `canonical_solution` (HumanEval), `problem` or `text` with `solution` or
`code` (MATH, MBPP), `question` with `context` and `answers` (SQuAD), `turns` or `messages` (MT-Bench), of which the
first is the question. Keys may be in upper case: `Question` (GPQA, TruthfulQA). The context is not searched for: it is
mostly a published text that training data may hold.

Benchmark files may have any format that a run reads. They are small, and read whole by the plan.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import CorruptStreamError, UsageError
from gristmill.readers.records import RECORD_ERRORS, BadRecord, open_records
from gristmill.storage.codecs import decompress, find_codec
from gristmill.storage.files import open_input

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.storage.paths import ListedFile


QUESTION, ANSWER = "question", "answer"

QUESTION_KEYS = (
    "question",
    "prompt",
    "problem",
    "query",
    "goal",
    "ctx",
    "sentence",
    "instruction",
    "input",
    "text",
    "turns",
    "messages",
)
CHOICE_KEYS = ("choices", "options", "endings")
ANSWER_KEYS = (
    "answer",
    "answers",
    "answerkey",
    "canonical_solution",
    "solution",
    "code",
    "output",
    "response",
    "target",
    "best answer",
    "correct answer",
)
ID_KEYS = ("task_id", "id", "question_id", "ind")
_LETTERS = ("A", "B", "C", "D", "E", "F", "G", "H", "I", "J")
_TEXT_KEYS = ("text", "stem", "label", "content")


@dataclass(frozen=True, slots=True)
class BenchmarkItem:
    """One item of a benchmark: its name, and the texts that are searched for, by part."""

    name: str
    """The benchmark's name and the item's id: `gsm8k/17`."""
    texts: dict[str, str]
    """The question, and the answer if there is one."""
    choices: str = ""
    """The choices in their order: they make a short question longer."""


@dataclass(frozen=True, slots=True)
class ItemKeys:
    """The keys of the records of one benchmark; None: the first of the known keys that a record has."""

    question: str | None = None
    answer: str | None = None
    choices: str | None = None
    id: str | None = None


def make_item(benchmark: str, number: int, record: Mapping[str, Any], keys: ItemKeys) -> BenchmarkItem:
    r"""Make the item of a record; `number` is its number in the file.

    >>> make_item("mmlu", 3, {"question": "Which?", "choices": ["this", "that"], "answer": 1}, ItemKeys())
    BenchmarkItem(name='mmlu/3', texts={'question': 'Which?', 'answer': 'that'}, choices='this\nthat')

    Raises:
        UsageError: The record has no question.
    """
    asked = _find_value(record, keys.question, QUESTION_KEYS)
    question = _find_question(asked)
    if not question.strip():
        names = ", ".join(record) or "no keys"
        wanted = f'"{keys.question}"' if keys.question else f"any of {', '.join(QUESTION_KEYS)}"
        raise UsageError(
            f"decontaminate: record {number} of benchmark {benchmark} has no question: there is no text under {wanted}",
            help=f"name its key, `question: …`; the record has {names}",
        )
    choices = _list_choices(record, keys.choices) or _list_choices(asked if isinstance(asked, dict) else {}, None)
    texts = {QUESTION: question}
    answer = _find_answer(_find_value(record, keys.answer, ANSWER_KEYS), choices)
    if answer and answer != question:
        texts[ANSWER] = answer
    item_id = _find_value(record, keys.id, ID_KEYS)
    is_plain = isinstance(item_id, (str, int)) and str(item_id).strip()
    return BenchmarkItem(f"{benchmark}/{item_id if is_plain else number}", texts, "\n".join(choices))


def _find_value(record: Mapping[str, Any], key: str | None, known: tuple[str, ...]) -> Any:
    if key is not None:
        return record.get(key)
    values = {name.lower(): value for name, value in record.items() if value not in (None, "", [])}
    return next((values[name] for name in known if name in values), None)


def _find_question(value: Any) -> str:
    """Find the text of the question, which may be wrapped, or the first turn of a chat."""
    if isinstance(value, list):
        value = [turn for turn in value if not isinstance(turn, dict) or turn.get("role") != "system"]
    return _find_text(value)


def _list_choices(record: Mapping[str, Any], key: str | None) -> list[str]:
    """List the choices: a list, ARC's `{text: […]}`, a mapping by letters, or columns called A, B, C."""
    value = _find_value(record, key, CHOICE_KEYS)
    if value is None:
        value = [record[letter] for letter in _LETTERS if isinstance(record.get(letter), str)]
    if isinstance(value, dict):
        value = value.get("text", list(value.values()))
    if not isinstance(value, list):
        return []
    return [choice for choice in map(_find_text, value) if choice]


def _find_text(value: Any) -> str:
    """Find the text in a choice or an answer, which may be wrapped."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return next((text for key in _TEXT_KEYS if (text := _find_text(value.get(key)))), "")
    return _find_text(value[0]) if isinstance(value, list) and value else ""


def _find_answer(value: Any, choices: list[str]) -> str:
    """Find the text of the answer, which may be the number or the letter of a choice."""
    if isinstance(value, bool):
        return ""
    number = value if isinstance(value, int) else None
    if isinstance(value, str) and choices and value in _LETTERS[: len(choices)]:
        number = _LETTERS.index(value)
    if number is not None:
        return choices[number] if 0 <= number < len(choices) else ""
    return _find_text(value)


MAX_BYTES = 1 << 30
"""The largest benchmark that is read. Larger files are no benchmark: someone has named a corpus."""


def read_benchmark_file(file: ListedFile) -> tuple[bytes, list[dict[str, Any]]]:
    """Read a file: its content as it is stored, and its records.

    Raises:
        UsageError: It is too large, damaged, or of a format that is not known.
    """
    try:
        with open_input(file.path) as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"decontaminate: cannot read {file.path}: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise UsageError(
            f"decontaminate: {file.path} is larger than {MAX_BYTES >> 20} MiB, which no benchmark is",
            help="to remove copies of whole documents, use deduplicate: {against: …}",
        )
    try:
        _check_size(content, file.path)
        opened = open_records(file.path)
        records = list(opened.rows())
    except (*RECORD_ERRORS, CorruptStreamError, UsageError) as error:
        raise UsageError(f"decontaminate: {file.path} cannot be read: {error}") from error
    for number, record in enumerate(records, 1):
        if isinstance(record, BadRecord) and record.text.strip():
            raise UsageError(f"decontaminate: {file.path} cannot be read: record {number}: {record.problem}")
    if opened.note:
        raise UsageError(f"decontaminate: {opened.note}")
    return content, [record for record in records if not isinstance(record, BadRecord)]


def _check_size(content: bytes, path: str) -> None:
    """Refuse a compressed file that would become larger than a benchmark can be."""
    codec = find_codec(path)
    num_bytes = 0
    for chunk in decompress(io.BytesIO(content), codec) if codec is not None else ():
        num_bytes += len(chunk)
        if num_bytes > MAX_BYTES:
            raise ValueError(f"it expands to more than {MAX_BYTES >> 20} MiB")
