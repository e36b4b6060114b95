"""What the workers of all contestants run. Importable by name, and quick to import: both sides pay for it."""

import os
import time

MIB = 1 << 20


def double(number):
    return number + number


def array_of_pid(_):
    """Return a new array of 1 MiB filled with the worker's process id."""
    import numpy as np

    return np.full(MIB // 8, os.getpid())


def bytes_of_pid(_):
    """Like `array_of_pid`, as bytes."""
    return os.getpid().to_bytes(8, "little") * (MIB // 8)


def pid_for(_):
    """Return a small answer to an argument of any size."""
    return os.getpid()


def spin(num_steps):
    """Keep the CPU busy; return when that began and ended, on a clock that all processes share."""
    began = time.monotonic()
    total = 0
    for step in range(num_steps):
        total += step & 7
    return began, time.monotonic()
