import gzip
import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gristmill_testing.small_tokenizers import trained

from gristmill.core.errors import UsageError
from gristmill.core.recipe import Recipe
from gristmill.pipeline.inspecting.trace import find_removed_parts, read_removed_document, trace, trace_wanted
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.shards.dataset import Origin, open_dataset
from gristmill.steps import Deduplicate, Length, Pack, Read, Render, Tokenize, Write
from gristmill.steps.sampling import Shuffle

RECORDS = [{"text": f"document {n} " + "x" * (n % 97), "n": n} for n in range(20_000)]


def _jsonl(folder):
    lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    (folder / "a.jsonl").write_text("\n\n" + lines)
    return Read(read="a.jsonl")


def _gzip(folder):
    (folder / "a.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in RECORDS).encode()))
    return Read(read="a.jsonl.gz")


def _parquet(folder):
    pq.write_table(pa.Table.from_pylist(RECORDS), folder / "a.parquet", row_group_size=3000)
    return Read(read="a.parquet")


def _tar(folder):
    with tarfile.open(folder / "a.tar", "w") as tar:
        for record in RECORDS[:500]:
            for suffix, content in (("json", json.dumps(record).encode()), ("txt", record["text"].encode())):
                member = tarfile.TarInfo(f"{record['n']:06}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return Read(read="a.tar", text="txt")


@pytest.mark.parametrize("write", [_jsonl, _gzip, _parquet, _tar], ids=lambda function: function.__name__[1:])
def test_every_record_leads_back_to_itself(tmp_path, write):
    recipe = Recipe(
        sources={"web": write(tmp_path)},
        steps=[Shuffle(), Write(format="arrow")],
        output="out",
        folder=str(tmp_path),
    )
    dataset = run_recipe(recipe, RunOptions(backend="serial", progress=False)).dataset()
    for number in (0, 17, len(dataset) // 2, len(dataset) - 1, -1):
        found = trace(dataset, number)
        [place] = found.places
        original = json.loads(place.original) if isinstance(place.original, str) else place.original
        assert place.state == "unchanged"
        assert original["text"] == found.record["text"] == dataset[number]["text"]


def test_number_out_of_range(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    recipe = Recipe(sources={"web": Read(read="a.jsonl")}, output="out", folder=str(tmp_path))
    dataset = run_recipe(recipe, RunOptions(backend="serial", progress=False)).dataset()
    for number in (1, -2):
        with pytest.raises(UsageError, match="0 to 0"):
            trace(dataset, number)


def test_a_source_with_columns_of_our_names(mill, tmp_path):
    """Another column is the text: the file's own `text` is no column, and the original is found again."""
    table = pa.table({"text": ["x", "y"], "body": ["one", "two"], "url": ["u", "v"]})
    pq.write_table(table, tmp_path / "a.parquet")
    read = Read(read=str(tmp_path / "a.parquet"), text="body", columns=["url"])
    for kind in ("arrow", "jsonl"):
        mill.fresh_files(mill.recipe({"web": read}, [Write(format=kind)]))
        found = trace(open_dataset(mill.output), 1)
        rest = {"other_fields": {"text": "y"}} if kind == "jsonl" else {}
        assert found.record == {"text": "two", "url": "v", **rest}
        assert found.places[0].original["text"] == "two"


def test_sources_of_different_formats_have_one_type_of_text(mill, tmp_path):
    pq.write_table(pa.table({"text": ["a"], "url": ["u"]}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"text": "b", "url": "v"}\n')
    sources = {name: Read(read=f"{tmp_path}/{name}.*", columns=["url"]) for name in "ab"}
    mill.run(mill.recipe(sources, [Write(format="arrow")]))
    assert [record["url"] for record in open_dataset(mill.output)] == ["u", "v"]


def test_by_origin_and_by_number(mill, tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"body": text}) for text in ("one", "two", "one", "three", "two")]
    path.write_text("\n".join(lines))
    recipe = mill.recipe({"web": Read(read=str(path), text="body")}, [Deduplicate(), Write(format="arrow")])
    mill.run(recipe)
    dataset = open_dataset(mill.output)
    first = read_removed_document(dataset, 0)
    assert (first.text, first.survivor_text, first.reason, first.similarity) == ("one", "one", "duplicate", 1.0)
    position = path.read_text().rindex('{"body": "two"}')
    for name in (str(path), "a.jsonl"):
        [removed] = find_removed_parts(dataset, Origin("web", name, position, 0))
        assert removed == {0: read_removed_document(dataset, 1)}
    assert removed[0].survivor.position == path.read_text().index('{"body": "two"}')
    assert find_removed_parts(dataset, Origin("web", str(path), 0, 0)) == [{}]
    assert find_removed_parts(dataset, Origin("other", str(path), position, 0)) == [{}]
    with pytest.raises(UsageError):
        read_removed_document(dataset, 2)
    path.write_text("changed")
    assert read_removed_document(dataset, 0).text is None


def test_what_is_in_against_is_read_as_its_own_step_says(mill, tmp_path):
    for name, field, text in (("a", "question", "one"), ("b", "answer", "two")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({field: text, "text": f"not {text}"}) + "\n")
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("one", "two", "three")))
    steps = [
        Deduplicate(against={"read": str(tmp_path / f"{name}.jsonl"), "text": field})
        for name, field in (("a", "question"), ("b", "answer"))
    ]
    mill.run(mill.recipe({"web": Read(read=str(path))}, [*steps, Write(format="jsonl")]))
    dataset = open_dataset(mill.output)
    assert [read_removed_document(dataset, number).survivor_text for number in range(2)] == ["one", "two"]


def test_a_chat_leads_back_to_its_messages(tmp_path):
    messages = [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "answer"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"id": "a", "messages": messages}) + "\n")
    recipe = Recipe(
        sources={"web": Read(read="a.jsonl")},
        steps=[Render(template="chatml"), Write()],
        output="out",
        folder=str(tmp_path),
    )
    dataset = run_recipe(recipe, RunOptions(backend="serial", progress=False)).dataset()
    [place] = trace(dataset, 0).places
    assert json.loads(place.original)["messages"] == messages


def test_a_wanted_record_leads_to_the_rows_with_its_pieces(tmp_path):
    trained(tmp_path / "tokenizer")
    lines = [{"id": number, "text": f"{number} " * (200 * (number != 1))} for number in range(5)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe = Recipe(
        sources={"web": Read(read="a.jsonl")},
        steps=[Length(min_chars=5), Tokenize(tokenizer="tokenizer"), Pack(row_length=64), Write()],
        output="out",
        folder=str(tmp_path),
    )
    dataset = run_recipe(recipe, RunOptions(backend="serial", progress=False)).dataset()
    for line in lines:
        found = trace_wanted(dataset, f"id={line['id']}", str)
        assert json.loads(found.original) == line
        expected = [number for number in range(len(dataset)) if found.origin in dataset.origins(number)]
        assert found.numbers == expected
        assert bool(expected) == (line["id"] != 1)
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(UsageError, match="has changed"):
        trace_wanted(dataset, "id=1", str)
