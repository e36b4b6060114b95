"""Conditions, orders and charts of columns: against rows in Python, and what a hostile condition must not reach."""

import math
import os

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.pipeline.inspecting.viewing import open_collections
from gristmill.report.view import column_queries, page_requests
from gristmill.report.view.column_queries import ColumnQueries, name_kinds
from gristmill.report.view.page_requests import Requests

pytest.importorskip("duckdb")

ROWS = [
    {"text": f"text {n}", "n": n * 37 % 101 - 20, "score": None if n % 9 == 4 else n % 7 / 3, "a \"b'": "xy"[n % 2]}
    for n in range(300)
]


@pytest.fixture(params=["arrow", "parquet"])
def folder(request, tmp_path):
    """A dataset of several shards in two splits."""
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "in.parquet")
    read = steps.Read(read=str(tmp_path / "in.parquet"), columns=["n", "score", "a \"b'"])
    write = steps.Write(format=request.param, max_shard_bytes=6000)
    recipe = gm.Recipe(sources={"web": read}, steps=[steps.Split(test=0.2), write], output=str(tmp_path / "out"))
    gm.run(recipe, backend="serial", progress=False)
    return tmp_path / "out"


def read_numbers(requests, **words):
    answer = requests.read_rows({name: value if isinstance(value, list) else [value] for name, value in words.items()})
    return [row["number"] for row in answer["rows"]], answer


def test_conditions_and_orders(folder):
    rows = open_collections([folder])["out"]
    requests = Requests({"out": rows})
    records = [ROWS[int(record["text"].split()[1])] for record in rows.dataset]
    train = len(rows.dataset.split("train"))

    def find(keep, key=None, reverse=False):
        numbers = [number for number, record in enumerate(records) if keep(number, record)]
        if key is None:
            return numbers
        known = [number for number in numbers if records[number][key] is not None]
        known.sort(key=lambda number: records[number][key], reverse=reverse)
        return known + [number for number in numbers if records[number][key] is None]

    def is_large(_, record):
        return record["n"] > 40

    for words, expected in (
        ({"where": "n > 40"}, find(is_large)),
        (
            {"where": ["n > 40", '"a ""b\'" = \'x\'']},
            find(lambda _, record: record["n"] > 40 and record["a \"b'"] == "x"),
        ),
        ({"where": "n > 40", "split": "train"}, find(lambda number, record: record["n"] > 40 and number < train)),
        ({"where": "row in (3, 250)"}, [3, 250]),
        ({"sort": "n"}, find(lambda *_: True, "n")),
        ({"sort": "-score", "where": "n > 40"}, find(is_large, "score", reverse=True)),
        ({"where": "text like '%no such%'"}, []),
    ):
        numbers, answer = read_numbers(requests, count="100", **words)
        assert numbers == expected[:100]
        assert answer["total"] == len(expected)
        assert read_numbers(requests, count="7", at="7", **words)[0] == expected[7:14] or len(expected) < 8
    searched = [hit for hit in requests.search({"query": ["text 1"], "where": ["n > 40"]}) if "number" in hit]
    assert [hit["number"] for hit in searched] == find(
        lambda _, record: record["n"] > 40 and record["text"].startswith("text 1")
    )
    # The page that shows a row, wherever the order has put it.
    position = find(lambda *_: True, "n").index(17)
    assert read_numbers(requests, sort="n", row="17", count="10")[1]["position"] == position // 10 * 10


def test_charts_count_the_values(folder):
    requests = Requests(open_collections([folder]))
    described = requests.describe_column({"column": ["score"]})
    values = [record["score"] for record in ROWS if record["score"] is not None]
    edges = described["edges"]
    assert described["missing"] == len(ROWS) - len(values)
    assert sum(described["counts"]) == len(values)
    assert (edges[0], edges[-1]) == (min(values), max(values))
    # The condition that a click on a bar makes chooses what the bar counts.
    first = f'"score" >= {edges[0]!r} and "score" < {edges[1]!r}'
    assert read_numbers(requests, where=first)[1]["total"] == described["counts"][0]
    texts = requests.describe_column({"column": ["a \"b'"]})
    assert sorted(texts["values"]) == [["x", 150], ["y", 150]]
    assert requests.describe_column({"column": ["text"]})["values"] == []  # each is there once


def test_scores_are_columns(web):
    rows = open_collections([web])["out"]
    requests = Requests({"out": rows})
    name = "gopher_quality.words"
    documents, values = rows.read_scores(name)
    score = dict(zip(documents.tolist(), values.tolist(), strict=True))
    expected = sorted((n for n in score if not math.isnan(score[n])), key=lambda n: (score[n], n))
    assert read_numbers(requests, sort=name, count="20")[0] == expected[:20]
    low = sorted(score.values())[50]
    wanted = sorted(n for n in score if score[n] >= low)
    assert read_numbers(requests, where=f'"{name}" >= {low}')[1]["total"] == len(wanted)


def test_raw_parquet_files(tmp_path):
    for name, part in (("a", ROWS[:100]), ("b", ROWS[100:])):
        pq.write_table(pa.Table.from_pylist(part), tmp_path / f"{name}.parquet", row_group_size=30)
    requests = Requests(open_collections([tmp_path / "a.parquet", tmp_path / "b.parquet"]))
    numbers, answer = read_numbers(requests, where="n > 75", count="100")
    assert numbers == [n for n, record in enumerate(ROWS) if record["n"] > 75]
    assert answer["total"] == len(numbers)


def make_queries():
    table = pa.table({"n": [1, 2, 3], "row": ["a", "b", "c"]})
    return ColumnQueries(name_kinds(table.schema), lambda: table)


@pytest.mark.parametrize(
    "condition",
    [
        "n > 1) or (1 = 1", "n > 1; drop table rows", "n >", "nobody = 1", "n = 1, n = 2", "n = 1 limit 5", "",
        "n = (select count(*) from read_csv('{file}'))", "n = (select count(*) from '{file}')",
        "text = (select content from read_text('{file}'))", "n = (select count(*) from glob('/*'))",
        "n = (select count(*) from table_of_the_test)", "n in (copy rows to '{file}.out')",
    ],
)  # fmt: skip
def test_a_condition_is_an_expression_over_one_row_and_nothing_else(tmp_path, condition):
    file = tmp_path / "secret.csv"
    file.write_text("a\n1\n")
    table_of_the_test = pa.table({"n": [1]})  # DuckDB would find it by its name
    queries = make_queries()
    with pytest.raises(UsageError):
        queries.find_rows((condition.format(file=file),))
    assert table_of_the_test.num_rows == 1
    assert os.listdir(tmp_path) == ["secret.csv"]
    assert queries.find_rows(("n > 1",)).tolist() == [1, 2]  # nothing was broken
    assert queries.find_rows(('"row" = \'b\' and "row number" = 1',)).tolist() == [1]
    for setting in ("memory_limit = '9GB'", "enable_external_access = true", "lock_configuration = false"):
        with pytest.raises(Exception, match="locked"):
            queries._connections[0].execute(f"SET {setting}")


def test_a_condition_that_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr(column_queries, "_MAX_SECONDS", 0.05)
    queries = make_queries()
    with pytest.raises(UsageError, match="longer"):
        queries.find_rows(("n = (select sum(a.range) from range(10000000) a, range(10000000) b)",))


def test_without_duckdb_the_table_says_how_to_get_the_rest(folder, monkeypatch):
    monkeypatch.setattr(page_requests, "can_query", lambda: False)
    requests = Requests(open_collections([folder]))
    [info] = requests.describe()
    assert info["columns"] == {}
    assert "[view]" in info["missing"]
    assert len(read_numbers(requests)[0]) == 50
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(UsageError) as error:
        read_numbers(requests, where="n > 1")
    assert "[view]" in str(error.value.help)


def test_a_scan_of_parquet_keeps_the_order_of_its_rows(tmp_path):
    table = pa.table({"n": range(200_000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    queries = ColumnQueries({"n": "number"}, lambda: pads.dataset(str(tmp_path / "a.parquet")))
    assert queries.find_rows(("n % 1000 = 7",)).tolist() == list(range(7, 200_000, 1000))
    assert queries.sort_rows("-n").tolist() == list(range(199_999, -1, -1))
