"""`toxicity`: how many of a document's words stand on a list of yours. Arrow's own code (RE2), about 20 MB/s a core."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import UsageError
from gristmill.core.records import TEXT, Applied
from gristmill.core.step import Finding, LocalStep
from gristmill.steps.put_columns import put_columns, with_fields
from gristmill.steps.quality.languages import tables_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WITHOUT_BORDERS = ("ja", "th", "zh")
_PACKAGE = "package:"
_BREAK = r"[^\p{L}\p{M}\p{N}]+"
_GAP = "  "
"""Two spaces between words, so that each of two neighbours can have one of them as its border."""
_REASON = "max_density"


class Toxicity(LocalStep, tag="toxicity", frozen=True, kw_only=True):
    """Tell which share of a document's words stands on a list, in the column `toxicity`.

    Lists are files of yours with a word or phrase a line, or of an installed package (`package:NAME/path/in/it.txt`).
    Case does not matter. A word is found between borders only, so that "class" holds no other; in Japanese, Thai and
    Chinese there are none. Nothing is dropped unless `max_density` says so: words on such lists are also used to talk
    about health, identity and law. What should not count can be allowed.

    >>> from gristmill.core.examples import documents
    >>> step = Toxicity(lists={"": ["darn"]}, max_density=0.5)
    >>> step.apply(documents(["Darn, darned thing", "darn darn darn!"]), seed=0).batch.column("toxicity").to_pylist()
    [0.3333333333333333]
    """

    needs: ClassVar[tuple[str, ...]] = (TEXT,)
    not_shaping: ClassVar[tuple[str, ...]] = ("words", "by_language")

    words: str | None = None
    """The list for documents of all languages that have none of their own."""
    by_language: dict[str, str] = msgspec.field(default_factory=dict)
    """Lists for languages: `{de: words/de.txt}`."""
    language_column: str = "language"
    allow: list[str] = msgspec.field(default_factory=list)
    """Words that do not count, whatever a list says."""
    max_density: float | None = None
    """Documents above it are dropped; null: none."""
    lists: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """What the files hold, by language (\"\": all): read when a run is planned, or given here."""

    def __post_init__(self) -> None:
        if self.max_density is not None and not 0 <= self.max_density <= 1:  # not a number is refused too
            raise UsageError(f"max_density must be from 0 to 1, not {self.max_density}")
        if not (self.words or self.by_language or self.lists):
            raise UsageError("toxicity needs a list of words", help="write words: list.txt, a word or phrase a line")

    def resolved(self, folder: str) -> Toxicity:
        files = {**({"": self.words} if self.words else {}), **self.by_language}
        lists = {language: _read_list(path, folder) for language, path in files.items()}
        return msgspec.structs.replace(self, lists=self.lists | lists)

    def columns_needed(self) -> tuple[str, ...]:
        by_language = self.by_language or any(self.lists)
        return (TEXT, self.language_column) if by_language else (TEXT,)

    def columns_made(self) -> tuple[str, ...]:
        return (self.name,)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return with_fields(schema, [pa.field(self.name, pa.float64())])

    def load(self) -> ToxicityKernel:
        return ToxicityKernel(self)

    def apply(self, batch: pa.RecordBatch, seed: int) -> Applied:
        return self.load().apply(batch, seed)

    def explain(self, record: pa.RecordBatch) -> list[Finding]:
        density = self.load().densities(record)[0].item()
        return [
            Finding(
                name=self.name,
                value=density,
                definition="Words and phrases of the list / words.",
                rule=None if self.max_density is None else _REASON,
                threshold=self.max_density,
                passed=self.max_density is None or density <= self.max_density,
            )
        ]


def _read_list(path: str, folder: str) -> list[str]:
    file = _in_package(path.removeprefix(_PACKAGE)) if path.startswith(_PACKAGE) else Path(folder, path)
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise UsageError(f"toxicity: cannot read the list {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"toxicity: the list {file} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from error
    words = [line.strip() for line in lines if line.strip()]
    if not words:
        raise UsageError(f"toxicity: the list {file} is empty", help="write a word or phrase a line")
    return words


def _in_package(path: str) -> Path:
    name, _, inside = path.partition("/")
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f'toxicity: there is no package "{name}"', help="install it, or name a file")
    return Path(next(iter(spec.submodule_search_locations)), inside)


class ToxicityKernel:
    """The lists as patterns."""

    def __init__(self, step: Toxicity) -> None:
        self._step = step
        self._languages = [language for language in step.lists if language]
        allowed = {_plain(word) for word in step.allow}
        by_table = ["", *self._languages]
        self._borders = [language.lower()[:2] not in _WITHOUT_BORDERS for language in by_table]
        self._patterns = [
            _pattern(
                [word for word in map(_plain, step.lists.get(language, [])) if word and word not in allowed],
                borders=borders,
            )
            for language, borders in zip(by_table, self._borders, strict=True)
        ]

    def begin_task(self) -> None:
        """Nothing is carried over."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> Applied:  # noqa: ARG002
        densities = self.densities(batch)
        limit = self._step.max_density
        codes = np.zeros(batch.num_rows, np.uint8) if limit is None else (densities > limit).astype(np.uint8)
        is_kept = pa.array(codes == 0)
        num_dropped = int(np.count_nonzero(codes))
        kept, bad = put_columns(
            self._step, batch.filter(is_kept), {self._step.name: pa.array(densities).filter(is_kept)}
        )
        dropped = {_REASON: num_dropped} if num_dropped else {}
        return Applied(kept, dropped, bad=bad, codes=codes, reasons=(_REASON,))

    def densities(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """Of each document."""
        table_of = tables_of(batch, self._step.language_column, self._languages)
        texts = _plain_texts(pc.fill_null(batch.column(TEXT), ""))
        densities = np.zeros(batch.num_rows)
        for table, (pattern, borders) in enumerate(zip(self._patterns, self._borders, strict=True)):
            rows = np.flatnonzero(table_of == table)
            if pattern is None or not len(rows):
                continue
            chosen = texts.take(pa.array(rows))
            found = _count(chosen, pattern)
            total = _count(chosen, r"[^ ]+" if borders else r"\p{L}")
            densities[rows] = np.divide(found, total, out=np.zeros(len(rows)), where=total > 0)
        return densities


def _plain_texts(texts: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(pc.utf8_lower(texts), _BREAK, _GAP)


def _plain(word: str) -> str:
    plain: str = _plain_texts(pa.array([word], pa.large_string()))[0].as_py()
    return plain.strip(" ")


def _pattern(words: list[str], *, borders: bool) -> str | None:
    """Longer ones first: of two that begin alike the longer is meant."""
    if not words:
        return None
    any_of = "|".join(re.escape(word) for word in sorted(set(words), key=lambda word: (-len(word), word)))
    return f"(?:^| )(?:{any_of})(?: |$)" if borders else f"(?:{any_of})"


def _count(texts: pa.Array, pattern: str) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = pc.count_substring_regex(texts, pattern).to_numpy(zero_copy_only=False).astype(np.int64)
    return counts
