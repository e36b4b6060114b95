"""CSV through the pipeline: like the same records as JSON lines, cut for all workers, and every row can be traced."""

import csv
import gzip
import json

import pytest

from gristmill.core.errors import UsageError
from gristmill.pipeline.inspecting.explain import explain
from gristmill.pipeline.inspecting.trace import trace
from gristmill.pipeline.planning.plan import make_plan
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Length, Read, Write

ROWS = [{"id": str(number), "text": f'line "one" of {number},\nline two'} for number in range(400)]


def write_csv(path, rows, **keys):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), **keys)
        writer.writeheader()
        writer.writerows(rows)


def shards(files):
    return [content for name, content in sorted(files.items()) if name.startswith("train/web/")]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_rows_are_records(mill, tmp_path, name):
    write_csv(tmp_path / "plain", ROWS, delimiter="\t" if ".tsv" in name else ",")
    data = (tmp_path / "plain").read_bytes()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/{name}")}, [Length(min_chars=5), Write(format="jsonl")])
    mill.run(recipe)
    dataset = open_dataset(mill.output)
    assert list(dataset) == ROWS
    place = trace(dataset, 333).places[0]
    assert (place.position_kind, json.loads(place.original)) == ("byte", ROWS[333])
    explained = explain(recipe, str(tmp_path / name), 7)
    assert explained.record["text"] == ROWS[7]["text"]


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_all_columns_come_along_with_the_types_asked_for(mill, tmp_path, format):
    write_csv(tmp_path / "a.csv", ROWS)
    read = Read(read=f"{tmp_path}/a.csv", types={"id": "int64"})
    mill.run(mill.recipe({"web": read}, [Write(format=format)]))
    assert [(row["id"], row["text"]) for row in open_dataset(mill.output)] == [
        (int(row["id"]), row["text"]) for row in ROWS
    ]


def test_a_file_of_several_units_is_cut_like_lines(mill, tmp_path):
    rows = [{"id": str(number), "text": f'{number},\n"{"x" * (1 << 20)}"'} for number in range(70)]
    write_csv(tmp_path / "a.csv", rows)
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/a.csv")}, [Write(format="jsonl")])
    assert make_plan(recipe, backend="serial").outline().sources[0].num_units > 1
    found = [
        shards(
            mill.fresh_files(
                mill.recipe({"web": Read(read=f"{tmp_path}/a.csv")}, [Write(format="jsonl")], slice_bytes=size)
            )
        )
        for size in (64 << 20, 10 << 20)
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 2
    assert [json.loads(line) for content in found[0] for line in content.splitlines()] == rows


def test_many_small_files_with_columns_in_any_order(mill, tmp_path):
    for number in range(20):
        names = ["id", "text"] if number % 2 else ["text", "id"]
        write_csv(tmp_path / f"{number:02d}.csv", [{name: ROWS[number][name] for name in names}])
    mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/*.csv")}, [Write(format="jsonl")]))
    assert [record["id"] for record in open_dataset(mill.output)] == [str(number) for number in range(20)]


def test_another_encoding_and_columns_not_told_apart_are_helped(mill, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("text,id\nnaïve,1\n".encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        make_plan(mill.recipe({"web": Read(read=str(path))}, [Write(format="jsonl")]), backend="serial")
    assert "encoding" in caught.value.help
    path.write_text("text;id\na;1;2\nb;1;2\n")
    with pytest.raises(UsageError) as caught:
        make_plan(mill.recipe({"web": Read(read=str(path), types={"id": "int64"})}, [Write(format="jsonl")]))
    assert "delimiter" in caught.value.help
