"""What is quarantined, how much may be, and that nothing is lost on the way."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.core.books import find_imbalances
from gristmill.core.errors import QuarantineError, TooManyBadError, UsageError
from gristmill.core.recipe import Source
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Filter, Length, Limit, Map, Read, Shuffle, Split, Write

FUNCTIONS = """
def rarely_fails(record):
    if record["n"] % 1000 == 500:
        raise ValueError(f"number {record['n']}")
    return record


def always_fails(record):
    raise RuntimeError("out of order")


def fails_behind_the_sample(record):
    if record["n"] >= 100:
        raise RuntimeError("out of order")
    return record


def fails_at_bad(record):
    if "bad" in record["text"]:
        raise ValueError("bad")
    return {**record, "text": record["text"] + "!"}


def fails_for_a_while(record):
    if 3000 <= record["n"] < 3120:
        raise RuntimeError("out of order")
    return record


def odd_errors(record):
    if record["n"] == 7:
        raise ValueError("half a character: \\udcff")
    if record["n"] == 8:
        raise Unspeakable
    if record["n"] == 9:
        raise MemoryError
    if record["n"] == 10:
        raise SystemExit(0)
    return record


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def is_short(record):
    return len(record["text"]) < 4
"""


@pytest.fixture
def calls(tmp_path):
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return lambda name: f"{path}:{name}"


def good(count):
    return [json.dumps({"n": n, "text": f"text {n}"}).encode() for n in range(count)]


def test_bad_lines_in_the_middle(mill, tmp_path):
    lines = good(2000)
    bad = {500: b"{broken", 501: b'{"text": 5}', 900: b"\xff\xfe", 901: b'{"text": "a"} {"text": "b"}', 1999: b"null"}
    for number, line in bad.items():
        lines[number] = line
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    result = mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/*.jsonl")}, [Write(format="jsonl")]))
    dataset = open_dataset(mill.output)
    assert len(dataset) == 1995
    [account] = result.books["web"]
    assert (account.records_in, account.records_out, sum(account.quarantined.values())) == (2000, 1995, 5)
    entries = list(dataset.quarantine())
    starts = [sum(len(line) + 1 for line in lines[:number]) for number in bad]
    assert [entry["position"] for entry in entries] == starts
    assert all(entry["file"] == "a.jsonl" and entry["source"] == "web" for entry in entries)
    assert all(entry["step"] == "read" and entry["error"] and entry["reason"] for entry in entries)
    assert [entry.get("record") for entry in entries] == [
        line.decode() if line.isascii() else None for line in bad.values()
    ]
    assert not result.manifest.environment_dependent


def test_a_function_that_raises_now_and_then(mill, tmp_path, calls):
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(good(10_000)))
    step = Map(call=calls("rarely_fails"))
    result = mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/*.jsonl")}, [step, Write(format="jsonl")]))
    assert result.manifest.quarantine.counts == {"web": {"exception": 10}}
    dataset = open_dataset(mill.output)
    assert len(dataset) == 9990
    entry = next(dataset.quarantine())
    assert (entry["step"], entry["reason"]) == ("map", "exception")
    assert "number 500" in entry["error"]
    assert "rarely_fails" in entry["traceback"]
    assert json.loads(entry["record"])["n"] == 500


def test_a_function_that_always_raises_is_refused_by_the_plan(mill, tmp_path, calls):
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(good(10_000)))
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/*.jsonl")}, [Map(call=calls("always_fails"))])
    with pytest.raises(UsageError, match=r"none of 100 sample records could be used.*out of order"):
        mill.run(recipe)
    assert not mill.output.exists()


def test_a_function_that_nearly_always_raises_stops_the_run_early(mill, tmp_path, calls):
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(good(100)))  # the smallest file is the one that is tried
    lines = [json.dumps({"n": 100 + n, "text": "more than a cell " * 20}).encode() for n in range(20_000)]
    (tmp_path / "b.jsonl").write_bytes(b"\n".join(lines))
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/*.jsonl")}, [Map(call=calls("fails_behind_the_sample"))])
    with pytest.raises(TooManyBadError, match="out of order") as caught:
        mill.run(recipe)
    assert "attempt" not in "".join(caught.value.__notes__)  # trying again would find the same
    assert not (mill.output / "manifest.json").exists()


def test_a_hundred_in_a_row_stop_the_run_wherever_they_stand(mill, tmp_path, calls):
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(good(20_000)))
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/*.jsonl")}, [Map(call=calls("fails_for_a_while"))])
    with pytest.raises(TooManyBadError, match="120 records in a row"):
        mill.run(recipe)


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_whatever_a_function_raises_concerns_its_record(mill, tmp_path, calls, backend):
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(good(200)))
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/*.jsonl")}, [Map(call=calls("odd_errors"))])
    result = mill.run(recipe, backend=backend, workers=1)
    assert result.manifest.quarantine.counts == {"web": {"exception": 3, "out_of_memory": 1}}
    entries = {json.loads(entry["record"])["n"]: entry["error"] for entry in result.dataset().quarantine()}
    assert "udcff" in entries[7]
    assert "message cannot be shown" in entries[8]
    assert entries[10] == "SystemExit: 0"


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_texts_that_cannot_be_used_in_columns(mill, tmp_path, name):
    table = pa.table({"text": ["a", None, "b" * 2000, "c"] * 5})
    if name == "a.parquet":
        pq.write_table(table, tmp_path / name)
    else:
        with pa.ipc.new_file(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    read = Read(read=str(tmp_path / name), max_record_bytes=1000)
    result = mill.run(mill.recipe({"web": read}, [], max_quarantine=1.0))
    assert result.manifest.quarantine.counts == {"web": {"null_text": 5, "too_large": 5}}
    assert [entry["position"] for entry in result.dataset().quarantine()][:3] == [1, 2, 5]


def test_blank_lines_are_in_the_books(mill, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n\n  \n{"text": "b"}\n\n')
    result = mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/*.jsonl")}, []))
    assert result.books["web"][0].counters == {"blank": 3}


def test_all_records_may_be_set_aside_where_the_recipe_says_so(mill, tmp_path, calls):
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(good(500)))
    recipe = mill.recipe(
        {"web": Read(read=f"{tmp_path}/*.jsonl")},
        [Map(call=calls("always_fails"))],
        max_quarantine=1.0,
        allow_empty=True,
    )
    assert mill.run(recipe).manifest.quarantine.counts == {"web": {"exception": 500}}


def test_a_function_that_always_raises_on_tiny_files_too(mill, tmp_path, calls):
    for number in range(150):
        (tmp_path / f"{number}.jsonl").write_text('{"text": "a"}')
    recipe = mill.recipe({"web": Read(read=f"{tmp_path}/*.jsonl")}, [Map(call=calls("always_fails"))])
    with pytest.raises(TooManyBadError, match="out of order"):
        mill.run(recipe)


def test_bad_files_between_good_ones_are_not_in_a_row(mill, tmp_path):
    """120 files of nothing but one bad line each are below the limit of all records, and never 100 in a row."""
    for number in range(240):
        lines = good(100) if number % 2 else [b"{bad"]
        (tmp_path / f"{number:03d}.jsonl").write_bytes(b"\n".join(lines))
    result = mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/*.jsonl")}, []))
    assert result.manifest.quarantine.counts == {"web": {"invalid_json": 120}}


def test_more_than_may_be_set_aside(mill, tmp_path):
    lines = good(1000)
    lines[::50] = [b"{bad"] * 20
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    reads = {"web": Read(read=f"{tmp_path}/*.jsonl")}
    with pytest.raises(QuarantineError, match=r"20 of 1,000"):
        mill.run(mill.recipe(reads, []))
    assert not (mill.output / "manifest.json").exists()
    result = mill.run(mill.recipe(reads, [], max_quarantine=0.02))
    assert result.manifest.quarantine.counts == {"web": {"invalid_json": 20}}


ARRAY = b"[" + b",\n".join(good(1000)) + b"]"
JOINED = {
    "a.jsonl": b"\n".join(good(500)) + b"\n" + bytes(20_000) + b"\n" + b"\n".join(good(500)),
    "a.json": ARRAY.replace(b"},", b"}],", 500).replace(b"}],", b"},", 499),
    "a.csv": b"text\n" + b'"fine"\n' * 500 + b'"not closed\n' + b"lost\n" * 500,
    "a.jsonl.gz": gzip.compress(b"\n".join(good(500)) + b"\n" + b"{" * 20_000 + b"\n" + b"\n".join(good(500))),
}
"""Files in which damage has joined many records to one."""


@pytest.mark.parametrize("name", JOINED)
def test_half_a_file_does_not_pass_as_one_bad_record(mill, tmp_path, name):
    (tmp_path / name).write_bytes(JOINED[name])
    reads = {"web": Read(read=str(tmp_path / name))}
    with pytest.raises(QuarantineError, match="bytes are malformed"):
        mill.run(mill.recipe(reads, []))
    assert mill.run(mill.recipe(reads, [], max_quarantine=1.0)).manifest.quarantine.counts["web"]


def test_each_source_is_judged_by_itself(mill, tmp_path):
    (tmp_path / "good.jsonl").write_bytes(b"\n".join(good(10_000)))
    lines = good(100)
    lines[:50] = [b"{bad"] * 50
    (tmp_path / "bad.jsonl").write_bytes(b"\n".join(lines))
    reads = {name: Read(read=f"{tmp_path}/{name}.jsonl") for name in ("good", "bad")}
    with pytest.raises(QuarantineError, match="source bad"):
        mill.run(mill.recipe(reads, []))


def test_a_record_set_aside_after_a_barrier_keeps_its_file(mill, tmp_path, calls):
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(good(2000)))
    steps = [Shuffle(), Map(call=calls("rarely_fails")), Write(format="jsonl")]
    mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/*.jsonl")}, steps))
    entries = list(open_dataset(mill.output).quarantine())
    assert [entry["file"] for entry in entries] == ["a.jsonl"] * 2


LINE = st.one_of(
    st.text('ab \\"bad{}é\n', max_size=8).map(lambda text: json.dumps({"text": text}).encode()),
    st.sampled_from(
        [b"{", b'{"text": null}', b'{"text": 1}', b"[]", b'{"x": 1}', b"\xff", b"", b"  ", b'{"text":"a"}x']
    ),
    st.just(b'{"text": "bad"}'),
)
STEPS = {
    "plain": lambda calls: [],
    "functions": lambda calls: [Filter(call=calls("is_short")), Map(call=calls("fails_at_bad"))],
    "limit": lambda calls: [Map(call=calls("fails_at_bad")), Limit(max_records=5), Length(min_chars=3)],
    "shuffle": lambda calls: [Length(max_chars=5), Shuffle(), Map(call=calls("fails_at_bad")), Split(validation=0.5)],
}


@pytest.mark.parametrize("steps", STEPS)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(files=st.lists(st.lists(LINE, max_size=12), min_size=1, max_size=4), format=st.sampled_from(["jsonl", "arrow"]))
def test_books_balance_whatever_comes(mill, tmp_path_factory, calls, steps, files, format):
    folder = tmp_path_factory.mktemp("in")
    files[0].insert(0, b'{"text": "good"}')  # a source without any text is refused by the plan
    for number, lines in enumerate(files):
        (folder / f"{number}.jsonl").write_bytes(b"\n".join(lines))
    reads = {
        "web": Source(Read(read=f"{folder}/*.jsonl")),
        "one": Source(Read(read=f"{folder}/0.jsonl"), [Length(min_chars=2)]),
    }
    recipe = mill.recipe(reads, [*STEPS[steps](calls), Write(format=format)], max_quarantine=1.0, allow_empty=True)
    mill.fresh_files(recipe)  # which verifies
    dataset = open_dataset(mill.output)
    manifest = dataset.manifest
    num_lines = sum(len([line for line in lines if line.strip()]) for lines in files)
    accounts = manifest.books["web"]
    assert accounts[0].records_in == num_lines
    for source in reads:
        assert not find_imbalances(manifest.books[source])
        steps_done = [account.step for account in manifest.books[source] if account.step != "columns"]
        assert steps_done == [
            "read",
            *(["length"] if source == "one" else []),
            *(step.name for step in STEPS[steps](calls)),
        ]
    given_out = sum(manifest.books[source][-1].records_out for source in reads)
    assert len(dataset) == given_out == sum(1 for _ in dataset)
    assert len(list(dataset.quarantine())) == sum(
        account.quarantined.total() for source in reads for account in manifest.books[source]
    )


@pytest.mark.parametrize("records_each", [300, 30])
def test_files_unlike_the_others_are_named_with_a_narrower_pattern(mill, tmp_path, records_each):
    """Long files have a hundred bad records in a row; of short ones too many are bad altogether."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("c1", "c2", "c3"):
        (folder / f"{name}.jsonl").write_bytes(b"\n".join(good(200)))
    pairs = b"\n".join(b'{"a": %d, "b": 1}' % number for number in range(records_each))
    (folder / "c1.jsonl.pairs.jsonl").write_bytes(pairs)
    with pytest.raises((TooManyBadError, QuarantineError)) as caught:
        mill.run(mill.recipe({"web": Read(read=f"{folder}/*.jsonl")}, [Write(format="jsonl")]))
    [note] = [note for note in caught.value.__notes__ if "unlike" in note]
    assert f"{folder}/c1.jsonl.pairs.jsonl is unlike" in note
    assert f"{folder}/c?.jsonl" in caught.value.help
    recipe = mill.recipe({"web": Read(read=f"{folder}/c?.jsonl")}, [Write(format="jsonl")])
    assert len(mill.run(recipe).dataset()) == 600


def test_files_that_are_all_alike_are_not_called_unlike(mill, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n".join([*good(50), *([b'{"a": 1}'] * 300)]))
    with pytest.raises(TooManyBadError) as caught:
        mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/*.jsonl")}, [Write(format="jsonl")]))
    assert "unlike" not in "".join(getattr(caught.value, "__notes__", []))
