"""`html`: pages of HTML to text, by resiliparse or trafilatura.

Resiliparse reads about 90 MB/s of HTML per core, trafilatura 9 MB/s with fewer menus and teasers left in the text.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pyarrow as pa

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError, install_command
from gristmill.core.records import TEXT, TEXT_TYPE, Records, StepResult, count_dropped
from gristmill.core.step import LocalStep, StepKernel
from gristmill.steps.edit_columns import put_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gristmill.core.step import Step

EMPTY = "empty"
"""The reason for dropping pages without text."""
TOO_DEEP = "too_deep"
"""The reason for dropping pages whose elements are nested deeper than `MAX_DEPTH`."""
MAX_DEPTH = 2000
"""The time of the extractor grows with the square of the depth: a second at 8,000. Chromium keeps 512 levels."""
_REASONS = (EMPTY, TOO_DEEP)
_CONTENT_TYPE = "content_type"
_ROOT = re.compile("<html", re.IGNORECASE)
_TAG_START = re.compile("<[a-zA-Z!/]")
_ENTITY = re.compile("&[#a-zA-Z][a-zA-Z0-9]{1,8};")
_ELEMENT = re.compile(r"<\\?/?[a-zA-Z][a-zA-Z0-9-]*")  # scripts write <\/div>
_NEVER_NESTED = frozenset(  # empty, or closed by the next of their kind
    re.findall(
        "[a-z]+",
        "a area base body br button col colgroup dd dt embed head hr html img input li link meta nobr optgroup option "
        "p param rp rt source tbody td tfoot th thead tr track wbr",
    )
)


class Html(LocalStep, tag="html", frozen=True, kw_only=True):
    """Make text of HTML pages, with resiliparse (extra `web`) or trafilatura (extra `trafilatura`).

    By default only the main content: no menus, headers, footers and cookie banners. Entities are decoded; lists keep
    their bullets and paragraphs their blank lines, unless `formatting` is false. Texts without a tag stay as they are,
    and so do records whose column `content_type` says that they are plain text. Pages without text are dropped as
    `empty`, and those with more than 2,000 elements inside each other as `too_deep`.

    `extractor: trafilatura` leaves fewer menus and teasers in articles and takes ten times as long. It always takes the
    main content, keeps the formatting, and has no `alt_texts`. [Cleaning](cleaning.md) compares both.

    >>> from gristmill.core.records import documents, texts
    >>> page = "<html><body><nav>Home</nav><main><p>Bread &amp; butter</p></main></body></html>"
    >>> texts(Html().apply(documents([page, "a < b"]), seed=0).batch)
    ['Bread & butter', 'a < b']
    """

    needs: ClassVar[tuple[str, ...]] = (TEXT,)
    is_slow: ClassVar[bool] = True

    extractor: Literal["resiliparse", "trafilatura"] = "resiliparse"
    """`trafilatura`: fewer menus and teasers in the text, a tenth of the speed."""
    main_content: bool = True
    """Whether to leave out menus, headers, footers and the like."""
    formatting: bool = True
    """Whether to keep bullets of lists, and blank lines between paragraphs."""
    alt_texts: bool = False
    """Whether the descriptions of pictures are part of the text."""
    links: bool = False
    """Whether links show their targets."""

    comments: bool = True
    """Whether comments of readers are part of the text, and with them the replies of many forums."""

    def __post_init__(self) -> None:
        check_choice("extractor", self.extractor, _EXTRACTORS)
        if self.extractor == "trafilatura" and (not self.main_content or not self.formatting or self.alt_texts):
            raise UsageError(
                "html: main_content: false, formatting: false and alt_texts: true need extractor: resiliparse",
                help="trafilatura takes the keys links and comments",
            )

    @property
    def fingerprint_versions(self) -> object:
        return [self.version, version(self.extractor)]

    def resolve(self, folder: str) -> Step:  # noqa: ARG002
        _EXTRACTORS[self.extractor](self)
        return self

    def load(self) -> HtmlKernel:
        return HtmlKernel(self)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        return self.load().apply(batch, seed)


class HtmlKernel(StepKernel):
    """The extractor with the options of the step."""

    def __init__(self, step: Html) -> None:
        self._step = step
        self.extract = _EXTRACTORS[step.extractor](step)
        """Returns the text of a page."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return self._extract_pages(batch, batch.column(TEXT).to_pylist())

    def apply_to(self, records: Records, seed: int) -> StepResult:
        if not records.has_strings:
            return self.apply(records.rows, seed)
        empty = pa.nulls(records.num_rows, TEXT_TYPE)
        return self._extract_pages(records.with_text(empty), records.texts.strings)

    def _extract_pages(self, batch: pa.RecordBatch, pages: Sequence[str | None]) -> StepResult:
        """Put the texts of the pages into the batch, whose own column of texts is not read."""
        types = batch.column(_CONTENT_TYPE).to_pylist() if _CONTENT_TYPE in batch.schema.names else [None] * len(pages)
        values = list(pages)
        codes = np.zeros(len(pages), np.uint8)
        is_changed = np.zeros(len(pages), np.bool_)
        num_pages = 0
        for row, (page, kind) in enumerate(zip(pages, types, strict=True)):
            if page is None or kind == "text/plain" or not is_html(page):
                continue
            num_pages += 1
            if is_too_deep(page):
                codes[row] = 2
                continue
            text = values[row] = self.extract(page)
            codes[row] = not text.strip()
            is_changed[row] = text != page
        dropped = count_dropped(codes, _REASONS)
        column = pa.array(values, batch.schema.field(TEXT).type)
        if dropped:  # a filter copies all pages
            is_kept = codes == 0
            batch, column = batch.filter(pa.array(is_kept)), column.filter(pa.array(is_kept))
            is_changed = is_changed[is_kept]
        extracted, quarantined = put_columns(self._step, batch, {TEXT: column}, is_changed)
        return StepResult(
            extracted,
            dropped,
            quarantined=quarantined,
            counters={"pages": num_pages} if num_pages else {},
            codes=codes,
            reasons=_REASONS,
        )


def is_html(page: str) -> bool:
    """Whether a text has a tag or an entity. Takes linear time: a regular expression for a whole tag would not.

    >>> is_html("a <b> c"), is_html("a < b > c"), is_html("<br"), is_html("R&amp;D")
    (True, False, False, True)
    """
    tag = _TAG_START.search(page)
    return (tag is not None and page.find(">", tag.end()) >= 0) or _ENTITY.search(page) is not None


def is_too_deep(page: str) -> bool:
    """Whether more than `MAX_DEPTH` elements of a page are open at once, by its tags alone.

    >>> is_too_deep("<div>" * 2001), is_too_deep("<p>" * 2001), is_too_deep("<b>x</b>" * 2001)
    (True, False, False)
    """
    num_tags = page.count("<")  # a third of the time of counting "</"
    if num_tags <= MAX_DEPTH or num_tags - page.count("</") <= MAX_DEPTH:
        return False
    depth, num_open = 0, defaultdict[str, int](int)
    tags = _ELEMENT.findall(page)
    names = {tag: tag.lstrip("<\\/").lower() for tag in set(tags)}
    names = {tag: name for tag, name in names.items() if name not in _NEVER_NESTED}
    for tag in tags:
        if tag not in names:
            continue
        name = names[tag]
        if tag[1] not in "\\/":
            num_open[name] += 1
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif num_open[name]:  # others close nothing
            num_open[name] -= 1
            depth -= 1
    return False


def _load_resiliparse(step: Html) -> Callable[[str], str]:
    try:
        from resiliparse.extract.html2text import extract_plain_text  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("html needs the package resiliparse", help=install_command("web")) from error
    return partial(
        extract_plain_text,
        preserve_formatting=step.formatting,
        main_content=step.main_content,
        alt_texts=step.alt_texts,
        links=step.links,
        comments=step.comments,
    )


def _load_trafilatura(step: Html) -> Callable[[str], str]:
    try:
        import trafilatura  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "html: extractor: trafilatura needs the package of that name", help=install_command("trafilatura")
        ) from error
    # Its errors are about single pages, which are dropped and counted as empty.
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)

    def extract(page: str) -> str:
        if not _ROOT.search(page):  # it takes parts of pages for no HTML
            page = f"<html><body>{page}</body></html>"
        # fast: without trying other extractors, which takes half as long again and finds no better texts
        return trafilatura.extract(page, fast=True, include_comments=step.comments, include_links=step.links) or ""

    return extract


_EXTRACTORS: dict[str, Callable[[Html], Callable[[str], str]]] = {
    "resiliparse": _load_resiliparse,
    "trafilatura": _load_trafilatura,
}
