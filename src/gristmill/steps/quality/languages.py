"""Thresholds by language: which table of a step applies to which record.

`by_language: {zh: {min_mean_word_length: 1}}` changes some keys for records in Chinese. Keys that a table does not name
keep the value for all languages. A language is looked up as it is written, then without its region or script: `pt-BR`,
`pt`; codes of three letters find the tables of two: `deu`, `cmn_Hani`.
If a step's own thresholds are for English, the plan names the languages of the sample that have no table.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.checks import MAX_COUNT, find_nearest
from gristmill.core.errors import UsageError
from gristmill.core.records import TEXT
from gristmill.text.buffers import get_text_buffers
from gristmill.text.classifiers.language_model import load_identifier
from gristmill.text.language_codes import check_language_code, normalize_language_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from gristmill.core.step import Step

    T = TypeVar("T", bound=Step)


LanguageTables = Literal["none", "built_in"]
NO_TABLES = "none"
ENGLISH = "en"
UNDETERMINED = "und"
_MAX_NAMED = 5
_PLAIN_LANGUAGE = 0.65
"""How likely a language must be to be named in the plan; the threshold of FineWeb."""


def check_bounds(values: Mapping[str, Any], where: str = "") -> None:
    """Refuse NaN, and a `min_` above its `max_`."""
    for name, value in values.items():
        if isinstance(value, float) and math.isnan(value):
            raise UsageError(f"{name} is not a number{where}", help="write null to switch the rule off")
        partner = f"max_{name.removeprefix('min_')}"
        if (
            name.startswith("min_")
            and value is not None
            and values.get(partner) is not None
            and value > values[partner]
        ):
            raise UsageError(f"{name} ({value}) is above {partner} ({values[partner]}){where}: nothing would be kept")


def _check_value(where: str, value: Any, kind: Any) -> None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}") from None
    if isinstance(value, int) and abs(value) > MAX_COUNT:
        raise UsageError(
            f"{where}: a number of {len(f'{abs(value):x}')} hexadecimal digits is too large",
            help="write null to switch the rule off",
        )


def make_tables(step: Step, keys: Iterable[str], by_language: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the values of the step's `keys`: for all languages first, then for each language in order. Checks them."""
    fields = {field.name: field.type for field in msgspec.structs.fields(type(step))}
    common = {key: getattr(step, key) for key in keys}
    for key, value in common.items():  # a step made in Python has unchecked types
        _check_value(key, value, fields[key])
    check_bounds(common)
    tables = [common]
    _check_value("by_language", by_language, dict[str, dict[str, Any]])
    for language, changes in by_language.items():
        check_language_code(language, "by_language")
        where = f" for {language}"
        for key, value in changes.items():
            if key not in common:
                meant = find_nearest(key, common)
                hint = f'did you mean "{meant}"?' if meant else f"there are {', '.join(common)}"
                raise UsageError(f'by_language: {step.name} has no rule "{key}"{where}', help=hint)
            _check_value(f"by_language: {key}{where}", value, fields[key])
        tables.append(common | dict(changes))
        check_bounds(tables[-1], where)
    return tables


def add_built_in_tables(step: T) -> T:
    """Return the step with the built-in tables of languages in `by_language`, if its `language_tables` asks for them.

    What the step's own `by_language` says of a language comes first. A key that the recipe sets holds for all.
    """
    if getattr(step, "language_tables", NO_TABLES) == NO_TABLES:
        return step
    default = type(step)()
    by_language = {
        language: {
            key: value
            for key, value in tables.get(step.name, {}).items()
            if getattr(step, key) == getattr(default, key)
        }
        for language, tables in load_language_tables().items()
    }
    for language, changes in step.by_language.items():  # type: ignore[attr-defined]
        code = normalize_language_code(language)
        by_language[code] = by_language.get(code, {}) | changes
    return msgspec.structs.replace(step, by_language=by_language, language_tables=NO_TABLES)


@cache
def load_language_tables() -> dict[str, dict[str, dict[str, Any]]]:
    """Read the built-in values of keys by language and step.

    `benchmarks/studies/language_tables.py` derives the file from translations of the same pages into 54 languages.

    >>> load_language_tables()["de"]["gopher_quality"]["stop_words"][:3]
    ['sie', 'die', 'und']
    """
    content = Path(__file__).with_name("language_tables.json").read_bytes()
    return msgspec.json.decode(content, type=dict[str, dict[str, dict[str, Any]]])


def assign_tables(batch: pa.RecordBatch, column: str, languages: Iterable[str]) -> NDArray[np.int64]:
    """Return the number of each record's table: 0, or 1 + the index of its language."""
    numbers = {normalize_language_code(language): number for number, language in enumerate(languages, 1)}
    if not numbers:
        return np.zeros(batch.num_rows, np.int64)
    check_language_column(batch.schema, column)
    names = pc.dictionary_encode(batch.column(column).cast(pa.string()))
    tables = [0] + [
        numbers.get(normalize_language_code(name), numbers.get(normalize_language_code(name).split("-")[0], 0))
        for name in names.dictionary.to_pylist()
    ]
    codes = pc.fill_null(names.indices, -1).to_numpy(zero_copy_only=False)
    table_of: NDArray[np.int64] = np.array(tables, np.int64)[codes + 1]
    return table_of


def note_languages_without_table(
    batch: pa.RecordBatch, column: str, languages: Iterable[str], problem: str, consequence: str
) -> list[str]:
    """Make a note that names the languages of sample records that are not in `languages`, and the consequence."""
    codes_with_table = set(map(normalize_language_code, languages))
    times = Counter(
        name
        for name in _list_languages(batch, column)
        if not codes_with_table & {normalize_language_code(name), normalize_language_code(name).split("-")[0]}
    )
    if not times:
        return []
    most_frequent = [name for name, _ in times.most_common(_MAX_NAMED)]
    more_text = f" and {len(times) - _MAX_NAMED} more" if len(times) > _MAX_NAMED else ""
    before = "" if column in batch.schema.names else "a language step before it and "
    named = f"{', '.join(most_frequent)}{more_text} ({times.total()} of {batch.num_rows} sample records)"
    return [f"{problem} for {named}: {consequence}; add {before}by_language: {{{most_frequent[0]}: …}}"]


def _list_languages(batch: pa.RecordBatch, column: str) -> list[str]:
    """Return the languages of the records: from the column or, without one, from texts whose language is clear."""
    if column in batch.schema.names and can_name_languages(batch.schema.field(column).type):
        names = batch.column(column).cast(pa.string()).to_pylist()
        return [name for name in names if name and normalize_language_code(name) != UNDETERMINED]
    texts = batch.column(TEXT)
    if texts.type != pa.large_string() or not batch.num_rows:
        return []
    identifier = load_identifier()
    labels, scores = identifier.identify(*get_text_buffers(texts))
    return [identifier.labels[label] for label, score in zip(labels, scores, strict=True) if score >= _PLAIN_LANGUAGE]


def note_english_thresholds(step: Step, batch: pa.RecordBatch, column: str, languages: Iterable[str]) -> list[str]:
    """Make a note that names the languages of sample records that get the step's own thresholds, made for English."""
    problem, consequence = f"{step.name} has no table", "its thresholds are for English"
    if not step.by_language:  # type: ignore[attr-defined]
        consequence += " (language_tables: built_in has others)"
    return note_languages_without_table(batch, column, (*languages, ENGLISH), problem, consequence)


def check_language_column(schema: pa.Schema, column: str) -> None:
    """Refuse a column that cannot name languages."""
    if column in schema.names and not can_name_languages(schema.field(column).type):
        raise UsageError(
            f'by_language: the column "{column}" holds {schema.field(column).type}, not names of languages',
            help="set language_column to the column with the languages",
        )


def can_name_languages(kind: pa.DataType) -> bool:
    """Whether a column of this type can name languages. A column of nulls can: it names none."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or kind == pa.null()
    )
