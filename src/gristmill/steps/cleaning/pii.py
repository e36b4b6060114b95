"""`pii`: replace what identifies people or opens doors: e-mail and IP addresses, phone numbers, keys.

Arrow's own code finds the documents with a candidate, at about 300 MB/s a core; only these are searched by Python's
regular expressions. No pattern takes more than linear time in a text without an end. Digits alone do not tell an
address from a version, or a phone number from a measured value, so that each match is judged by the text around it.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError
from gristmill.core.records import TEXT
from gristmill.core.step import Finding, LocalStep
from gristmill.steps.column_names import require_column
from gristmill.steps.edit_columns import edit_records, edit_texts, find_matches, has_values

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.core.records import StepResult


_PUBLIC_IPV6 = ipaddress.ip_network("2000::/3")
"""No other addresses of version 6 are given to hosts: `A::f` is a name in C++ and Rust."""
_RESOLVERS = frozenset({"8.8.4.4", "8.8.8.8", "9.9.9.9"})
"""Addresses that look like versions and are hardly ever one; 1.1.1.1 is a first import in CVS."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words before a number that say what it is.
_NUMBER_WORDS = _words(
    "§ v ver vers version versions versión versione versie versão wersja wersji версия версии версию rev revision "
    "release releases tag tags download downloads update updated upgrade upgraded bump bumped build firmware driver "
    "sdk sec section sections sección sezione seção rozdział раздел раздела abschnitt kapitel chapter chapters clause "
    "clauses subsection subclause annex appendix article theorem lemma table tables figure figures fig figs eq eqs "
    "equation equations item items oid oids identifier lat lon lng latitude longitude coordinate coordinates imei "
    "isbn issn doi orcid pmid arxiv order invoice serial sku part model patent ticket case checksum crc hash seed"
)
_NUMBER_ENDINGS = ("version", "版本", "版", "节", "節", "章", "バージョン", "버전", "버전은", "第")
_LINKING_WORDS = _words(
    "a an and are as at before current equal equals from is latest least less level minimum name new newer no nr "
    "number of older or than the through to until up used was with und oder bis von et ou à de y o e"
)
_ADDRESS_WORDS = _words(
    "ip ips ipv addr addrs address addresses host hosts hostname nameserver nameservers dns resolver resolvers "
    "subnet cidr ping ssh telnet traceroute nslookup whois inet peer listen bind src dst tcp udp connect "
    "connected connecting connection login logged visitor banned attacker remote forwarded http ffff clientip "
    "adresse adressen dirección indirizzo endereço adres адрес адреса"
)
_HOST_WORDS = _ADDRESS_WORDS | _words(
    "accept accepted allow allowed ban block blocked box by client clients curl denied deny drop dropped endpoint "
    "firewall for gateway get into instance machine node nodes on onto origin packet packets post proxy query range "
    "reject rejected request requests resolve resolved resolves route router server servers source target traffic "
    "upstream under user via victim vm vpn wget whitelist blacklist blocklist"
)
"""Words after which an address is as likely as a version. After other words (`Kernel 3.88.61.40`) it is not."""
_PHONE_WORDS = _words(
    "call calls cellphone contact dial fax hotline mobile pager phone phones sms tel telephone whatsapp telefon "
    "téléphone teléfono telefono telefone mobil rufnummer тел телефон"
)
_WORD = re.compile(r"IPv?|ips?(?![a-z])|[A-Z]?[^\W\d_A-Z]+|[A-Z]+|§")
_OTHER_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_TOKEN_START = r"(?:^|[\s(\"'`;,\[|>=])"
_VERSION_PREFIX = re.compile(
    rf"(?:{_TOKEN_START}(?:[A-Za-z][\w+-]*/|[a-z](?:[\w.+~*:-]|/(?!/))*:)|[A-Za-z]-)v?$|(?:[=~!<>]=|~>|[~^])\s?$"
)
"""`Chrome/`, `nginx:`, `cpe:2.3:a:apache:log4j:`, `openssl-` and `numpy>=`; not `/check/` in a link."""
_VERSION_SUFFIX = re.compile(
    r"[+~][A-Za-z0-9]|-\d+(?:ubuntu|debian|deb|\.(?:el|fc|amzn)\d|\))"
    r"|-(?:alpha|beta|dev|final|ga|hotfix|lts|pre|preview|rc|release|snapshot|stable)"
    r"|\.(?:apk|bin|deb|dll|dmg|exe|img|iso|jar|msi|nupkg|patch|pkg|rpm|so|t?gz|tar|whl|zip)(?![A-Za-z])"
    r"|\s(?:and|or)\s(?:above|below|earlier|greater|higher|later|newer|older|up)\b"
    r"|\]?\s[(\u2013-]\s?\d{4}-\d\d-\d\d\)?[^\S\n]*(?:\n|$)",
    re.IGNORECASE,
)
_CHANGE = re.compile(r"\b(?:bump|downgrad|updat|upgrad)[^\n]*\s(?:from|to)\s+[`\"']?v?$", re.IGNORECASE)
_NAME_BEFORE = re.compile(rf"{_TOKEN_START}@?([A-Za-z](?:[\w.+#/:-]*[\w+#])?)[ @]$")
"""Most often the name of a product: `Kernel 3.88.61.40`, `foo@3.88.61.40`."""
_DECIMAL_BEFORE = re.compile(r"(?<![\d.])\d*(?:\.\d+){1,2}[\s,-]+$")
_DECIMAL_AFTER = re.compile(r"[\s,-]+\d*(?:\.\d+){1,2}(?![\d.])")
"""`2.12 3.51.98.32 2.03` in the path of a drawing; addresses stand in rows with addresses."""
_HOST_SUFFIX = re.compile(
    r":(?:\d{2,5}(?!\d)|[/~])|/(?:[89]|[12]\d|3[0-2])(?![\d.])|-\d+\.\d+\.\d+\.\d|\s(?:port\b|- \S+ \[)"
)
_LEFT_CHARS = 60


class _Context:
    """The text around a match, and the words before it, the nearest first."""

    def __init__(self, match: re.Match[str]) -> None:
        self.left = match.string[max(0, match.start() - _LEFT_CHARS) : match.start()]
        self.right = match.string[match.end() : match.end() + _LEFT_CHARS]
        self._words = [(word.group().lower(), word.span()) for word in _WORD.finditer(self.left)][::-1]

    def names_number(self) -> bool:
        """Whether the word before is one of a version, a section and the like: `version 1.2.3.4`, `from v1 to v2`."""
        for word, (_, end) in self._words:
            if _OTHER_NUMBER.search(self.left, end):
                return False
            if word in _NUMBER_WORDS or word.endswith(_NUMBER_ENDINGS):
                return True
            if word not in _LINKING_WORDS:
                return False
        return False

    def has_word(self, words: frozenset[str]) -> bool:
        """Whether one of the words is before the match, in its line."""
        line = self.left.rfind("\n") + 1
        return any(word in words for word, (start, _) in self._words if start >= line)

    def ends_in_word(self, words: frozenset[str]) -> bool:
        """Whether the nearest word is one of these."""
        return bool(self._words) and self._words[0][0] in words


def _is_host(match: re.Match[str]) -> bool:
    """Whether numbers are the address of a public host, and neither a version nor the number of a section.

    What is nearest decides, and the numbers themselves only where the words do not. Versions begin with small numbers;
    2 % of random addresses do so as those after no name, 15 % as those after a name (`Kernel 3.88.61.40`).
    """
    text = match.group()
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if not address.is_global or address.is_multicast:
        return False
    if address.version == 6:
        return address in _PUBLIC_IPV6
    context = _Context(match)
    if text.endswith(".0") or context.names_number() or _VERSION_SUFFIX.match(context.right):
        return False  # a network or a version
    if re.search(r"//(?:\S*@)?$", context.left) or _HOST_SUFFIX.match(context.right):
        return True
    if _VERSION_PREFIX.search(context.left):
        names_tool = context.left.endswith("/")  # curl/7.68.1.9
        return context.ends_in_word(_ADDRESS_WORDS if names_tool else _HOST_WORDS)
    if context.has_word(_ADDRESS_WORDS):
        return True
    # `Bump nginx to`, but not `Update the server to`.
    if _CHANGE.search(context.left) and not context.has_word(_HOST_WORDS):
        return False
    if _DECIMAL_BEFORE.search(context.left) and _DECIMAL_AFTER.match(context.right):
        return False
    first, second, *_ = numbers = address.packed
    name = _NAME_BEFORE.search(context.left)
    if name and name[1].lower() not in _HOST_WORDS | _LINKING_WORDS:
        return first > 30 and max(numbers) > 99
    is_like_version = (
        second == 0
        or max(first, second) <= 20
        or (first <= 30 and max(numbers) <= 99)
        or sum(n <= 20 for n in numbers) >= 3
    )
    return not is_like_version or text in _RESOLVERS


_COUNTRY_CODE = re.compile(
    r"[17]|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]|(?:2[1-69]|3[578]|42|5[09]|6[789]|8[0578]|9[679])\d"
)
_NUMBER_BEFORE = re.compile(r"(?<![\d.])([+-]?)[\d.]*\d[^\S\n]*[,;]?[^\S\n]*$|()[)\]]$")
_VALUE_AFTER = re.compile(
    r"\s*[,;]?\s*(?:-\d|[+-]?\d+\.\d)|\s?[*/^%]\s?[\w(]"
    r"|[^\S\n]?(?:bytes?|documents?|items?|lines?|points?|records?|rows?|tokens?|users?|views?|votes?|words?"
    r"|[kKMGT]i?B|[kcm]m|[mnuµ]s)\b"
)
_ROW_CHARS = 1000


def _is_value_of_row(match: re.Match[str]) -> bool:
    """Whether a number with a sign is one of several in brackets, or next to one that is no phone number."""
    chars = "+-0123456789,; \t\r\n"
    left = match.string[max(0, match.start() - _ROW_CHARS) : match.start()]
    right = match.string[match.end() : match.end() + _ROW_CHARS]
    before = left.rstrip(chars)
    others = re.findall(r"([+-]?)(\d+)", left[len(before) :] + right[: len(right) - len(right.lstrip(chars))])
    if before.endswith(("[", "(", "{")):
        return bool(others)
    return any(sign == "-" or (sign and not _is_international(digits)) for sign, digits in others)


def _is_international(digits: str) -> bool:
    """Whether digits begin with the code of a country and can be a number there."""
    code = _COUNTRY_CODE.match(digits)
    if code is None or not 8 <= len(digits) <= 15 or digits.startswith("00", code.end()):
        return False
    if code[0] == "1":
        return len(digits) == 11 and digits[1] > "1" and digits[4] > "1"
    return code.end() != 2 or len(digits) >= 9


def _is_phone(match: re.Match[str]) -> bool:
    """Whether digits are a phone number, and no measured value, identifier or row of numbers."""
    text, context = match.group(), _Context(match)
    groups = re.findall(r"\d+", text)
    digits = "".join(groups)
    before = _NUMBER_BEFORE.search(context.left)
    is_in_row = (before is not None and before[1] != "+") or _VALUE_AFTER.match(context.right) is not None
    has_phone_word = context.has_word(_PHONE_WORDS)
    if not has_phone_word and context.names_number():
        return False
    if text[0] != "+":
        separators = set(re.sub(r"[\d()]", "", text))
        if separators == {"-"} or "(" in text:
            return True
        can_be_area = digits[-10] > "1" and digits[-7] > "1"
        return can_be_area and (has_phone_word or (separators == {"."} and not is_in_row))
    if len(groups) == 1 and not has_phone_word:  # its sign is all that makes +12345678901 different from other numbers
        return _is_international(digits) and not is_in_row and not _is_value_of_row(match)
    code = _COUNTRY_CODE.match(digits)
    if code is None or digits.startswith("00", code.end()) or (code.end() == 2 and len(digits) < 9):
        return False
    separator = re.search(r"\D", text[1:])
    if separator is not None and separator[0] == "." and (len(groups) == 2 or re.search(r"\s", text)):
        return False  # +49.123456789, and +1404.417 9607: a value and another one
    if digits.endswith("000000") and all(len(group) == 3 for group in groups[1:]):
        return False  # +33 100 000 000
    return sum(len(group) == 1 for group in groups[1:]) <= 2


_AWS_ID = re.compile(r"(?<![A-Za-z0-9])A[KS]IA[0-9A-Z]{16}(?![A-Za-z0-9])|(?i:aws.?secret|secret.?access.?key)")
_AWS_DISTANCE = 300
"""Characters between a secret and the id or name that belongs to it: a few lines of a file with credentials."""


def _is_key(match: re.Match[str]) -> bool:
    """Whether characters are random, as keys are; a secret without a prefix needs an id or its name nearby."""
    text = match.group()
    if match["secret"]:
        near = match.string[max(0, match.start() - _AWS_DISTANCE) : match.end() + _AWS_DISTANCE]
        has_all = all(re.search(kind, text) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
        return has_all and text.count("/") <= 4 and _AWS_ID.search(near) is not None
    if match["slug"]:  # sk-circle-fade-dot-12 is a class of CSS
        pieces = re.split("[-_]", match["slug"])
        return not all(not piece or re.fullmatch("[A-Z]?[a-z]+|[A-Z]+|[0-9]+", piece) for piece in pieces)
    return True


@dataclass(frozen=True, slots=True)
class _Pattern:
    """The patterns of one kind: one for RE2 that finds the documents to look at, the exact one, and a look around."""

    candidate: str
    exact: re.Pattern[str]
    is_valid: Callable[[re.Match[str]], bool]


# Letters of Latin, Greek and Cyrillic beyond ASCII, and accents that follow theirs. Where words have no spaces between
# them, a name could not be told from the sentence before it.
_LETTERS = "À-ÖØ-öø-ʯ\u0300-\u036fͰ-ԯ"
_LABEL = rf"[A-Za-z0-9{_LETTERS}](?:[A-Za-z0-9{_LETTERS}-]{{0,61}}[A-Za-z0-9{_LETTERS}])?"
_NAME = rf"A-Za-z0-9_+%'{_LETTERS}"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_SPACE = "[ .\\-/\u00a0\u2009\u202f\u2010-\u2013]"
_NO_MAIL = re.compile(
    r"git@|[^@]+@(?:\d+\.\d|[1-4]x\.)|.*\.(?:avif|css|gif|ico|jpe?g|js|json|md|png|svg|webp|ya?ml)$", re.IGNORECASE
)
"""An account that all share, `react@18.2.0-rc.one`, and names of files: `icon@2x.png`."""


def _is_mail(match: re.Match[str]) -> bool:
    """Whether an address can have a mailbox, and is neither a product of matrices nor the version of a package."""
    return not _NO_MAIL.match(match.group()) and match.string[match.end() : match.end() + 1] != "("


_PATTERNS: dict[str, _Pattern] = {
    "email": _Pattern(
        rf"[{_NAME}.-]@[A-Za-z0-9{_LETTERS}]",
        re.compile(
            rf"(?<![{_NAME}-])[{_NAME}-][{_NAME}.-]{{0,63}}@(?:{_LABEL}\.){{1,8}}(?:[A-Za-z]{{2,63}}(?![A-Za-z0-9-])"
            rf"|[{_LETTERS}]{{2,63}}(?![A-Za-z0-9{_LETTERS}-]))",
            re.ASCII,
        ),
        _is_mail,
    ),
    "ip": _Pattern(
        r"\d\.\d{1,3}\.\d{1,3}\.\d|[0-9A-Fa-f]:[0-9A-Fa-f:]*:[0-9A-Fa-f]",
        re.compile(
            rf"(?<!\w)(?<!\w\.)(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\d)(?!\w)"
            r"|(?<![\w:.])[0-9A-Fa-f]{1,4}:(?:[0-9A-Fa-f]{0,4}:){1,6}[0-9A-Fa-f]{1,4}(?!\w|:[\w:])",
            re.ASCII,
        ),
        _is_host,
    ),
    "phone": _Pattern(
        rf"\+\d|\d{{3}}\)?{_SPACE}?\d{{3}}{_SPACE}\d{{4}}",
        re.compile(
            rf"(?<![\w.+-])(?:\+1{_SPACE}?(?:\(\d{{3}}\)|\d{{3}}){_SPACE}?\d{{3}}{_SPACE}?\d{{4}}"
            rf"|\+[2-9]\d{{0,2}}(?:{_SPACE}?\(\d{{1,4}}\))?(?:{_SPACE}?\d){{6,12}}"
            rf"|(?:1{_SPACE})?(?:\(\d{{3}}\){_SPACE}?|\d{{3}}{_SPACE})\d{{3}}{_SPACE}\d{{4}})"
            r"(?![\w-])(?!\.\d)",
            re.ASCII,
        ),
        _is_phone,
    ),
    "key": _Pattern(
        r"AKIA|ASIA|gh[pousr]_|github_pat_|gl[a-z]{2,4}-|npm_|pypi-|SG\.|sk-|sk_live_|sk_test_|rk_live_|AIza|xox[baprs]-"
        r"|hf_|eyJ|PRIVATE KEY-----|(?i:aws.?secret|secret.?access.?key)",
        re.compile(
            r"(?<![A-Za-z0-9_-])(?:"
            r"A[KS]IA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255}"
            r"|(?:sk|pypi|gl(?:pat|dt|rt|ft|soat|ptt|cbt|agent))-"
            r"(?P<slug>[A-Za-z0-9_-]{20,255})(?:\.[0-9a-z]{2}\.[0-9a-z]{7,9})?"
            r"|npm_[A-Za-z0-9]{36,255}|SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,128}"
            r"|[sr]k_(?:live|test)_[A-Za-z0-9]{16,255}|AIza[A-Za-z0-9_-]{35}"
            r"|xox[baprs]-[A-Za-z0-9-]{10,255}|hf_[A-Za-z0-9]{30,255}"
            r"|eyJ[A-Za-z0-9_-]{8,2000}\.eyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{8,2000}"
            r")(?![A-Za-z0-9_-])"
            r"|(?:(?<![A-Za-z0-9/+])|(?<=A[KS]IA[0-9A-Z]{16}/))"
            r"(?P<secret>(?:[A-Za-z0-9+]|\\?/|%2[BFbf]){40})(?![A-Za-z0-9/+=])"
            r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[A-Za-z0-9+/=\s\\:,-]{1,10000}?"
            r"-----END [A-Z ]{0,40}PRIVATE KEY-----"
        ),
        _is_key,
    ),
}
DEFAULT_PLACEHOLDERS = {"email": "<EMAIL>", "ip": "<IP>", "phone": "<PHONE>", "key": "<KEY>"}


class Pii(LocalStep, tag="pii", frozen=True, kw_only=True):
    """Replace e-mail addresses, public IP addresses, phone numbers and keys by fixed placeholders.

    By default e-mail and public IP addresses (`kinds: [email, ip]`); `phone` (with a country code, or as 555-123-4567)
    and `key` (private keys, tokens of well-known services, AWS secrets near their ids) on request. Private, local and
    documentation addresses stay, and so do numbers that their neighbours show to be something else: versions, sections,
    decimals. Applied twice, it changes nothing more. Counts what it replaced, by kind, as `replaced:email`.

    The text around a number decides what it is: `version 4.3.61.21`, `Chrome/120.0.0.0`, `libm-1.2.3.4.so` and
    `icon@2x.png` stay; after `host`, `ping`, `http://` or before a port, four numbers are an address. Where nothing
    decides, numbers that begin as versions do (`7.12.9.20`) stay, and after the name of a product (`Kernel 3.88.61.40`)
    also those that begin with up to 30. Addresses that end in `.0` are networks and stay. Phone numbers without a
    country code are found in the American form only. Before `render`, all strings of a chat are searched: messages,
    reasoning, arguments of calls, also those that are JSON in a string, and results. [Cleaning](cleaning.md#pii) has
    precision and recall. With `keep_dropped`, `dropped/pii-changed.jsonl` has samples of texts before and after.

    >>> from gristmill.core.records import documents, texts
    >>> texts(Pii().apply(documents(["Ask ann@example.com at 8.8.8.8, not at 127.0.0.1."]), seed=0).batch)
    ['Ask <EMAIL> at <IP>, not at 127.0.0.1.']
    """

    version: ClassVar[int] = 7

    kinds: list[str] = msgspec.field(default_factory=lambda: ["email", "ip"])
    """Any of `email`, `ip`, `phone` and `key`."""
    placeholders: dict[str, str] = msgspec.field(default_factory=dict)
    """Others than `<EMAIL>`, `<IP>`, `<PHONE>` and `<KEY>`, by kind: `{email: "[mail]"}`."""

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

    def columns_needed(self) -> tuple[str, ...]:
        return ()  # a text, or the values that `render` will make it of

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if not has_values(schema):
            require_column("pii", TEXT, schema)
        return schema

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        if TEXT not in batch.schema.names:
            return edit_records(batch, self._find_candidates, self._replace, Counter())
        return edit_texts(self, batch, self._find_candidates(batch.column(TEXT)), self._replace, Counter())

    def explain(self, record: pa.RecordBatch) -> list[Finding]:
        counters: Counter[str] = Counter()
        if TEXT in record.schema.names:
            self._replace(record.column(TEXT)[0].as_py() or "", counters)
        else:
            edit_records(record, self._find_candidates, self._replace, counters)
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
            if not pattern.is_valid(match):
                return match.group()
            counters[f"replaced:{kind}"] += 1
            return placeholder

        return pattern.exact.sub(substitute, text)
