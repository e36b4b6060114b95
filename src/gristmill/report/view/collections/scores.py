"""The scores of a dataset's documents: from the score files, joined by origin.

They are read when they are first asked for: the origins of all documents and the score files, about 200 bytes a
document. Small files are read at once, so that each document is shown with its scores.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.core.records import ORIGIN
from gristmill.report.view.collections.document_origins import make_origin_keys
from gristmill.shards.score_file import ScoreTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.report.view.collections.document_origins import DocumentOrigins
    from gristmill.shards.dataset import Dataset, Origin

_MAX_ROWS = 20_000_000
_SMALL_ROWS = 200_000


class DatasetScores:
    """The scores of a dataset's documents."""

    def __init__(self, dataset: Dataset, origins: DocumentOrigins) -> None:
        self._dataset = dataset
        self._origins = origins
        self._files = [file for file in dataset.manifest.scores if file.rows]
        self.names = list(dict.fromkeys(name for file in self._files for name in file.histograms))
        self._num_rows = sum(file.rows for file in self._files)
        self._values: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}

    @cached_property
    def _tables(self) -> list[tuple[ScoreTable, NDArray[np.uint64], NDArray[np.int64]]]:
        """All score files, each with the sorted keys of its documents and their order."""
        if self._num_rows > _MAX_ROWS:
            raise UsageError(
                f"the score files have {self._num_rows:,} rows, more than the viewer reads ({_MAX_ROWS:,})",
                help="use `gristmill tune`, or open a dataset of fewer documents",
            )
        tables = []
        for file in self._files:
            table = ScoreTable(self._dataset.folder, file)
            keys = make_origin_keys(table.table.column(ORIGIN).combine_chunks())
            order = np.argsort(keys, kind="stable")
            tables.append((table, keys[order], order))
        return tables

    def read_values(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the row of each document, and its score, which is NaN where nothing was measured."""
        check_choice("score", name, self.names)
        if name not in self._values:
            rows, keys = self._origins.documents
            self._values[name] = rows, self._look_up(name, keys)
        return self._values[name]

    def find_document(self, origin: Origin) -> dict[str, float]:
        """Find all scores of a document; nothing if the files are large and have not been needed before."""
        if not self._files or (self._num_rows > _SMALL_ROWS and "_tables" not in self.__dict__):
            return {}
        key = np.uint64(self._origins.key_of(origin))
        values: dict[str, float] = {}
        for table, sorted_keys, order in self._tables:
            place = int(np.searchsorted(sorted_keys, key))
            if place < len(sorted_keys) and sorted_keys[place] == key:
                row = table.table.slice(int(order[place]), 1)
                scores = {name: row.column(name)[0].as_py() for name in self.names if name in row.column_names}
                values |= {name: float(value) for name, value in scores.items() if value is not None}
        return values

    def _look_up(self, name: str, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
        values = np.full(len(keys), np.nan)
        for table, sorted_keys, order in self._tables:
            if name not in table.table.column_names or not len(sorted_keys):
                continue
            places = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
            is_known = sorted_keys[places] == keys
            column = table.table.column(name).cast("float64").fill_null(np.nan).to_numpy()
            values[is_known] = column[order[places[is_known]]]
        return values
