"""What becomes of a record: its examples, and an account of the rest."""

from types import SimpleNamespace

import pytest

from gristmill.text.chats.options import RenderedRecord, classify_answer

CHAT = SimpleNamespace(
    messages=[
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "Thanks"},
        {"role": "assistant", "content": "You're welcome"},
    ]
)


@pytest.mark.parametrize(("message", "kind"), [(1, "call"), (3, "after_result"), (5, "plain")])
def test_kinds_of_answers(message, kind):
    assert classify_answer(CHAT, message) == kind


def test_answers_of_a_dropped_example_are_counted_by_kind():
    record = RenderedRecord()
    record.drop_answers("too_long", CHAT, [1, 5])
    assert record.dropped == ["too_long"]
    assert record.counts == [("lost_call", 1), ("lost_plain", 1)]
