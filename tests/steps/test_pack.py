import pytest

from gristmill.core.errors import UsageError
from gristmill.steps.pack import Pack


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"row_length": 1}, "from 2 to"),
        ({"row_length": 2**31}, "from 2 to 16,777,216"),
        ({"row_length": 8, "strategy": "bestfit"}, "best_fit"),
        ({"row_length": 8, "long_documents": "cut"}, "truncate"),
        ({"row_length": 8, "min_utilisation": 95}, "0.95"),
        ({"row_length": 8, "align": 3}, "divisor of row_length"),
        ({"row_length": 8, "align": 0}, "divisor of row_length"),
        ({"row_length": 8, "align": 4, "strategy": "concat"}, "concat"),
        ({"row_length": 8, "min_utilisation": float("nan")}, "from 0 to 1"),
    ],
)
def test_what_makes_no_sense_is_refused(parameters, message):
    with pytest.raises(UsageError, match=message):
        Pack(**parameters)


def test_chats_are_dropped_by_default_and_never_cut():
    assert Pack(row_length=8).to_chat_form().long_documents == "drop"
    assert Pack(row_length=8, long_documents="truncate").to_chat_form().long_documents == "truncate"
    for parameters, way_out in [({"strategy": "concat"}, "best_fit"), ({"long_documents": "split"}, "max_tokens")]:
        with pytest.raises(UsageError) as caught:
            Pack(row_length=8, **parameters).to_chat_form()
        assert way_out in caught.value.help
