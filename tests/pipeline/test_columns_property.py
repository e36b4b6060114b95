"""Any records, from every format to every format: no value is lost or changed without a count.

The reference is what Python's `json` makes of the input. Nulls and missing keys are one; a number is its value, whether
it was written as 1 or as 1.0; of a key that is there twice the last counts.
"""

import json
import math
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gristmill_testing.record_forms import to_tar, without_nulls, written_records
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.core.recipe import Recipe
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.readers import schema as read_schema
from gristmill.shards.verify import verify
from gristmill.steps import Read, Write

FORMATS = ["jsonl", "parquet", "arrow", "webdataset"]
EXAMPLES = settings(
    max_examples=7,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KEYS = st.sampled_from(["a", "b", "n", "größe", "a.b", "origin", "record", "input_ids", "split", "source", ""]) | TEXTS
NUMBERS = st.sampled_from(["1e400", "-1e999", "9" * 5000, "-" + "1" * 30, "9007199254740993", "9223372036854775808"])


class Literal(str):
    """A number as it is written."""

    __slots__ = ()


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
    | NUMBERS.map(Literal)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(KEYS, inner), max_size=3).map(tuple),
    max_leaves=8,
)
FIELDS = st.lists(st.tuples(KEYS.filter(lambda key: key not in ("text", "other_fields")), VALUES), max_size=5)


def written(value):
    """A value as JSON; a tuple of pairs is an object, in which a key may be there twice."""
    if isinstance(value, Literal):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, tuple):
        return "{" + ", ".join(f"{json.dumps(key)}:{written(inner)}" for key, inner in value) + "}"
    return json.dumps(value)


def loaded(line):
    return json.loads(line, parse_int=_whole, parse_float=_number)


def _whole(digits):
    return int(digits) if len(digits) < 4000 else Decimal(digits)


def _number(digits):
    return value if math.isfinite(value := float(digits)) else Decimal(digits)


def comparable(value):
    """With types told apart that Python takes for equal: true is not 1."""
    if isinstance(value, dict):
        return {key: comparable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [comparable(inner) for inner in value]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    return ("number", str(value) if isinstance(value, float) and not math.isfinite(value) else Decimal(value))


def run(tmp_path_factory, read, to):
    output = tmp_path_factory.mktemp("run") / "out"
    recipe = Recipe(sources={"web": read}, steps=[Write(format=to)], output=str(output))
    result = run_recipe(recipe, RunOptions(backend="serial", progress=False))
    assert verify(output)
    assert result.manifest.quarantine.counts == {}
    measures = sum((account.counters for account in result.manifest.books["web"]), Counter())
    return output, measures


@pytest.fixture(params=[1, 1 << 20], ids=["small sample", "whole sample"])
def sample_bytes(request, monkeypatch):
    """How much of the input the plan looks at."""
    monkeypatch.setattr(read_schema, "_SAMPLE_BYTES", request.param)
    monkeypatch.setattr(read_schema, "_ALL_SAMPLES_BYTES", request.param)


@pytest.mark.full
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("source", ["jsonl", "json"])
@EXAMPLES
@given(rows=st.lists(FIELDS, min_size=1, max_size=5))
def test_json(tmp_path_factory, sample_bytes, source, to, rows):
    folder = tmp_path_factory.mktemp("in")
    lines = [written((("text", f"text {number}"), *fields)) for number, fields in enumerate(rows)]
    content = "\n".join(lines) if source == "jsonl" else f"[\n  {', '.join(lines)}]"
    (folder / f"in.{source}").write_text(content)
    output, measures = run(tmp_path_factory, Read(read=str(folder / f"in.{source}")), to)
    expected = [comparable(without_nulls(loaded(line))) for line in lines]
    assert [comparable(record) for record in written_records(output, to, loads=loaded)] == expected
    assert not measures["nan_as_null"]


@pytest.mark.full
@pytest.mark.parametrize("to", FORMATS)
@EXAMPLES
@given(
    rows=st.lists(
        st.dictionaries(KEYS.filter(lambda key: key != "text"), TEXTS | st.integers(), max_size=4),
        min_size=1,
        max_size=5,
    )
)
def test_tars(tmp_path_factory, sample_bytes, to, rows):
    folder = tmp_path_factory.mktemp("in")
    records = [{"text": f"text {number}", **fields} for number, fields in enumerate(rows)]
    (folder / "in.tar").write_bytes(to_tar(records))
    output, _ = run(tmp_path_factory, Read(read=str(folder / "in.tar"), text="txt"), to)
    found = written_records(output, to, loads=loaded, has_keys=True)
    expected = [without_nulls(record) for record in records]
    assert [record.pop("__key__") for record in found] == [f"{number:04d}" for number in range(len(rows))]
    # A tar that is written as a tar keeps its members; other formats have a column for each.
    assert [
        record if to == "webdataset" else {"text": record["text"], **record["json"]} for record in found
    ] == expected


TYPES = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "double": (pa.float64(), st.floats()),
    "float": (pa.float32(), st.floats(width=32)),
    "string": (pa.string(), TEXTS),
    "bool": (pa.bool_(), st.booleans()),
    "list": (pa.list_(pa.float64()), st.lists(st.none() | st.floats(), max_size=3)),
    "struct": (
        pa.struct([("x", pa.float64()), ("y", pa.string())]),
        st.fixed_dictionaries({"x": st.none() | st.floats(), "y": st.none() | TEXTS}),
    ),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), TEXTS),
    "null": (pa.null(), st.none()),
}
COLUMN = st.sampled_from(list(TYPES)).flatmap(
    lambda name: st.tuples(st.just(name), st.lists(st.none() | TYPES[name][1], min_size=3, max_size=3))
)
TABLE = st.dictionaries(KEYS.filter(lambda key: key not in ("text", "other_fields")), COLUMN, max_size=4)


@pytest.mark.full
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("source", ["parquet", "arrow"])
@EXAMPLES
@given(tables=st.lists(TABLE, min_size=1, max_size=3), footers=st.integers(1, 3))
def test_tables(tmp_path_factory, monkeypatch, source, to, tables, footers):
    monkeypatch.setattr(read_schema, "_MAX_LOCAL_FOOTERS", footers)
    folder = tmp_path_factory.mktemp("in")
    expected = []
    for number, columns in enumerate(tables):
        arrays = {name: pa.array(values, TYPES[kind][0]) for name, (kind, values) in columns.items()}
        table = pa.table({"text": [f"text {number} {row}" for row in range(3)], **arrays})
        path = folder / f"{number}.{source}"
        if source == "parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_stream(str(path), table.schema) as writer:
                writer.write_table(table)
        expected += table.to_pylist()
    output, measures = run(tmp_path_factory, Read(read=str(folder)), to)
    found = written_records(output, to, loads=loaded)
    num_lost = 0
    for record, original in zip(found, expected, strict=True):
        num_lost += check_same(record, without_nulls(original))
    assert measures["nan_as_null"] == num_lost


def check_same(found, original):
    """How many NaN and infinities became null; everything else must be equal."""
    if isinstance(original, float) and not math.isfinite(original):
        if found is None:
            return 1
        assert repr(found) == repr(original)
        return 0
    if isinstance(original, dict):
        assert not found.keys() - original.keys()
        return sum(check_same(found.get(key), inner) for key, inner in original.items())
    if isinstance(original, list):
        assert len(found) == len(original)
        return sum(map(check_same, found, original))
    assert comparable(found) == comparable(original)
    return 0
