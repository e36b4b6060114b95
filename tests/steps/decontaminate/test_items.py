"""Benchmark records of the usual shapes, and files of the usual formats."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.core.errors import UsageError
from gristmill.steps import Decontaminate
from gristmill.steps.decontaminate.items import ItemKeys, make_item


@pytest.mark.parametrize(
    ("record", "texts", "choices"),
    [
        ({"question": "How?", "answer": "So. #### 18"}, {"question": "How?", "answer": "So. #### 18"}, ""),
        ({"question": "Q", "choices": ["x", "y"], "answer": 1}, {"question": "Q", "answer": "y"}, "x\ny"),
        ({"question": "Q", "choices": ["x", "y"], "answer": "A"}, {"question": "Q", "answer": "x"}, "x\ny"),
        ({"question": "Q", "A": "x", "B": "y", "answer": "B"}, {"question": "Q", "answer": "y"}, "x\ny"),
        (
            {"question": "Q", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "B"},
            {"question": "Q", "answer": "y"},
            "x\ny",
        ),
        (
            {"question": {"stem": "Q", "choices": [{"text": "x", "label": "A"}, {"text": "y"}]}, "answerKey": "A"},
            {"question": "Q", "answer": "x"},
            "x\ny",
        ),
        ({"Question": "Q", "Best Answer": "a", "Type": "t"}, {"question": "Q", "answer": "a"}, ""),
        ({"turns": ["first", "second"]}, {"question": "first"}, ""),
        ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Q"}]}, {"question": "Q"}, ""),
        ({"ctx": "A man", "endings": ["sits", "runs"], "label": "1"}, {"question": "A man"}, "sits\nruns"),
        (
            {"task_id": "HumanEval/0", "prompt": "def f():", "canonical_solution": "  return 1"},
            {"question": "def f():", "answer": "  return 1"},
            "",
        ),
        (
            {"context": "Long.", "question": "Who?", "answers": {"text": ["Ann", "she"], "answer_start": [1, 2]}},
            {"question": "Who?", "answer": "Ann"},
            "",
        ),
        ({"problem": "1+1", "solution": "2"}, {"question": "1+1", "answer": "2"}, ""),
        ({"question": "True?", "answer": True}, {"question": "True?"}, ""),
    ],
)
def test_shapes(record, texts, choices):
    item = make_item("b", 4, record, ItemKeys())
    assert (dict(item.texts), item.choices) == (texts, choices)
    assert item.name == f"b/{record.get('task_id', 4)}"


def test_named_keys():
    record = {"ask": "Why?", "question": "other", "say": "so", "n": 7}
    item = make_item("b", 0, record, ItemKeys(question="ask", answer="say", id="n"))
    assert (item.name, dict(item.texts)) == ("b/7", {"question": "Why?", "answer": "so"})


@pytest.mark.parametrize("record", [{}, {"label": 1}, {"question": "  "}, {"question": 3}])
def test_a_record_without_a_question_is_refused(record):
    with pytest.raises(UsageError, match="has no question"):
        make_item("b", 0, record, ItemKeys())


ROWS = [{"question": "How many are there?", "answer": "3"}, {"question": "And now, with ünïcode?", "answer": "4"}]


@pytest.mark.parametrize(
    "name", ["a.jsonl", "bom.jsonl", "a.jsonl.gz", "a.json", "lines.json", "list.json", "a.csv", "a.parquet"]
)
def test_formats(tmp_path, name):
    path = tmp_path / name
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif name.endswith("csv"):
        path.write_text("question,answer\n" + "".join(f'"{row["question"]}",{row["answer"]}\n' for row in ROWS))
    elif name in ("a.json", "list.json"):
        path.write_text(json.dumps(ROWS if name == "a.json" else {"canary": "x", "examples": ROWS}, indent=1))
    else:
        path.write_bytes({"a.jsonl.gz": gzip.compress(lines), "bom.jsonl": b"\xef\xbb\xbf" + lines}.get(name, lines))
    step = Decontaminate(benchmarks={"b": name}).resolve(str(tmp_path))
    assert [dict(item.texts) for item in step.items] == [dict(row) for row in ROWS]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "no records"),
        ("a.jsonl", b'{"question": "a"}\n{broken', "record 2: the line is not JSON"),
        ("a.jsonl", b"[1, 2]", "has no question"),
        ("a.jsonl", b"\xff\xfe", "record 1"),
        ("a.jsonl", b'{"question":' + b"[" * 100_000, "record 1: .*(recursion|nested)"),
        ("a.csv", b"question,answer\none, two, three\n", "record 1: 3 fields"),
        ("a.csv", "question\nOù?\n".encode("latin-1"), "(?i)utf-8"),
    ],
    ids=["empty", "broken", "numbers", "bytes", "deep", "long-row", "latin"],
)
def test_damaged_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        Decontaminate(benchmarks={"b": name}).resolve(str(tmp_path))


def test_a_long_value_of_csv_is_read(tmp_path):
    (tmp_path / "a.csv").write_text("question,context\nWho was it?," + "word " * 40_000 + "\n")
    assert len(Decontaminate(benchmarks={"b": "a.csv"}).resolve(str(tmp_path)).items) == 1


def test_a_file_that_does_not_exist(tmp_path):
    with pytest.raises(UsageError, match=r"none\.jsonl"):
        Decontaminate(benchmarks={"b": "none.jsonl"}).resolve(str(tmp_path))


@pytest.mark.parametrize(
    "keys",
    [
        {"benchmarks": {}},
        {"benchmarks": {"a/b": "x"}},
        {"benchmarks": {"a": {"file": "x"}}},
        {"benchmarks": {"a": {"question": "x"}}},
        {"benchmarks": {"a": "x"}, "min_coverage": 0},
        {"benchmarks": {"a": "x"}, "min_coverage": float("nan")},
        {"benchmarks": {"a": "x"}, "ngram": 3},
        {"benchmarks": {"a": "x"}, "window": 0.5},
        {"benchmarks": {"a": "x"}, "action": "remove"},
        {"benchmarks": {"a": "x"}, "max_source_loss": 2},
    ],
)
def test_wrong_keys_are_refused(keys):
    with pytest.raises(UsageError):
        Decontaminate(**keys)
