"""From a web archive to texts, in a recipe."""

import pytest
from gristmill_testing.web_archives import crawl, pack_members, warc_record

from gristmill.core.errors import UsageError
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Html, Read, Url, Write

pytest.importorskip("resiliparse")


@pytest.fixture
def archive(tmp_path):
    records = [*crawl(60), warc_record("response", b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p></p>")]
    path = tmp_path / "crawl.warc.gz"
    path.write_bytes(pack_members(records))
    return path


def test_pages_become_texts(mill, archive):
    steps = [Url(domains=["site3.example.com"]), Html(), Write(format="jsonl")]
    result = mill.run(mill.recipe({"web": Read(read=str(archive))}, steps))
    records = list(open_dataset(mill.output))
    numbers = [number for number in range(60) if number % 7 != 3]
    assert [record["url"].rpartition("/")[2] for record in records] == [str(number) for number in numbers]
    for number, record in zip(numbers, records, strict=True):
        assert record["text"] == f"Page {number} says {'word ' * 200}& more."
    read, url, html = result.books["web"][:3]
    assert read.counters["skipped_request"] == 60
    assert url.dropped == {"blocked_domain": 60 - len(numbers)}
    assert html.dropped == {"empty": 1}


def test_the_same_bytes_for_any_workers(mill, archive):
    mill.layout = UnitLayout(unit_bytes=2000)
    recipe = mill.recipe({"web": Read(read=str(archive))}, [Html(), Write(format="jsonl")])
    expected = mill.fresh_files(recipe)
    assert mill.fresh_files(recipe, backend="processes", workers=2) == expected


def test_only_named_columns(mill, archive):
    recipe = mill.recipe({"web": Read(read=str(archive), columns=["host"])}, [Write(format="parquet")])
    mill.run(recipe)
    assert sorted(open_dataset(mill.output)[0]) == ["host", "text"]
    with pytest.raises(UsageError, match='no column "title"'):
        mill.run(mill.recipe({"web": Read(read=str(archive), columns=["title"])}, [Write(format="jsonl")]))
