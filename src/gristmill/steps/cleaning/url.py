"""`url`: keep documents by their address. About a million addresses a second and core.

Its lists (and those of `toxicity`) are files of the user or of installed packages, with one entry a line.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import RuleValues, StepResult, count_dropped
from gristmill.core.step import Finding, LocalStep, StepKernel
from gristmill.steps.column_names import require_column
from gristmill.storage.urls import find_host, normalize_host

REASONS = ("no_url", "blocked_domain", "blocked_word")
_WORD = re.compile(r"[^\W_]+")


class Url(LocalStep, tag="url", frozen=True, kw_only=True):
    """Drop documents by their address: blocked domains with all their subdomains, and blocked words.

    `example.com` blocks `example.com` and `www.example.com`, not `notexample.com`. A word blocks addresses that have it
    between two characters that are no letters or digits, in upper or lower case: `casino` blocks `/Casino-bonus`, not
    `/casinos`. Entries come from the recipe, and from files with one a line (`domain_lists`, `word_lists`). Documents
    without an address stay, unless `require` is set.

    >>> from gristmill.core.records import documents
    >>> pages = documents(["a", "b", "c"], url=["https://shop.example.com/", "http://b.org/x-casino", None])
    >>> Url(domains=["example.com"], words=["casino"]).apply(pages, seed=0).dropped
    {'blocked_domain': 1, 'blocked_word': 1}
    """

    preserves_text: ClassVar[bool] = True
    not_fingerprinted: ClassVar[tuple[str, ...]] = ("domain_lists", "word_lists")

    column: str = "url"
    """The column of the address."""
    domains: list[str] = msgspec.field(default_factory=list)
    """Domains that are blocked."""
    words: list[str] = msgspec.field(default_factory=list)
    """Words that are blocked."""
    domain_lists: list[str] = msgspec.field(default_factory=list)
    """Files with one domain a line; `package:NAME/path` is a file of an installed package."""
    word_lists: list[str] = msgspec.field(default_factory=list)
    """Files with one word a line; `package:NAME/path` is a file of an installed package."""
    require: bool = False
    """Whether documents without an address are dropped, as `no_url`."""

    def __post_init__(self) -> None:
        if not (self.domains or self.words or self.domain_lists or self.word_lists or self.require):
            raise UsageError("url blocks nothing", help="write domains: [example.com], words: […], or require: true")
        for domain in self.domains:
            if not normalize_host(domain):
                raise UsageError(f'url: "{domain}" is no domain', help="write example.com")
        for word in self.words:
            if not _WORD.fullmatch(word):
                raise UsageError(f'url: "{word}" is not one word of letters and digits')

    def resolve(self, folder: str) -> Url:
        domains = [entry for path in self.domain_lists for entry in read_list(self.name, path, folder)]
        words = [entry for path in self.word_lists for entry in read_list(self.name, path, folder)]
        return msgspec.structs.replace(self, domains=[*self.domains, *domains], words=[*self.words, *words])

    def columns_needed(self) -> tuple[str, ...]:
        return (self.column,)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        require_column(self.name, self.column, schema)
        return schema

    def load(self) -> UrlKernel:
        return UrlKernel(self)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        return self.load().apply(batch, seed)

    def explain(self, record: pa.RecordBatch) -> list[Finding]:
        address = record.column(self.column)[0].as_py()
        code = self.load().judge(address)
        host = find_host(address or "") or "none"
        return [Finding(name="host", value=host, rule=REASONS[code - 1] if code else None, passed=not code)]


class UrlKernel(StepKernel):
    """The lists of the step as sets."""

    def __init__(self, step: Url) -> None:
        self._step = step
        self._domains = frozenset(map(normalize_host, step.domains))
        self._words = frozenset(word.lower() for word in step.words)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        addresses = batch.column(self._step.column).to_pylist()
        codes = np.fromiter(map(self.judge, addresses), np.uint8, len(addresses))
        dropped = count_dropped(codes, REASONS)
        if not dropped:
            return StepResult(batch)
        values = {reason: RuleValues(batch.column(self._step.column)) for reason in REASONS[1:]}
        return StepResult(batch.filter(pa.array(codes == 0)), dropped, codes=codes, reasons=REASONS, rule_values=values)

    def judge(self, address: object) -> int:
        """Return 0 to keep a document with this address, or 1 + the index of a reason."""
        if not isinstance(address, str) or not address.strip():
            return 1 if self._step.require else 0
        if self._domains and self._is_blocked(find_host(address)):
            return 2
        if self._words and not self._words.isdisjoint(_WORD.findall(address.lower())):
            return 3
        return 0

    def _is_blocked(self, host: str) -> bool:
        """Tell whether a host or a domain that it is part of is on the list."""
        while host:
            if host in self._domains:
                return True
            _, _, host = host.partition(".")
        return False


_PACKAGE = "package:"


def read_list(step: str, path: str, folder: str) -> list[str]:
    """Read a list; `package:NAME/path/in/it.txt` is a file of an installed package.

    Raises:
        UsageError: It cannot be read, is not UTF-8, or is empty.
    """
    file = _find_in_package(step, path.removeprefix(_PACKAGE)) if path.startswith(_PACKAGE) else Path(folder, path)
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise UsageError(f"{step}: cannot read the list {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{step}: the list {file} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    words = [line.strip() for line in lines if line.strip()]
    if not words:
        raise UsageError(f"{step}: the list {file} is empty", help="write one word or phrase a line")
    return words


def _find_in_package(step: str, path: str) -> Path:
    name, _, inside = path.partition("/")
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f'{step}: there is no package "{name}"', help="install it, or name a file")
    return Path(next(iter(spec.submodule_search_locations)), inside)
