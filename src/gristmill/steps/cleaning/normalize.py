"""`normalize`: one spelling for texts that look the same. Documents that are already normal stay as they are.

Arrow's own code finds the documents that may need an edit: of plain ASCII text over 1 GB/s a core.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow.compute as pc

from gristmill.core.errors import UsageError, install_command
from gristmill.core.records import TEXT
from gristmill.core.step import Finding, LocalStep
from gristmill.steps.edit_columns import edit_texts, find_matches

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.core.records import StepResult
    from gristmill.core.step import Step

_CONTROL = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff"
_CONTROL_IN_RE2 = r"[\x00-\x08\x0b-\x1f\x7f-\x{9f}\x{feff}]"
_CONTROLS = re.compile(f"[{_CONTROL}]")
_NEWLINES = re.compile(r"\r\n?")
_SPACES = re.compile(r"[^\S\n]+")
_LINE_ENDS = re.compile(r" *\n *")
_BLANK_LINES = re.compile(r"\n{3,}")


class Normalize(LocalStep, tag="normalize", frozen=True, kw_only=True):
    r"""Give texts one spelling: composed characters (NFC), plain newlines, no control characters.

    By default characters are composed (`unicode: NFC`; `NFKC` folds widths and ligatures too, null leaves them), `\r\n`
    and `\r` become `\n`, and control characters except tab and newline are removed, with byte order marks. The joiners
    U+200C and U+200D stay: Persian and emoji need them. On request: `entities` decodes HTML entities once, `whitespace`
    makes runs of spaces one space, trims lines and leaves at most one blank line, `fix_encoding` repairs text that was
    decoded wrongly, with ftfy (extra `web`). Counts the documents that each rule has changed, as `changed:controls`.

    With `keep_dropped`, `dropped/normalize-changed.jsonl` has 20 texts of each source before and after.

    >>> from gristmill.core.records import documents, texts
    >>> texts(Normalize().apply(documents(["\ufeffCafe\u0301\r\nbar\x00"]), seed=0).batch)
    ['Café\nbar']
    """

    needs: ClassVar[tuple[str, ...]] = (TEXT,)

    unicode: Literal["NFC", "NFKC"] | None = "NFC"
    """`NFC` composes characters; `NFKC` also folds widths and ligatures; null leaves them."""
    newlines: bool = True
    """Whether `\\r\\n` and `\\r` become `\\n`."""
    controls: bool = True
    """Whether to remove control characters and byte order marks."""
    entities: bool = False
    """Whether HTML entities are decoded, once."""
    whitespace: bool = False
    """Whether runs of spaces become one, lines are trimmed, and at most one blank line is left."""
    fix_encoding: bool = False
    """Whether text that was decoded wrongly is repaired with ftfy (extra `web`)."""

    @property
    def fingerprint_versions(self) -> object:
        versions: list[object] = [self.version, unicodedata.unidata_version]
        if self.fix_encoding:
            versions.append(_import_ftfy().__version__)
        return versions

    def resolve(self, folder: str) -> Step:  # noqa: ARG002
        if self.fix_encoding:
            _import_ftfy()
        return self

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return edit_texts(self, batch, self._find_candidates(batch.column(TEXT)), self._normalize, Counter())

    def explain(self, record: pa.RecordBatch) -> list[Finding]:
        counters: Counter[str] = Counter()
        self._normalize(record.column(TEXT)[0].as_py() or "", counters)
        return [Finding(name=name, value=count) for name, count in sorted(counters.items())]

    def _find_candidates(self, texts: pa.Array) -> NDArray[np.bool_]:
        is_candidate: NDArray[np.bool_] = np.zeros(len(texts), np.bool_)
        if self.unicode is not None or self.fix_encoding:
            is_candidate |= ~pc.fill_null(pc.string_is_ascii(texts), True).to_numpy(zero_copy_only=False)
        patterns = {
            _CONTROL_IN_RE2: self.controls or self.newlines,
            "&[#A-Za-z]": self.entities,
            r"[\t\f\v\x{a0}]|\s\s|^\s|\s$|\n ": self.whitespace,
        }
        for pattern, is_used in patterns.items():
            if is_used:
                is_candidate |= find_matches(texts, pattern)
        return is_candidate

    def _normalize(self, text: str, counters: Counter[str]) -> str:
        """Apply the rules in their order: what one of them makes, a later one may have to normalize."""
        rules = {
            "encoding": _import_ftfy().fix_encoding if self.fix_encoding else None,
            "entities": html.unescape if self.entities else None,
            "newlines": partial(_NEWLINES.sub, "\n") if self.newlines else None,
            "controls": partial(_CONTROLS.sub, "") if self.controls else None,
            "unicode": partial(unicodedata.normalize, self.unicode) if self.unicode is not None else None,
            "whitespace": _tidy_whitespace if self.whitespace else None,
        }
        for name, rule in rules.items():
            if rule is not None:
                new_text = rule(text)
                if new_text != text:
                    counters[f"changed:{name}"] += 1
                    text = new_text
        return text


def _tidy_whitespace(text: str) -> str:
    return _BLANK_LINES.sub("\n\n", _LINE_ENDS.sub("\n", _SPACES.sub(" ", text))).strip()


def _import_ftfy() -> Any:
    try:
        import ftfy  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("normalize: fix_encoding needs the package ftfy", help=install_command("web")) from error
    return ftfy
