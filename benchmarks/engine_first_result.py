"""A user's small script: how long until the first result? `engine_first_result.py ours|pool` prints seconds as JSON.

`import`: of the library. `first`: from the call (or the creation of the pool) to the first result. `whole`: until the
workers are gone as well. `second_*`: the same once more in this process, when all modules are loaded.
"""

import json
import sys
import time

from engine_functions import double


def ours():
    from gristmill import parallel_imap

    results = parallel_imap(double, range(100), workers=2)
    next(results)
    yield
    results.close()


def pool():
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(2) as workers:
        next(workers.imap(double, range(100)))
        yield
    workers.join()


def import_library(side):
    if side is ours:
        from gristmill import parallel_imap  # noqa: F401
    else:
        import multiprocessing  # noqa: F401


def timed(side):
    began = time.perf_counter()
    steps = side()
    next(steps)
    first = time.perf_counter() - began
    next(steps, None)
    return first, time.perf_counter() - began


def main():
    side = {"ours": ours, "pool": pool}[sys.argv[1]]
    began = time.perf_counter()
    import_library(side)
    times = {"import": time.perf_counter() - began}
    times["first"], times["whole"] = timed(side)
    times["second_first"], times["second_whole"] = timed(side)
    print(json.dumps(times))


if __name__ == "__main__":
    main()
