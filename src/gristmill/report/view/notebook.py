"""The viewer in a notebook: a few rows in the cell itself, and the address of the server."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from gristmill.report.markup import element
from gristmill.report.view.rows import count_rows
from gristmill.report.view.saved_page import make_saved_page
from gristmill.report.view.server import Viewer

if TYPE_CHECKING:
    from gristmill.report.view.rows import Rows


class View:
    """A viewer that serves in a thread. In a notebook it shows its first rows."""

    def __init__(self, collections: dict[str, Rows], rows: int, port: int) -> None:
        self._collections = collections
        self._num_rows = rows
        self._viewer = Viewer(collections, port)
        self._viewer.start()

    @property
    def url(self) -> str:
        """The address of the page, on this machine only."""
        return self._viewer.url

    def close(self) -> None:
        """End the server of this view."""
        self._viewer.close()

    def __repr__(self) -> str:
        return f"View({', '.join(self._collections)}; {self.url})"

    def _repr_html_(self) -> str:
        # The rows are in the cell: a notebook is often on another machine than its kernel, which has the server.
        rows = next(iter(self._collections.values()))
        page = make_saved_page(rows, islice(range(count_rows(rows)), self._num_rows))
        frame = element("iframe", srcdoc=page, sandbox="allow-scripts", style="width:100%;height:32rem;border:0")
        return f"{element('p', element('a', self.url, href=self.url, target='_blank', rel='noreferrer'))}{frame}"
