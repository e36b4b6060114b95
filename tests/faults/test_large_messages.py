"""Many megabytes both ways at once, results of a gigabyte, thousands of results kept."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.watching import open_files

import gristmill as gm

pytestmark = pytest.mark.usefixtures("nothing_left")

MIB = 1 << 20


@pytest.mark.parametrize("chunk_size", [1, 4])
@pytest.mark.parametrize("kind", ["bytes", "numpy", "arrow"])
def test_large_items_and_large_results_at_once(kind, chunk_size):
    """Both sides send 8 MiB at a time. With blocking pipes this is where everything stops for ever."""
    make = {
        "bytes": lambda n: bytes([n]) * (8 * MIB),
        "numpy": lambda n: np.full(MIB, n, dtype=np.int64),
        "arrow": lambda n: pa.table({"n": pa.array(np.full(MIB, n, dtype=np.int64))}),
    }[kind]
    items = [make(n) for n in range(16)]
    results = gm.parallel_map(lambda item: item, items, workers=2, chunk_size=chunk_size)
    for item, result in zip(items, results, strict=True):
        assert type(result) is type(item)
        assert np.array_equal(item, result) if kind == "numpy" else item == result


def test_contents_arrive_unchanged():
    rng = np.random.default_rng(7)
    sizes = [0, 1, 16 * 1024 - 1, 16 * 1024, 64 * 1024, MIB - 1, MIB, MIB + 1, 5 * MIB + 3]
    items = [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]

    def function(array):
        return hashlib.sha256(array.tobytes()).hexdigest(), array[::-1].copy()

    for item, (digest, reverse) in zip(items, gm.parallel_map(function, items, workers=2), strict=True):
        assert hashlib.sha256(item.tobytes()).hexdigest() == digest
        assert np.array_equal(item[::-1], reverse)


@pytest.mark.full
def test_arrays_stay_writable_or_not():
    fixed = np.zeros(MIB, dtype=np.uint8)
    fixed.flags.writeable = False
    items = [np.zeros(MIB, dtype=np.uint8), fixed, np.zeros(10, dtype=np.uint8)]

    def function(array):
        if array.flags.writeable:
            array[0] = 1  # a user may work in place
        return array.flags.writeable, array

    results = gm.parallel_map(function, items, workers=1)
    assert [writable for writable, _ in results] == [True, False, True]
    for writable, array in results:
        assert array.flags.writeable == writable
    results[0][1][:] = 2
    assert items[0][0] == 0  # the caller's own array was not touched


@pytest.mark.full
def test_thousands_of_large_results_are_kept_without_leaking_files():
    before = open_files()
    results = gm.parallel_map(lambda n: np.full(9000, n), range(2000), workers=2)  # 70 KiB each
    assert open_files() == before
    assert all((result == n).all() for n, result in enumerate(results))


@pytest.mark.full
def test_results_over_a_megabyte_are_kept_without_leaking_files():
    before = open_files()
    results = gm.parallel_map(lambda n: np.full(MIB + 5, n % 256, dtype=np.uint8), range(200), workers=2)
    assert open_files() == before
    assert all((result == n % 256).all() for n, result in enumerate(results))


@pytest.mark.full
def test_many_buffers_in_one_message():
    """More than the kernel takes in one call."""

    def function(arrays):
        return [array + 1 for array in arrays]

    items = [[np.full(3000, n) for n in range(1500)]]
    (result,) = gm.parallel_map(function, items, workers=1)
    assert len(result) == 1500
    assert all((array == n + 1).all() for n, array in enumerate(result))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bytes", "numpy"])
def test_result_of_a_gigabyte(kind):
    def function(n):
        if kind == "bytes":
            return bytes([n]) * (1 << 30)
        return np.full(1 << 30, n, dtype=np.uint8)

    (result,) = gm.parallel_map(function, [7], workers=1)
    if kind == "bytes":
        assert len(result) == 1 << 30
        assert result[:: 1 << 20] == bytes([7]) * 1024
    else:
        assert result.nbytes == 1 << 30
        assert (result[:: 1 << 16] == 7).all()
