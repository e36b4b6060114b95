"""Questions about the columns of rows, in SQL: which rows a condition chooses, their order, how values are spread.

DuckDB answers them over Arrow tables that are mapped and Parquet files that are scanned, so nothing is copied but the
numbers of rows: 8 bytes each. A condition comes from an address, so it may be hostile: DuckDB gets a connection without
files, network, extensions or variables of Python, with a locked configuration, limited memory and limited time, and a
condition is parsed as one expression, never as a statement.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError, install_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from duckdb import DuckDBPyConnection, DuckDBPyRelation
    from numpy.typing import NDArray


_MAX_ROWS = 20_000_000
CHART_ROWS = 100_000
_NUM_BINS = 20
_NUM_VALUES = 4
_MAX_VALUE = 200
_MAX_SECONDS = 10.0
_CACHED = 8
_CONFIGURATION: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false", "autoinstall_known_extensions": "false", "autoload_known_extensions": "false",
    "python_enable_replacements": "false", "allow_community_extensions": "false", "temp_directory": "",
    "memory_limit": "2GB", "threads": "2",
}  # fmt: skip
MISSING = f"To sort, filter by columns and write conditions: {install_command('view')}"


def can_query() -> bool:
    """Whether DuckDB is installed. It is imported when something is asked."""
    return find_spec("duckdb") is not None


def name_kinds(schema: pa.Schema) -> dict[str, str]:
    """Name the columns that can be sorted: numbers and texts.

    >>> name_kinds(pa.schema({"n": pa.int64(), "lang": pa.string(), "tags": pa.list_(pa.string())}))
    {'n': 'number', 'lang': 'text'}
    """
    return {field.name: kind for field in schema if (kind := _find_kind(field.type))}


def _find_kind(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind):
        return "text"
    return ""


class ColumnQueries:
    """The columns of a collection. `open_table` gives all of its rows in order, `read_score` a score of each row."""

    def __init__(
        self,
        kinds: Mapping[str, str],
        open_table: Callable[[], Any],
        score_names: list[str] | None = None,
        read_score: Callable[[str], NDArray[np.float64]] | None = None,
    ) -> None:
        self.kinds = {**kinds, **dict.fromkeys(score_names or (), "number")}
        self._open_table = open_table
        self._scores = [name for name in score_names or () if name not in kinds]
        self._read_score = read_score
        self._lock = threading.Lock()
        self._connections: list[DuckDBPyConnection] = []  # none or one
        # One that is open when Python ends would be reported as a leak, on dozens of lines.
        weakref.finalize(self, self._connections.clear)
        self._row = '"row"' if "row" not in kinds else '"row number"'
        self._answers: OrderedDict[object, Any] = OrderedDict()
        self._loaded: dict[str, NDArray[np.float64]] = {}

    def find_rows(self, conditions: tuple[str, ...]) -> NDArray[np.int64]:
        """Find the rows that all conditions choose, in order."""
        rows: NDArray[np.int64] = self._remember(("where", *conditions), lambda: self._find(conditions))
        return rows

    def sort_rows(self, sort: str) -> NDArray[np.int64]:
        """Sort all rows by a column, or by `-column` downwards; rows without a value come last."""
        name = sort.removeprefix("-")
        check_choice("sort", name, self.kinds)
        order = f"{_quote(name)} {'DESC' if sort.startswith('-') else 'ASC'} NULLS LAST, {self._row}"
        rows: NDArray[np.int64] = self._remember(("sort", sort), lambda: self._numbers(self._open(sort).order(order)))
        return rows

    def describe_column(self, name: str) -> dict[str, Any]:
        """Describe the values of a column in the first rows: a histogram, or the most frequent texts."""
        check_choice("column", name, self.kinds)
        described: dict[str, Any] = self._remember(("column", name), lambda: self._describe(name))
        return described

    def _remember(self, key: object, compute: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._answers:
                with _tell_errors(), self._limit_time():
                    self._answers[key] = compute()
                if len(self._answers) > _CACHED + len(self.kinds):
                    self._answers.popitem(last=False)
            self._answers.move_to_end(key)
            return self._answers[key]

    def _find(self, conditions: tuple[str, ...]) -> NDArray[np.int64]:
        relation = self._open(*conditions)
        for condition in conditions:
            relation = relation.filter(condition)
        return np.sort(self._numbers(relation))

    def _numbers(self, relation: DuckDBPyRelation) -> NDArray[np.int64]:
        rows: NDArray[np.int64] = np.asarray(relation.project(self._row).fetchnumpy()[self._row.strip('"')], np.int64)
        return rows

    def _open(self, *texts: str) -> DuckDBPyRelation:
        """Open the rows with their numbers, and with the scores that some texts name."""
        if not self._connections:
            self._connections.append(self._connect())
        connection = self._connections[0]
        wanted = [name for name in self._scores if any(name in text for text in texts)]
        rows = connection.table("rows").project(f"row_number() OVER () - 1 AS {self._row}, *")
        if not wanted:
            return rows
        for name in wanted:
            if name not in self._loaded:
                assert self._read_score is not None
                self._loaded[name] = self._read_score(name)
        columns = {name: pa.array(self._loaded[name], from_pandas=True) for name in wanted}  # NaN becomes null
        connection.register("scores", pa.table(columns))
        return connection.sql(
            f"SELECT * FROM (SELECT row_number() OVER () - 1 AS {self._row}, * FROM rows) POSITIONAL JOIN scores"
        )

    def _connect(self) -> DuckDBPyConnection:
        try:
            import duckdb  # noqa: PLC0415  (0.1 s, and an extra)
        except ImportError as error:
            raise UsageError("conditions and sorting need DuckDB", help=install_command("view")) from error
        table = self._open_table()
        num_rows = table.num_rows if isinstance(table, pa.Table) else table.count_rows()
        if num_rows > _MAX_ROWS:
            raise UsageError(
                f"there are {num_rows:,} rows, more than the viewer sorts or filters by columns ({_MAX_ROWS:,})",
                help="choose fewer files, or export the dataset and query it there",
            )
        connection = duckdb.connect(":memory:", config=_CONFIGURATION)
        connection.register("rows", table)
        connection.execute("SET lock_configuration = true")
        return connection

    @contextmanager
    def _limit_time(self) -> Iterator[None]:
        is_done = threading.Event()
        threading.Thread(target=self._interrupt, args=(is_done,), daemon=True).start()
        try:
            yield
        finally:
            is_done.set()

    def _interrupt(self, is_done: threading.Event) -> None:
        """Interrupt until it has an effect: DuckDB forgets an interrupt that comes just before a query begins."""
        seconds = _MAX_SECONDS
        while not is_done.wait(seconds):
            for connection in self._connections:
                connection.interrupt()
            seconds = 0.05

    def _describe(self, name: str) -> dict[str, Any]:
        column = _quote(name)
        rows = self._open(name).limit(CHART_ROWS).project(f"{column} AS value")
        total, known, distinct = rows.aggregate("count(*), count(value), approx_count_distinct(value)").fetchall()[0]
        described: dict[str, Any] = {"name": name, "rows": total, "missing": total - known}
        if self.kinds[name] == "text":
            texts = rows.project("value::VARCHAR AS value").filter(f"length(value) <= {_MAX_VALUE}")
            counted = texts.aggregate("value, count(*) AS number", "value").filter("number > 1")
            top = counted.order("number DESC, value").limit(_NUM_VALUES).fetchall()
            return {**described, "distinct": distinct, "values": [[value, number] for value, number in top]}
        values = np.asarray(
            rows.project("value::DOUBLE AS value").filter("value IS NOT NULL").fetchnumpy()["value"], np.float64
        )
        values = values[np.isfinite(values)]
        if not len(values):
            return {**described, "counts": []}
        counts, edges = np.histogram(values, _NUM_BINS)
        return {**described, "counts": counts.tolist(), "edges": edges.tolist()}


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _tell_errors() -> Iterator[None]:
    """Tell what DuckDB says of a condition in words of the page."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("duckdb", "_duckdb"):
            raise
        if type(error).__name__ == "InterruptException":
            problem = f"this took longer than {_MAX_SECONDS:g} seconds, and was stopped"
        else:
            reason = str(error).split("\n\nLINE", 1)[0].strip().replace("\n", ". ")
            problem = f"{reason}: write a condition over one row, such as length(text) > 100 and lang = 'en'"
        raise UsageError(problem, help="conditions are SQL of DuckDB") from None
