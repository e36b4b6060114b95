"""`pii`: replace what identifies people or opens doors: e-mail and IP addresses, phone numbers, keys.

Arrow's own code finds the documents with a candidate, at about 300 MB/s a core; only these are searched by Python's
regular expressions. No pattern takes more than linear time in a text without an end.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np

from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.core.records import TEXT
from gristmill.core.step import Finding, LocalStep
from gristmill.steps.cleaning.edited_texts import edit_texts, find_matches

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.core.records import StepResult


_PUBLIC_IPV6 = ipaddress.ip_network("2000::/3")
"""No other addresses of version 6 are given to hosts: `A::f` is a name in C++ and Rust."""


def _is_public_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.is_global and not address.is_multicast and (address.version == 4 or address in _PUBLIC_IPV6)


@dataclass(frozen=True, slots=True)
class _Pattern:
    """The patterns of one kind: one for RE2 that finds the documents to look at, and the exact one."""

    candidate: str
    exact: re.Pattern[str]
    is_valid: Callable[[str], bool] | None = None


# Letters of Latin, Greek and Cyrillic beyond ASCII, and accents that follow theirs. Where words have no spaces between
# them, a name could not be told from the sentence before it.
_LETTERS = "À-ÖØ-öø-ʯ\u0300-\u036fͰ-ԯ"
_LABEL = rf"[A-Za-z0-9{_LETTERS}](?:[A-Za-z0-9{_LETTERS}-]{{0,61}}[A-Za-z0-9{_LETTERS}])?"
_NAME = rf"A-Za-z0-9_+%'{_LETTERS}"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_PATTERNS: dict[str, _Pattern] = {
    "email": _Pattern(
        rf"[{_NAME}.-]@[A-Za-z0-9{_LETTERS}]",
        re.compile(
            rf"(?<![{_NAME}-])[{_NAME}-][{_NAME}.-]{{0,63}}@(?:{_LABEL}\.){{1,8}}(?:[A-Za-z]{{2,63}}(?![A-Za-z0-9-])"
            rf"|[{_LETTERS}]{{2,63}}(?![A-Za-z0-9{_LETTERS}-]))",
            re.ASCII,
        ),
    ),
    "ip": _Pattern(
        r"\d\.\d{1,3}\.\d{1,3}\.\d|[0-9A-Fa-f]:[0-9A-Fa-f:]*:[0-9A-Fa-f]",
        re.compile(
            rf"(?<![\w])(?<!\d\.)(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\d)(?!\w)"
            r"|(?<![\w:.])[0-9A-Fa-f]{1,4}:(?:[0-9A-Fa-f]{0,4}:){1,6}[0-9A-Fa-f]{1,4}(?![\w:])",
            re.ASCII,
        ),
        _is_public_address,
    ),
    "phone": _Pattern(
        r"\+\d|\d{3}\)?[ .-]\d{3}[ .-]\d{4}",
        re.compile(
            r"(?<![\w.+-])(?:\+\d{1,3}(?:[ .-]?\(\d{1,4}\))?(?:[ .-]?\d){6,12}"
            r"|(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4})"
            r"(?![\w-])",
            re.ASCII,
        ),
    ),
    "key": _Pattern(
        r"AKIA|ASIA|gh[pousr]_|github_pat_|sk-|sk_live_|sk_test_|rk_live_|AIza|xox[baprs]-|hf_|eyJ|PRIVATE KEY-----",
        re.compile(
            r"(?<![A-Za-z0-9_-])(?:"
            r"A[KS]IA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255}"
            r"|sk-[A-Za-z0-9_-]{20,255}|[sr]k_(?:live|test)_[A-Za-z0-9]{16,255}|AIza[A-Za-z0-9_-]{35}"
            r"|xox[baprs]-[A-Za-z0-9-]{10,255}|hf_[A-Za-z0-9]{30,255}"
            r"|eyJ[A-Za-z0-9_-]{8,2000}\.eyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{8,2000}"
            r")(?![A-Za-z0-9_-])"
            r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[A-Za-z0-9+/=\s\\:,-]{1,10000}?"
            r"-----END [A-Z ]{0,40}PRIVATE KEY-----"
        ),
    ),
}
DEFAULT_PLACEHOLDERS = {"email": "<EMAIL>", "ip": "<IP>", "phone": "<PHONE>", "key": "<KEY>"}


class Pii(LocalStep, tag="pii", frozen=True, kw_only=True):
    """Replace e-mail addresses, public IP addresses, phone numbers and keys by fixed placeholders.

    By default e-mail and public IP addresses (`kinds: [email, ip]`); `phone` (with a country code, or as 555-123-4567)
    and `key` (private keys, tokens of well-known services) on request. Private, local and documentation addresses stay,
    and so do numbers of versions with five parts. Applied twice, it changes nothing more. Counts what it replaced, by
    kind, as `replaced:email`.

    >>> from gristmill.core.sample_batches import documents, texts
    >>> texts(Pii().apply(documents(["Ask ann@example.com at 8.8.8.8, not at 127.0.0.1."]), seed=0).batch)
    ['Ask <EMAIL> at <IP>, not at 127.0.0.1.']
    """

    needs: ClassVar[tuple[str, ...]] = (TEXT,)
    version: ClassVar[int] = 4

    kinds: list[str] = msgspec.field(default_factory=lambda: ["email", "ip"])
    placeholders: dict[str, str] = msgspec.field(default_factory=dict)
    """Other placeholders, by kind: `{email: "[mail]"}`."""

    def __post_init__(self) -> None:
        for kind in (*self.kinds, *self.placeholders):
            check_choice("kinds", kind, tuple(_PATTERNS))
        for kind, placeholder in self._placeholders.items():
            if any(pattern.exact.search(placeholder) for pattern in _PATTERNS.values()):
                raise UsageError(
                    f'placeholders: "{placeholder}" for {kind} would itself be replaced',
                    help="use a word in brackets, such as <EMAIL>",
                )

    @property
    def _placeholders(self) -> dict[str, str]:
        return DEFAULT_PLACEHOLDERS | self.placeholders

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return edit_texts(self, batch, self._find_candidates(batch.column(TEXT)), self._replace, Counter())

    def explain(self, record: pa.RecordBatch) -> list[Finding]:
        counters: Counter[str] = Counter()
        self._replace(record.column(TEXT)[0].as_py() or "", counters)
        return [Finding(name=name, value=count) for name, count in sorted(counters.items())]

    def _find_candidates(self, texts: pa.Array) -> NDArray[np.bool_]:
        is_candidate = np.zeros(len(texts), np.bool_)
        for kind in self.kinds:
            is_candidate |= find_matches(texts, _PATTERNS[kind].candidate)
        return is_candidate

    def _replace(self, text: str, counters: Counter[str]) -> str:
        # Keys first: a token may hold what looks like a phone number. Until nothing changes: an address glued to
        # another one shows only when that one is replaced.
        before = ""
        while text != before:
            before = text
            for kind in sorted(self.kinds, key=("key", "email", "ip", "phone").index):
                text = self._replace_kind(kind, text, counters)
        return text

    def _replace_kind(self, kind: str, text: str, counters: Counter[str]) -> str:
        pattern, placeholder = _PATTERNS[kind], self._placeholders[kind]

        def substitute(match: re.Match[str]) -> str:
            if pattern.is_valid is not None and not pattern.is_valid(match.group()):
                return match.group()
            counters[f"replaced:{kind}"] += 1
            return placeholder

        return pattern.exact.sub(substitute, text)
