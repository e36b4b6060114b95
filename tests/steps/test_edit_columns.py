"""New values for columns: the JSON record follows, and a record that stays keeps its bytes."""

import numpy as np
import pyarrow as pa

from gristmill.core.records import documents
from gristmill.steps.edit_columns import find_matches, has_source_column, read_content, with_fields, with_source


def test_a_field_replaces_one_of_its_name_in_its_place():
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    changed = with_fields(schema, [pa.field("a", pa.float64()), pa.field("c", pa.bool_())])
    assert changed == pa.schema([("a", pa.float64()), ("b", pa.string()), ("c", pa.bool_())])


def test_a_source_is_named_once():
    batch = with_source(documents(["one", "two"]), "web")
    assert batch.column("source").to_pylist() == ["web", "web"]
    assert not has_source_column(batch.schema)
    assert with_source(batch, "books") is batch


def test_content_is_the_text_or_the_bytes():
    texts = documents(["one", "two"])
    assert read_content(texts).to_pylist() == ["one", "two"]
    batch = pa.record_batch({"jpg": pa.array([b"a", b"a", b"b"]), "wav": pa.array([b"x", b"y", b"x"])})
    assert read_content(batch, ["jpg"]).to_pylist() == [b"a", b"a", b"b"]
    both = read_content(batch, ["jpg", "wav"]).to_pylist()
    assert len(set(both)) == 3


def test_a_missing_text_matches_nothing():
    matches = find_matches(pa.array(["spam", None, "ham"]), "am$")
    assert matches.tolist() == [True, False, True]
    assert matches.dtype == np.bool_
