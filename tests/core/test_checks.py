import subprocess
import sys

import numpy as np
import pytest

from gristmill.core.checks import (
    MAX_COUNT,
    check_bool,
    check_positive_number,
    check_real_number,
    check_seed,
    check_whole_number,
    parse_byte_size,
)
from gristmill.core.errors import UsageError


@pytest.mark.parametrize("value", [7, np.int8(7), np.uint64(7), np.array(7)])
def test_integers_of_any_library_are_accepted(value):
    assert check_whole_number("rows", value) == 7
    assert type(check_whole_number("rows", value)) is int


@pytest.mark.parametrize("value", [True, 7.0, "7", None, np.bool_(True), np.array([7]), np.float32(7)])
def test_lookalikes_of_integers_are_refused(value):
    with pytest.raises(UsageError, match="rows must be a whole number"):
        check_whole_number("rows", value)


@pytest.mark.parametrize(("value", "message"), [(-1, "at least 0, not -1"), (MAX_COUNT + 1, "at most")])
def test_bounds_of_integers(value, message):
    with pytest.raises(UsageError, match=message):
        check_whole_number("rows", value)


def test_seeds_have_64_bits():
    assert [check_seed(seed) for seed in (-(2**63), 2**63 - 1)] == [-(2**63), 2**63 - 1]
    with pytest.raises(UsageError, match="seed must be at most"):
        check_seed(2**63)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.5, True, "1"])
def test_numbers_that_are_no_weights_are_refused(value):
    with pytest.raises(UsageError, match="weight must be a number, at least 0"):
        check_real_number("weight", value)


def test_zero_is_not_positive():
    assert check_positive_number("weight", np.float32(0.5)) == 0.5
    with pytest.raises(UsageError, match="weight must be above 0, not 0"):
        check_positive_number("weight", 0)


@pytest.mark.parametrize("value", [1, 0, "False", None])
def test_only_bools_are_bools(value):
    assert check_bool("pin", value=False) is False
    with pytest.raises(UsageError, match="pin must be True or False"):
        check_bool("pin", value)


@pytest.mark.parametrize("value", ["", "MiB", "1 XB", "-1MB", "1.5.2GB", "1e3", True, 1.5])
def test_texts_that_are_no_sizes_are_refused(value):
    with pytest.raises(UsageError, match="slice_bytes must be"):
        parse_byte_size("slice_bytes", value)


THREADS = """
import sys, threading, msgspec
from gristmill.core.checks import describe_type
sys.setswitchinterval(1e-6)

def use(kind, barrier):
    barrier.wait()
    try:
        msgspec.json.decode(b'{"a": 1}', type=describe_type(kind))
    except msgspec.ValidationError:
        pass

for trial in range(400):
    kind = int
    for depth in range(12):
        kind = msgspec.defstruct(f"S{depth}", [("a", kind), ("b", dict[str, kind]), ("c", list[kind])])
    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=use, args=(kind, barrier)) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""


def test_threads_may_use_a_type_for_the_first_time_together():
    ended = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
