import pyarrow as pa
import pytest

from gristmill.core.errors import UsageError
from gristmill.core.records import SPLIT
from gristmill.steps.column_names import add_columns, parse_arrow_type, path_in_record, require_column

SCHEMA = pa.schema(
    [pa.field("text", pa.large_string(), metadata={"path": "content"}), pa.field("meta.url", pa.string())]
)


def test_paths():
    assert path_in_record(SCHEMA.field("text")) == ("content",)
    assert path_in_record(SCHEMA.field("meta.url")) == ("meta", "url")


def test_a_new_type_keeps_the_place():
    schema = pa.schema([pa.field("n", pa.int64(), metadata={"path": "a.n"})])
    changed = add_columns("map", schema, {"n": "float64"})
    assert changed.field("n").type == pa.float64()
    assert path_in_record(changed.field("n")) == ("a", "n")


@pytest.mark.parametrize("name", ["origin", "text", "record", SPLIT])
def test_reserved_names(name):
    with pytest.raises(UsageError):
        add_columns("map", SCHEMA, {name: "string"})


def test_types_and_names_are_suggested():
    assert parse_arrow_type("map", "list<list<float32>>") == pa.list_(pa.list_(pa.float32()))
    with pytest.raises(UsageError) as error:
        parse_arrow_type("map", "flaot64")
    assert "float64" in error.value.help
    with pytest.raises(UsageError) as error:
        require_column("map", "meta.ulr", SCHEMA)
    assert "meta.url" in error.value.help
