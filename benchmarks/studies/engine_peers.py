"""The same job on each engine, timed with its workers already running, plus the plain ways to start and stop them.

Every function here takes `function` and `items`, runs them on two workers, hands each result to `take` as it comes, and
returns the seconds from the first item to the last result. Each answer names its worker, so that warming up can
continue until both have answered.
"""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

NUM_WORKERS = 2


def ours(function, items, take, pid_of):
    """`parallel_imap` has no pool to warm up beforehand, so the input begins with warm-up items.

    The clock starts when the engine pulls the first item that counts, which is before its last warm-up results are in:
    they are counted against it.
    """
    from gristmill import parallel_imap

    pids = set()
    began = 0.0

    def warm_up_then_items():
        nonlocal began
        while len(pids) < NUM_WORKERS:
            yield items[0]
        began = time.perf_counter()
        yield from items

    for result in parallel_imap(function, warm_up_then_items(), workers=NUM_WORKERS, progress=False):
        if began:
            take(result)
        else:
            pids.add(pid_of(result))
        ended = time.perf_counter()
    return ended - began


def pool(function, items, take, pid_of, *, chunk_size=1):
    with multiprocessing.get_context("spawn").Pool(NUM_WORKERS) as workers:
        _warm_up(lambda few: workers.imap(function, few), items, pid_of)
        return _timed(lambda: workers.imap(function, items, chunksize=chunk_size), take)


def executor(function, items, take, pid_of, *, chunk_size=1):
    with ProcessPoolExecutor(NUM_WORKERS, mp_context=multiprocessing.get_context("spawn")) as workers:
        _warm_up(lambda few: workers.map(function, few), items, pid_of)
        return _timed(lambda: workers.map(function, items, chunksize=chunk_size), take)


def loky(function, items, take, pid_of):
    from joblib import Parallel, delayed
    from joblib.externals.loky import get_reusable_executor

    call = delayed(function)
    with Parallel(n_jobs=NUM_WORKERS, return_as="generator") as workers:
        _warm_up(lambda few: workers(call(item) for item in few), items, pid_of)
        seconds = _timed(lambda: workers(call(item) for item in items), take)
    get_reusable_executor().shutdown(wait=True)
    return seconds


def _warm_up(run, items, pid_of):
    pids = set()
    while len(pids) < NUM_WORKERS:
        pids.update(pid_of(result) for result in run(items[:8]))


def _timed(run, take):
    began = time.perf_counter()
    for result in run():
        take(result)
    return time.perf_counter() - began
