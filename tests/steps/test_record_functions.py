"""Calls of user functions: what fails is set aside one by one."""

import numpy as np
import pyarrow.compute as pc
import pytest

from gristmill.core.errors import UsageError
from gristmill.core.records import documents, texts
from gristmill.steps import Filter, MapBatches


def test_exceptions_and_wrong_answers_are_set_aside_one_by_one():
    def judge(record):
        return {"a": True, "b": False, "c": None, "d": np.True_, "e": 1 // (len(record["text"]) - 1)}[record["text"]]

    def careful(record):
        return (
            judge(record)
            if record["text"] == "e"
            else {"a": True, "b": False, "c": None, "d": np.True_}[record["text"]]
        )

    applied = Filter(call=careful).apply(documents(list("abcde")), seed=0)
    assert texts(applied.batch) == ["a", "d"]
    assert applied.dropped == {"rejected": 1}
    assert [(bad.position, bad.reason) for bad in applied.quarantined] == [(2, "not_a_bool"), (4, "exception")]
    raised = applied.quarantined[1]
    assert "ZeroDivisionError" in raised.message
    assert "in judge" in raised.traceback
    assert "gristmill/steps/record_functions.py" not in raised.traceback  # only the user's frames
    assert raised.raw == b'{"text":"e"}'


def test_a_large_record_is_set_aside_by_reference():
    applied = Filter(call=lambda record: None).apply(documents(["x" * (2 << 20)]), seed=0)
    assert applied.quarantined[0].raw is None
    assert applied.quarantined[0].num_bytes > 2 << 20


def test_out_of_memory_is_told_apart_from_other_errors():
    def hungry(record):
        raise MemoryError

    [bad] = Filter(call=hungry).apply(documents(["a"]), seed=0).quarantined
    assert bad.reason == "out_of_memory"


def test_not_a_function():
    for call in (5, "functions", "functions.py", "f/g.txt:f", "f.py:a b"):
        with pytest.raises(UsageError):
            Filter(call=call)


def upper(batch):
    return batch.set_column(1, "text", pc.utf8_upper(batch["text"]))


def test_a_raising_batch_is_halved_to_the_record_at_fault():
    calls = []

    def fails_at_7(batch):
        calls.append(batch.num_rows)
        if "7" in texts(batch):
            raise ValueError("seven")
        return upper(batch)

    words = [str(number) for number in range(64)]
    applied = MapBatches(call=fails_at_7).apply(documents(words), seed=0)
    assert texts(applied.batch) == [word for word in words if word != "7"]
    assert [(bad.position, bad.reason) for bad in applied.quarantined] == [(7, "exception")]
    assert "seven" in applied.quarantined[0].traceback
    assert len(calls) == 1 + 2 * 6  # both halves, six times
