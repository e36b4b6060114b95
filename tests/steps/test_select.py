import pyarrow as pa
import pytest

from gristmill.core.errors import UsageError
from gristmill.core.records import RECORD, SPLIT
from gristmill.core.sample_batches import documents
from gristmill.steps import Select


def test_identity_and_split_stay_and_the_raw_record_goes():
    batch = documents(["hi"], url=["a"], **{SPLIT: ["train"]}).append_column(
        RECORD, pa.array([b"{}"], pa.large_binary())
    )
    selected = Select(columns=["url", "text"]).apply(batch, seed=0).batch
    assert selected.column_names == ["origin", SPLIT, "url", "text"]


@pytest.mark.parametrize("columns", [[], ["a", "a"], ["record"]])
def test_senseless_lists_are_refused(columns):
    with pytest.raises(UsageError):
        Select(columns=columns)


def test_missing_column_is_refused_with_the_nearest():
    with pytest.raises(UsageError) as error:
        Select(columns=["urls"]).output_schema(documents([], url=[]).schema)
    assert "url" in error.value.help
