"""A user's small script: how long until the first result? Prints seconds as JSON.

`engine_first_result.py ours|pool own|imported`: whose workers, and whether the function is the script's own (which we
send by value, with cloudpickle) or imported from a module.

`import`: of the library. `first`: from the call (or the creation of the pool) to the first result. `script`: both, what
the user waits for. `whole`: from the call until the workers are gone. `again`: a second call in the same process.
"""

import json
import sys
import time

import engine_functions


def double(number):
    return number + number


def ours(function):
    from gristmill import parallel_imap

    results = parallel_imap(function, range(100), workers=2)
    next(results)
    yield
    results.close()


def pool(function):
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(2) as workers:
        next(workers.imap(function, range(100)))
        yield
    workers.join()


def import_library(side):
    if side is ours:
        from gristmill import parallel_imap  # noqa: F401
    else:
        import multiprocessing.pool  # noqa: F401


def timed(steps):
    began = time.perf_counter()
    next(steps)
    first = time.perf_counter() - began
    next(steps, None)
    return first, time.perf_counter() - began


def main():
    side = {"ours": ours, "pool": pool}[sys.argv[1]]
    function = {"own": double, "imported": engine_functions.double}[sys.argv[2]]
    began = time.perf_counter()
    import_library(side)
    times = {"import": time.perf_counter() - began}
    times["first"], times["whole"] = timed(side(function))
    times["script"] = times["import"] + times["first"]
    times["again"], _ = timed(side(function))
    print(json.dumps(times))


if __name__ == "__main__":
    main()
