"""Beyond one machine: the scheduler at the size of a cluster, Ray against processes, a store against the disk.

    python -m benchmarks.cluster simulate --workers 10000 --tasks 1000000
    python -m benchmarks.cluster memory
    python -m benchmarks.cluster ray
    python -m benchmarks.cluster store

`simulate` has no data and no Ray: workers are objects that answer at once, so what remains is the scheduler's own
processor time and memory. `memory` runs a stage of up to a million units with such workers. `ray` tokenizes and packs
the same texts with two workers of each kind. `store` does it from the disk to the disk, from a store on
this machine to the store, through a relay, and through one that adds 50 ms to each request, each in a process of its
own.

`--record` keeps the figures in `benchmarks/results/cluster.json`, for `docs/performance.md`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.contest import Setting
from benchmarks.harness.results import PUBLISHED, describe_machine, find_commit, load_result, write_json
from benchmarks.inputs import corpora, tokenizers
from benchmarks.simulated_cluster import run_units, simulate

RESULTS = PUBLISHED / "cluster.json"
_ROUNDS = 3


class Aim(NamedTuple):
    """A figure of a command, and what it should be."""

    command: str
    figure: str
    what: str
    bound: float
    is_least: bool = False
    """Whether the bound is the least that is wanted, not the most."""

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.is_least else value <= self.bound


AIMS = (
    Aim("simulate", "milliseconds_a_task", "scheduler, 10,000 workers, 1,000,000 tasks: ms of CPU a task", 0.5),
    Aim("simulate", "seconds_to_first_result", "the same: seconds of CPU to the first result", 1.0),
    Aim("memory", "more_mib_100000", "driver with 100,000 tasks: MiB more than with 1,000", 60),
    Aim("memory", "more_mib_1000000", "driver with 1,000,000 tasks: MiB more than with 1,000", 600),
    Aim("ray", "ratio", "tokenize and pack, 2 workers: Ray's speed compared with processes", 0.93, is_least=True),
    Aim("store", "cpu_ratio", "tokenize and pack, S3 to S3: CPU of driver and workers compared with a local run", 1.15),
    Aim(
        "store",
        "speed_of_store",
        "the same: speed compared with a local run, the store on the same 2 cores",
        0.6,
        is_least=True,
    ),
    Aim(
        "store", "speed_with_delay", "the same: speed with 50 ms more a request, compared with none", 0.9, is_least=True
    ),
)


def measure_memory(num_workers: int) -> dict[str, float]:
    """Return the peak memory of stages of 1,000, 100,000 and 1,000,000 units, each in a process of its own."""
    peaks = {}
    for num_units in (1000, 100_000, 1_000_000):
        words = ["units", str(num_units), str(num_workers)]
        peaks[num_units] = float(_run_here(words))
    return {
        **{f"peak_mib_{num_units}": peak for num_units, peak in peaks.items()},
        **{f"more_mib_{num_units}": peak - peaks[1000] for num_units, peak in peaks.items() if num_units > 1000},
    }


def _run_here(words: list[str], environment: dict[str, str] | None = None) -> str:
    """Run one command of this module in a process of its own; return what it prints."""
    command = [sys.executable, "-m", "benchmarks.cluster", *words]
    variables = {**os.environ, **(environment or {})}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables).stdout


def compare_with_processes(num_megabytes: int, setting: Setting) -> dict[str, float]:
    """Tokenize and pack the same texts with two workers of each kind; return seconds of work after the start."""
    import gristmill as gm

    seconds = {"processes": math.inf, "ray": math.inf}
    texts, tokenizer = corpora.plain(setting, num_megabytes), tokenizers.byte_level(setting)
    with tempfile.TemporaryDirectory() as name:
        for number in range(_ROUNDS):
            for backend, least in seconds.items():
                recipe = make_recipe(str(texts), f"{name}/{backend}-{number}", str(tokenizer))
                result = gm.run(recipe, backend=backend, workers=2, progress=False)
                _tell(f"{backend}: {result.work_seconds:.2f} s of work")
                seconds[backend] = min(result.work_seconds, least)
    return {**seconds, "ratio": seconds["processes"] / seconds["ray"]}


def compare_with_store(num_megabytes: int, setting: Setting) -> dict[str, float]:
    """Tokenize and pack the same texts on the disk, on a store here, and with 50 ms more for each request.

    The least of three runs each: processor time of driver and workers, and seconds of work without the start. What adds
    the delay takes a part of the same cores, so the speed with it is compared with that through the same relay
    without a delay.
    """
    from benchmarks.local_store import delay_requests, make_environment, start_store

    least: dict[str, float] = {}
    texts, tokenizer = corpora.plain(setting, num_megabytes), tokenizers.byte_level(setting)
    with (
        tempfile.TemporaryDirectory() as name,
        start_store() as port,
        delay_requests(port, 0.0) as relay_port,
        delay_requests(port, 0.05) as slow_port,
    ):
        _tell(f"{4 * _ROUNDS} runs of {num_megabytes} MB; first the texts are uploaded")
        _run_here(["upload", str(texts), "s3://bench/in.jsonl"], make_environment(port))
        sides = {
            "local": (str(texts), name, {}),
            "store": ("s3://bench/in.jsonl", "s3://bench", make_environment(port)),
            "relayed_store": ("s3://bench/in.jsonl", "s3://bench", make_environment(relay_port)),
            "slow_store": ("s3://bench/in.jsonl", "s3://bench", make_environment(slow_port)),
        }
        for number in range(_ROUNDS):
            for side, (source, folder, environment) in sides.items():
                words = ["pack", source, f"{folder}/{side}-{number}", str(tokenizer)]
                used = json.loads(_run_here(words, environment))
                _tell(f"{side}, run {number + 1}: {used['work']:.2f} s of work, {used['cpu']:.2f} s of CPU")
                for kind, seconds in used.items():
                    least[f"{side}_{kind}"] = min(seconds, least.get(f"{side}_{kind}", float("inf")))
        words = ["copy", "in.jsonl", str(sum(path.stat().st_size for path in Path(name, "local-0").rglob("*.arrow")))]
        bare_copy = float(_run_here(words, make_environment(port)))
        _tell(f"the store alone, the same bytes read and written: {bare_copy:.2f} s")
    return {
        **least,
        "bare_copy": bare_copy,
        "cpu_ratio": least["store_cpu"] / least["local_cpu"],
        "speed_of_store": least["local_work"] / least["store_work"],
        "speed_with_delay": least["relayed_store_work"] / least["slow_store_work"],
    }


def make_recipe(source: str, output: str, tokenizer: str):
    from gristmill import Recipe, steps

    return Recipe(
        sources={"web": steps.Read(read=source)},
        steps=[steps.Tokenize(tokenizer=tokenizer), steps.Pack(row_length=2048)],
        output=output,
    )


def pack(source: str, output: str, tokenizer: str) -> dict[str, float]:
    """Tokenize and pack one file with two workers; return processor time of all, and seconds of work."""
    import gristmill as gm

    result = gm.run(make_recipe(source, output, tokenizer), workers=2, backend="processes", progress=False)
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {"cpu": sum(use.ru_utime + use.ru_stime for use in uses), "work": result.work_seconds}


def copy(name: str, num_bytes: str) -> float:
    """Download an object and upload that many bytes, in parts of 8 MiB, eight at a time; return the seconds."""
    import obstore
    from obstore.store import S3Store

    headers = {"content-type": "binary/octet-stream"}  # else the store compresses what it is sent
    store = S3Store("bench", client_options={"allow_http": True, "default_headers": headers})
    written, part, started = os.urandom(int(num_bytes)), 8 << 20, time.perf_counter()
    size = obstore.head(store, name)["size"]
    starts = list(range(0, size, part))
    obstore.get_ranges(store, name, starts=starts, ends=[min(size, start + part) for start in starts], coalesce=0)
    obstore.put(store, "copy", written, chunk_size=part, max_concurrency=8)
    return time.perf_counter() - started


def upload(source: str, url: str) -> None:
    """Write a file to a store."""
    from gristmill.storage.commit import write_file
    from gristmill.storage.locations import StorePath

    write_file(StorePath(url), Path(source).read_bytes(), "00000001")


def _tell(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


def record(command: str, figures: dict[str, float], words: list[str]) -> None:
    """Keep the figures of one command, with when, where and how they were measured."""
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(),
        "machine": describe_machine(),
        "command": f"python -m benchmarks.cluster {' '.join(words)}",
        "load": round(os.getloadavg()[0], 2),
    }
    write_json(RESULTS, {**(load_result(RESULTS) or {}), command: {**about, "figures": figures}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    simulation = commands.add_parser("simulate")
    simulation.add_argument("--workers", type=int, default=10_000)
    simulation.add_argument("--tasks", type=int, default=1_000_000)
    simulation.set_defaults(measure=lambda given: simulate(given.workers, given.tasks))
    memory = commands.add_parser("memory")
    memory.add_argument("--workers", type=int, default=1000)
    memory.set_defaults(measure=lambda given: measure_memory(given.workers))
    comparison = commands.add_parser("ray")
    comparison.add_argument("--megabytes", type=int, default=512, help="enough that starting does not count")
    comparison.set_defaults(measure=lambda given: compare_with_processes(given.megabytes, _choose_setting(given)))
    store = commands.add_parser("store")
    store.add_argument("--megabytes", type=int, default=1024, help="several units of 64 MiB for each worker")
    store.set_defaults(measure=lambda given: compare_with_store(given.megabytes, _choose_setting(given)))
    for compared in (comparison, store):
        compared.add_argument("--tokenizer", type=Path, help="a folder with a tokenizer.json; else one is trained")
        compared.add_argument("--corpus", type=Path, help="JSON lines whose sentences are used, not those of Python's")
        compared.add_argument("--folder", type=Path, default=Path("bench-data"))
    for measured in (simulation, memory, comparison, store):
        measured.add_argument("--record", action="store_true", help=f"keep the figures in {RESULTS.name}")
    single = commands.add_parser("pack", help="one run, as `store` starts it")
    for name in ("source", "output", "tokenizer"):
        single.add_argument(name)
    single.set_defaults(part=lambda given: json.dumps(pack(given.source, given.output, given.tokenizer)))
    sent = commands.add_parser("upload", help="one file to a store, as `store` starts it")
    sent.add_argument("source")
    sent.add_argument("url")
    sent.set_defaults(part=lambda given: upload(given.source, given.url))
    copied = commands.add_parser("copy", help="an object read and as many bytes written, as `store` starts it")
    copied.add_argument("name")
    copied.add_argument("num_bytes")
    copied.set_defaults(part=lambda given: copy(given.name, given.num_bytes))
    stage = commands.add_parser("units", help="one stage, as `memory` starts it")
    stage.add_argument("units", type=int)
    stage.add_argument("workers", type=int)
    stage.set_defaults(part=lambda given: run_units(given.units, given.workers))
    arguments = parser.parse_args()
    if "part" in arguments:
        print(arguments.part(arguments))
        return
    figures = arguments.measure(arguments)
    print(json.dumps(figures, indent=2))
    if arguments.record:
        record(arguments.command, figures, [word for word in sys.argv[1:] if word != "--record"])


def _choose_setting(arguments: argparse.Namespace) -> Setting:
    return Setting(arguments.folder.resolve(), corpus=arguments.corpus, tokenizer=arguments.tokenizer)


if __name__ == "__main__":
    main()
