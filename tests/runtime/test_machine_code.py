"""Compiled functions called without numba give what numba gives, for every kind of argument and result."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gristmill.runtime.machine_code import StoredCode, describe_arguments, describe_types

KERNELS = """
import numpy as np
from gristmill.runtime.kernels import kernel

@kernel
def count_pairs(numbers, others, factor, offset, is_doubled, limit):
    count = 0
    for row in range(numbers.shape[0]):
        for column in range(numbers.shape[1]):
            if numbers[row, column] * factor + offset < others[row] and count < limit:
                count += 2 if is_doubled else 1
                numbers[row, column] = count
    return count

@kernel
def is_sorted(numbers):
    for index in range(1, len(numbers)):
        if numbers[index - 1] > numbers[index]:
            return False
    return True

@kernel
def average(numbers):
    total = 0.0
    for number in numbers[1:]:
        total += number
    return total / (len(numbers) - 1)

@kernel
def create(count):
    numbers = np.zeros(count, np.int64)
    return numbers.sum()

@kernel
def two_results(number):
    return number, number + 1
"""
CALLS = """
import json, sys, numpy as np, many
numbers, floats = np.arange(6, dtype=np.uint8).reshape(2, 3), np.arange(6.0).reshape(2, 3)
others = np.array([3.5, 9.5])
others.flags.writeable = False
answers = [
    many.count_pairs(numbers, others, 1, 0.5, True, np.uint16(5)),
    many.count_pairs(floats, others, 1, 0.5, True, np.uint16(5)),
    numbers.tolist(),
    floats.tolist(),
    many.is_sorted(numbers.ravel()),
    many.is_sorted(np.arange(4)),
    many.average(np.arange(4)),
]
without_numba = "numba" not in sys.modules
answers += [many.average(np.arange(8)[::2]), many.create(3), many.two_results(4)]
try:
    many.average(np.zeros(1))
except ZeroDivisionError:
    answers.append("error")
print(json.dumps([answers, without_numba]))
"""


def call(tmp_path):
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    variables = {"PYTHONPATH": path, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    out = subprocess.run(
        [sys.executable, "-c", CALLS], env=os.environ | variables, check=True, capture_output=True, timeout=240
    ).stdout
    return json.loads(out)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere numba calls kernels")
def test_answers_are_those_of_numba(tmp_path):
    (tmp_path / "many.py").write_text(KERNELS)
    compiled, without_numba = call(tmp_path)
    assert not without_numba
    assert call(tmp_path) == [compiled, True]
    assert compiled[-1] == "error"
    assert not list(Path(tmp_path, "cache", "gristmill").glob("create*.code"))  # it would call numba's allocator
    assert not list(Path(tmp_path, "cache", "gristmill").glob("two_results*.code"))


def test_arguments_and_types_of_numba_have_the_same_names():
    numba = pytest.importorskip("numba")
    frozen = np.zeros((2, 3), np.uint16)
    frozen.flags.writeable = False
    arguments = [np.zeros(2, np.bool_), frozen, 7, True, 0.5, np.uint32(1), np.float32(1), np.int64(-1)]
    names = describe_arguments(arguments)
    assert names is not None
    assert names == describe_types([numba.typeof(value) for value in arguments])


@pytest.mark.parametrize(
    "value",
    [np.zeros(4)[::2], np.zeros((2, 2), order="F"), "text", (1, 2), None, 2**63, np.frombuffer(b"12345", "<u2", 2, 1)],
    ids=str,
)
def test_what_only_numba_understands(value):
    assert describe_arguments([value]) is None


def test_stored_code_may_hold_any_bytes():
    stored = StoredCode("name", "int64", ["one", "two"], b"\n \0\n")
    assert StoredCode.decode(stored.encode()) == stored
