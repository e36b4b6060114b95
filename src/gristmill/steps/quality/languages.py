"""Thresholds by language: which table of a step is for which record.

`by_language: {zh: {min_mean_word_length: 1}}` changes some keys for records whose language is Chinese. What a table
does not name stays as it is for all. A language is looked for as it stands, then without its region: `pt-BR`, `pt`.
In the plan the languages of the sample that have no table are named, where a step's own thresholds are for English.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import UsageError
from gristmill.core.names import find_nearest
from gristmill.core.numbers import MAX_COUNT
from gristmill.core.records import TEXT
from gristmill.text.buffers import text_buffers
from gristmill.text.language_codes import check_language_code
from gristmill.text.language_id import load_identifier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from gristmill.core.step import Step


ENGLISH = "en"
UNDETERMINED = "und"
_MAX_NAMED = 5
_PLAIN_LANGUAGE = 0.65
"""How likely a language must be to be named in the plan: as in FineWeb."""


def check_bounds(values: Mapping[str, Any], where: str = "") -> None:
    """Refuse what is not a number, and a least value above the greatest."""
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
    """The values of the step's `keys`: for all records first, then for each language in order, each checked."""
    fields = {field.name: field.type for field in msgspec.structs.fields(type(step))}
    common = {key: getattr(step, key) for key in keys}
    for key, value in common.items():  # Python checks no types
        _check_value(key, value, fields[key])
    check_bounds(common)
    found = [common]
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
        found.append(common | dict(changes))
        check_bounds(found[-1], where)
    return found


def assign_tables(batch: pa.RecordBatch, column: str, languages: Iterable[str]) -> NDArray[np.int64]:
    """The number of each record's table: 0, or 1 + the place of its language."""
    numbers = {_normalize_code(language): number for number, language in enumerate(languages, 1)}
    if not numbers:
        return np.zeros(batch.num_rows, np.int64)
    check_language_column(batch.schema, column)
    names = pc.dictionary_encode(batch.column(column).cast(pa.string()))
    found = [0] + [
        numbers.get(_normalize_code(name), numbers.get(_normalize_code(name).split("-")[0], 0))
        for name in names.dictionary.to_pylist()
    ]
    codes = pc.fill_null(names.indices, -1).to_numpy(zero_copy_only=False)
    chosen: NDArray[np.int64] = np.array(found, np.int64)[codes + 1]
    return chosen


def note_languages_without_table(
    batch: pa.RecordBatch, column: str, languages: Iterable[str], what: str, consequence: str
) -> list[str]:
    """A note that names the languages of sample records that are none of `languages`, with what follows from it."""
    known = set(map(_normalize_code, languages))
    times = Counter(
        name
        for name in _languages_of(batch, column)
        if not known & {_normalize_code(name), _normalize_code(name).split("-")[0]}
    )
    if not times:
        return []
    most_frequent = [name for name, _ in times.most_common(_MAX_NAMED)]
    others = f" and {len(times) - _MAX_NAMED} more" if len(times) > _MAX_NAMED else ""
    before = "" if column in batch.schema.names else "a language step before it and "
    who = f"{', '.join(most_frequent)}{others} ({times.total()} of {batch.num_rows} sample records)"
    return [f"{what} for {who}: {consequence}; add {before}by_language: {{{most_frequent[0]}: …}}"]


def _languages_of(batch: pa.RecordBatch, column: str) -> list[str]:
    """Of all records that have one: by the column or, where there is none, by the text, as far as it is plain."""
    if column in batch.schema.names and can_name_languages(batch.schema.field(column).type):
        names = batch.column(column).cast(pa.string()).to_pylist()
        return [name for name in names if name and _normalize_code(name) != UNDETERMINED]
    texts = batch.column(TEXT)
    if texts.type != pa.large_string() or not batch.num_rows:
        return []
    known = load_identifier()
    labels, scores = known.identify(*text_buffers(texts))
    return [known.labels[label] for label, score in zip(labels, scores, strict=True) if score >= _PLAIN_LANGUAGE]


def note_english_thresholds(step: Step, batch: pa.RecordBatch, column: str, languages: Iterable[str]) -> list[str]:
    """A note that names the languages of sample records that get the step's own thresholds, which are for English."""
    what, consequence = f"{step.name} has no table", "its thresholds are for English"
    return note_languages_without_table(batch, column, (*languages, ENGLISH), what, consequence)


def check_language_column(schema: pa.Schema, column: str) -> None:
    """Refuse a column that cannot name languages."""
    if column in schema.names and not can_name_languages(schema.field(column).type):
        raise UsageError(
            f'by_language: the column "{column}" holds {schema.field(column).type}, no names of languages',
            help="name the column of languages as language_column",
        )


def can_name_languages(kind: pa.DataType) -> bool:
    """Whether a column of this type can name languages. One of nothing but nulls names none."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or kind == pa.null()
    )


def _normalize_code(language: str) -> str:
    return language.lower().replace("_", "-")
