"""How the sides of streaming are timed: rows a second, after all files were touched once."""

import json
import time

BATCH = 32
ROW_LENGTH = 2048
_WARM_UP = 600


def print_rate(batches, seconds):
    """Draw batches for some seconds and print how many rows they had."""
    for _ in range(_WARM_UP):
        assert next(batches).shape == (BATCH, ROW_LENGTH)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(20):
            next(batches)
        count += 20
    print(json.dumps({"inner": time.perf_counter() - start, "units": count * BATCH}), flush=True)
