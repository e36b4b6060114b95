"""One function for each contest. Repeats are interleaved, so that a busy moment of the machine hits all sides alike.

Times are given as best and median. The best runs are compared: on a shared machine the best of several is what the code
needs, the rest is what other programs took.
"""

import argparse
import contextlib
import functools
import importlib.metadata
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import engine_functions as functions
import engine_peers as peers
import numpy as np
import psutil

import gristmill

HERE = Path(__file__).parent
NUM_WORKERS = peers.NUM_WORKERS


@dataclass
class Contest:
    """The measurements of one question, and what follows from them."""

    title: str
    unit: str = "s"
    values: dict[str, list[float]] = field(default_factory=dict)
    claims: list["Claim"] = field(default_factory=list)
    outside_load: float = 0.0
    """The share of the machine that other programs used just before."""

    def add(self, name, value):
        self.values.setdefault(name, []).append(value)

    def best(self, name):
        return min(self.values[name])

    def median(self, name):
        return statistics.median(self.values[name])

    def fastest(self, names):
        """Return the fastest by median: the best of many bests would be the luckiest one."""
        return min(names, key=self.median)

    def compare(self, name, other, **bounds):
        self.judge(f"{name} / {other}", lambda of: of(name) / of(other), **bounds)

    def judge(self, what, number_from, *, at_most=None, at_least=None):
        """Add a claim. The number from the best runs decides; the one from the medians is shown next to it.

        Without a bound there is no outcome.
        """
        self.claims.append(Claim(what, number_from(self.best), number_from(self.median), at_most, at_least))


@dataclass
class Claim:
    what: str
    by_best: float
    by_median: float
    at_most: float | None
    at_least: float | None

    @property
    def target(self):
        if self.at_most is not None:
            return f"<= {self.at_most}"
        return "" if self.at_least is None else f">= {self.at_least}"

    @property
    def outcome(self):
        too_high = self.at_most is not None and self.by_best > self.at_most
        too_low = self.at_least is not None and self.by_best < self.at_least
        if too_high or too_low:
            return "MISSED"
        return "met" if self.target else ""


def interleave(contest, contestants, repeats):
    """Run each in turn, again and again."""
    for _ in range(repeats):
        for name, seconds in contestants.items():
            contest.add(name, seconds())
    return contest


def tiny_items(repeats):
    """100,000 items that cost nothing, start and end of the workers included."""
    items = range(100_000)
    expected = [functions.double(item) for item in items]
    pool_names = {f"spawn Pool.imap, chunks of {size}": size for size in (256, 1024, 4096, 16384)}

    def timed(run):
        began = time.perf_counter()
        assert list(run()) == expected
        return time.perf_counter() - began

    def run_pool(chunk_size):
        with multiprocessing.get_context("spawn").Pool(NUM_WORKERS) as workers:
            yield from workers.imap(functions.double, items, chunksize=chunk_size)

    calls = {
        "parallel_map": lambda: gristmill.parallel_map(functions.double, items, workers=NUM_WORKERS),
        "parallel_imap": lambda: gristmill.parallel_imap(functions.double, items, workers=NUM_WORKERS),
        **{name: functools.partial(run_pool, size) for name, size in pool_names.items()},
    }
    contest = Contest("100,000 tiny items on 2 workers, start included")
    interleave(contest, {name: functools.partial(timed, run) for name, run in calls.items()}, 3 * repeats)
    rival = contest.fastest(pool_names)
    for name in ("parallel_map", "parallel_imap"):
        contest.compare(name, rival, at_most=1.5)
    return contest


def large_results(repeats, *, function, pid_of, keep, kind):
    """512 results of 1 MiB, start excluded; each dropped when seen, or all kept."""
    items = range(512)

    def contestant(run, **options):
        kept = []
        take = kept.append if keep else pid_of
        seconds = run(function, items, take, pid_of, **options)
        assert not keep or len(kept) >= len(items)
        return seconds

    rivals = {
        "Pool.imap": functools.partial(contestant, peers.pool),
        "Pool.imap, chunks of 4": functools.partial(contestant, peers.pool, chunk_size=4),
        "ProcessPoolExecutor": functools.partial(contestant, peers.executor),
        "ProcessPoolExecutor, chunks of 4": functools.partial(contestant, peers.executor, chunk_size=4),
        "joblib (loky)": functools.partial(contestant, peers.loky),
    }
    contest = Contest(f"512 results of 1 MiB ({kind}, {'all kept' if keep else 'each dropped'}), start excluded")
    interleave(contest, {"parallel_imap": functools.partial(contestant, peers.ours), **rivals}, repeats)
    rival = contest.fastest(rivals)
    contest.compare(rival, "parallel_imap", at_least=2.0)
    return contest


def large_arguments(repeats):
    """64 arguments of 8 MiB and small answers, start excluded. No target."""
    items = [np.full(functions.MIB, number) for number in range(64)]

    def contestant(run):
        return run(functions.pid_for, items, int, int)

    rivals = {"Pool.imap": peers.pool, "ProcessPoolExecutor": peers.executor, "joblib (loky)": peers.loky}
    everyone = {"parallel_imap": peers.ours, **rivals}
    contest = Contest("64 arguments of 8 MiB (arrays), start excluded")
    interleave(contest, {name: functools.partial(contestant, run) for name, run in everyone.items()}, repeats)
    contest.compare(contest.fastest(rivals), "parallel_imap")
    return contest


def busy_cpus(repeats):
    """400 items of 10 ms of CPU, against two independent processes with 200 each.

    `call`: from the call to its return, against from the start of two interpreters to their end: start included on both
    sides. `work`: from the first item's beginning to the last one's end, by the workers' own clock: start excluded.
    """
    num_items = 400
    steps = steps_in(seconds=0.010)
    contest = Contest("400 items of 10 ms CPU on 2 workers")

    def record(name, run):
        began = time.perf_counter()
        spans = run()
        contest.add(f"{name}, call", time.perf_counter() - began)
        contest.add(f"{name}, work", max(ended for _, ended in spans) - min(start for start, _ in spans))

    def alone():
        command = [sys.executable, str(HERE / "engine_spin_alone.py"), str(num_items // NUM_WORKERS), str(steps)]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(NUM_WORKERS)]
        return [tuple(map(float, process.communicate()[0].split())) for process in processes]

    def pool():
        with multiprocessing.get_context("spawn").Pool(NUM_WORKERS) as workers:
            return list(workers.imap(functions.spin, [steps] * num_items))

    for _ in range(repeats):
        record("two processes", alone)
        record("parallel_map", lambda: gristmill.parallel_map(functions.spin, [steps] * num_items, workers=NUM_WORKERS))
        record("Pool.imap", pool)
    for part in ("call", "work"):
        contest.compare(f"two processes, {part}", f"parallel_map, {part}", at_least=0.95)
    return contest


def steps_in(seconds):
    """How many steps of `spin` take this much CPU time here."""
    num_steps = 50_000
    costs = []
    for _ in range(9):
        began = time.process_time()
        functions.spin(num_steps)
        costs.append(time.process_time() - began)
    return round(num_steps * seconds / min(costs))


def idle_memory(repeats):
    """Resident memory of a worker that has answered and waits, above that of a bare interpreter."""
    contest = Contest("memory of an idle worker", unit="MiB")
    for _ in range(repeats):
        with bare_interpreter() as pid:
            measure_memory(contest, "bare interpreter", pid)
        with our_worker(functions.pid_for) as pid:
            measure_memory(contest, "gristmill worker", pid)
        with our_worker(lambda _: os.getpid()) as pid:  # loads cloudpickle
            measure_memory(contest, "gristmill worker for a lambda", pid)
        with pool_worker() as pid:
            measure_memory(contest, "spawn Pool worker", pid)
    for name in ("gristmill worker", "gristmill worker for a lambda"):
        contest.judge(
            f"{name} - bare interpreter, RSS",
            lambda of, name=name: of(f"{name}, RSS") - of("bare interpreter, RSS"),
            at_most=30,
        )
    return contest


def measure_memory(contest, name, pid):
    time.sleep(0.3)  # until it waits
    memory = psutil.Process(pid).memory_full_info()
    contest.add(f"{name}, RSS", memory.rss / functions.MIB)
    contest.add(f"{name}, USS", memory.uss / functions.MIB)


@contextlib.contextmanager
def bare_interpreter():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate(b"\n")


@contextlib.contextmanager
def our_worker(function):
    results = gristmill.parallel_imap(function, range(8), workers=1)
    yield next(results)
    results.close()


@contextlib.contextmanager
def pool_worker():
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        yield workers.apply(functions.pid_for, (0,))


def first_result(repeats):
    """From the call to the first result in a user's small script; each time in a new interpreter."""
    contest = Contest("time to first result, 2 workers, start included")
    for _ in range(repeats):
        for side, function in (("pool", "own"), ("ours", "own"), ("pool", "imported"), ("ours", "imported")):
            command = [sys.executable, str(HERE / "engine_first_result.py"), side, function]
            for name, seconds in json.loads(subprocess.check_output(command)).items():
                contest.add(f"{side}, {function} function, {name}", seconds)
    for function in ("own", "imported"):
        for name, target in (("first", 1.3), ("again", 1.3), ("whole", None), ("script", None)):
            contest.compare(f"ours, {function} function, {name}", f"pool, {function} function, {name}", at_most=target)
    return contest


def start_of_worker(repeats):
    """The parts of a worker's start: bare interpreters that load more and more. No target."""
    commands = {
        "python -I -S (no site)": ["-I", "-S", "-c", ""],
        "python": ["-c", ""],
        "python + engine.worker": ["-c", "import gristmill.engine.worker.main"],
        "python + engine.worker + numpy": ["-c", "import gristmill.engine.worker.main, numpy"],
        "python + multiprocessing.spawn": ["-c", "import multiprocessing.spawn"],
    }

    def seconds(arguments):
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True)
        return time.perf_counter() - began

    def whole_job():
        began = time.perf_counter()
        gristmill.parallel_map(functions.double, range(2), workers=1)
        return time.perf_counter() - began

    contestants = {name: functools.partial(seconds, arguments) for name, arguments in commands.items()}
    contestants["a job of two items, one worker"] = whole_job
    return interleave(Contest("start of a worker, one at a time"), contestants, 3 * repeats)


def cost_per_item(repeats):
    """What the engine adds to an item: the slope between 100,000 and 400,000 of them, so without start. No target."""
    few, many = range(100_000), range(400_000)

    def microseconds(run):
        def seconds(items):
            began = time.perf_counter()
            run(items)
            return time.perf_counter() - began

        return 1e6 * (seconds(many) - seconds(few)) / (len(many) - len(few))

    def run_ours(items, **options):
        return gristmill.parallel_map(functions.double, items, workers=NUM_WORKERS, **options)

    def run_pool(items, chunk_size):
        with multiprocessing.get_context("spawn").Pool(NUM_WORKERS) as workers:
            return list(workers.imap(functions.double, items, chunksize=chunk_size))

    calls = {
        "a plain loop": lambda items: [functions.double(item) for item in items],
        "parallel_map": run_ours,
        "parallel_map, chunks of 1000": functools.partial(run_ours, chunk_size=1000),
        "parallel_imap": lambda items: list(gristmill.parallel_imap(functions.double, items, workers=NUM_WORKERS)),
        "Pool.imap, chunks of 1000": functools.partial(run_pool, chunk_size=1000),
    }
    contest = Contest("cost of an item, start excluded", unit="µs")
    return interleave(contest, {name: functools.partial(microseconds, run) for name, run in calls.items()}, repeats)


def pid_in_array(array):
    return int(array[0])


def pid_in_bytes(data):
    return int.from_bytes(data[:8], "little")


arrays = functools.partial(large_results, function=functions.array_of_pid, pid_of=pid_in_array, kind="arrays")
byte_strings = functools.partial(large_results, function=functions.bytes_of_pid, pid_of=pid_in_bytes, kind="bytes")

CONTESTS = {
    "tiny-items": tiny_items,
    "arrays": functools.partial(arrays, keep=False),
    "arrays-kept": functools.partial(arrays, keep=True),
    "bytes": functools.partial(byte_strings, keep=False),
    "bytes-kept": functools.partial(byte_strings, keep=True),
    "busy-cpus": busy_cpus,
    "idle-memory": idle_memory,
    "first-result": first_result,
    "large-arguments": large_arguments,
    "start-of-worker": start_of_worker,
    "cost-per-item": cost_per_item,
}


def versions():
    peers_of_record = ("joblib", "numpy", "psutil", "cloudpickle")
    return {
        "gristmill": gristmill.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count(),
        **{name: importlib.metadata.version(name) for name in peers_of_record},
    }


def show(contest):
    busy = f"  (others use {contest.outside_load:.0%} of the machine: run again when it is quiet)"
    print(f"\n{contest.title}{busy if contest.outside_load > 0.2 else ''}")
    print(f"  {'':42}{'best':>10}{'median':>10}  {contest.unit}")
    for name in contest.values:
        print(f"  {name:42}{contest.best(name):10.3f}{contest.median(name):10.3f}")


def show_claims(contests):
    print(f"\n{'ratios':70}{'best':>8}{'median':>8}  {'target':9}outcome")
    for contest in contests:
        if contest.claims:
            print(contest.title)
        for claim in contest.claims:
            print(f"  {claim.what:68}{claim.by_best:8.2f}{claim.by_median:8.2f}  {claim.target:9}{claim.outcome}")


def as_json(contests):
    results = {name: asdict(contest) for name, contest in contests.items()}
    for name, contest in contests.items():
        for result, claim in zip(results[name]["claims"], contest.claims, strict=True):
            result["outcome"] = claim.outcome
    return json.dumps({"versions": versions(), "contests": results}, indent=2)


def main():
    parser = argparse.ArgumentParser(description="The parallel engine against its peers.")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="interleaved repeats (default 5)")
    parser.add_argument("--only", choices=CONTESTS, action="append", metavar="NAME", help=", ".join(CONTESTS))
    parser.add_argument("--json", action="store_true", help="print all measurements as JSON instead")
    options = parser.parse_args()

    contests = {}
    if not options.json:
        print(", ".join(f"{name} {version}" for name, version in versions().items()))
    for name in options.only or CONTESTS:
        outside_load = psutil.cpu_percent(0.5) / 100
        contests[name] = contest = CONTESTS[name](options.repeats)
        contest.outside_load = outside_load
        if not options.json:
            show(contest)
    if options.json:
        print(as_json(contests))
    else:
        show_claims(contests.values())
        print(f"\nload average now: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
