"""One rule for the splits of every source: laws over any names and choices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.splits import ALL_AS_TRAIN, TRAIN, choose_splits, looks_held_out

NAMES = st.lists(st.sampled_from(["train", "train_sft", "test_sft", "validation", "dev", "été", "a.b"]), unique=True)


@given(NAMES)
def test_without_a_choice_splits_keep_their_names_and_train_is_needed(names):
    if TRAIN in names:
        assert choose_splits(names, None, "x") == {name: name for name in names}
    elif names:
        with pytest.raises(UsageError) as refused:
            choose_splits(names, None, "x")
        assert "splits: {train: " in refused.value.help
        assert all(name in refused.value.message for name in names)


@given(NAMES)
def test_all_as_train_is_always_possible(names):
    assert set(choose_splits(names, ALL_AS_TRAIN, "x").values()) <= {TRAIN}
    assert list(choose_splits(names, ALL_AS_TRAIN, "x")) == names


@given(NAMES.filter(bool), st.data())
def test_a_mapping_reads_what_it_names_and_nothing_else(names, data):
    some = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    choice = {f"new_{number}": name for number, name in enumerate(some)}
    assert choose_splits(names, choice, "x") == {name: new for new, name in choice.items()}


def test_a_name_alone_is_not_made_training_data():
    assert choose_splits(["train", "test"], "train", "x") == {"train": "train"}
    with pytest.raises(UsageError, match="leaves no split train"):
        choose_splits(["train", "test"], "test", "x")
    assert choose_splits(["train", "test"], {"test": "test"}, "x") == {"test": "test"}


@pytest.mark.parametrize("choice", [{}, {"train": "trian"}, {"train": "test", "test": "test"}, "trian"])
def test_what_cannot_be_chosen(choice):
    with pytest.raises(UsageError):
        choose_splits(["train", "test"], choice, "x")


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "/etc", "a\\b", ".hidden", "_x", "a\0b", "x" * 101, "dropped", "a\nb"]
)
def test_a_name_that_is_no_folder_is_refused_and_can_be_renamed(name):
    with pytest.raises(UsageError, match="cannot be called"):
        choose_splits(["train", name], None, "x")
    assert choose_splits(["train", name], {"train": "train", "other": name}, "x")[name] == "other"


def test_two_names_that_are_one_folder_elsewhere():
    with pytest.raises(UsageError, match="in case"):
        choose_splits(["train", "Test", "test"], None, "x")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test.jsonl", True),
        ("data/web_test_01.jsonl.zst", True),
        ("val/part-0.parquet", True),
        ("dev2.jsonl", True),
        ("latest.jsonl", False),
        ("devices/evaluator.jsonl", False),
        ("train-00000.parquet", False),
    ],
)
def test_names_that_look_held_out(name, expected):
    assert looks_held_out(name) is expected
