"""Streaming beside its peers: rows a second into int64 tensors of 32 x 2,048, shuffled, from a warm page cache.

    python benchmarks/stream.py [--seconds 4] [--repeats 3] [--only WORD] [--json]

Every line is a fresh process. Peers that are not installed are left out (litdata, mosaicml-streaming). The best of the
repeats counts for every side: other programs on the machine can only slow it down.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from results import Comparison, add_result_option, write_result

BATCH = 32
ROW_LENGTH = 2048
OURS = {
    "gristmill TorchLoader, no thread": "loader:0",
    "gristmill TorchLoader, 1 thread": "loader:1",
    "gristmill TorchLoader, 2 threads": "loader:2",
    "gristmill DataLoader, 2 workers": "dataset:2",
}
BOUNDS = {"numpy gather and widen": "numpy"}
THREE = {"gristmill, labels and positions": "three", "bare numba, labels and positions": "numba"}
MODULES = {"litdata": "litdata", "mosaicml-streaming": "streaming", "webdataset": "webdataset"}


def main():
    options = parse()
    if options.measure:
        print(json.dumps(measure(options.measure, Path(options.folder), options.seconds)))
        return
    folder = Path(tempfile.mkdtemp(prefix="gristmill-bench-"))
    try:
        results = compare(folder, options)
        results |= {name: run(f"facts:{name}", folder, options) for name in ("first", "ranks") if not options.only}
    finally:
        shutil.rmtree(folder)
    report(results, options)


def compare(folder, options):
    from stream_data import write_dataset

    write_dataset(folder / "out", num_shards=8, rows_a_shard=2048, row_length=ROW_LENGTH)
    contests = {**OURS, **BOUNDS, **THREE}
    for name, module in MODULES.items():
        if find_spec(module):
            contests |= {f"{name}, {workers} workers": f"peer:{name}:{workers}" for workers in (0, 2)}
    contests |= {
        f"datasets + DataLoader, {workers} workers": f"peer:datasets + DataLoader:{workers}" for workers in (0, 2)
    }
    contests = {name: what for name, what in contests.items() if not options.only or options.only in name}
    for name in {what.split(":")[1] for what in contests.values() if what.startswith("peer:")} - {
        "datasets + DataLoader"
    }:
        run(f"write:{name}", folder, options)
    results = {}
    for _ in range(options.repeats):
        for name, what in contests.items():
            results[name] = max(results.get(name, 0), run(what, folder, options))
    return results


def run(what, folder, options):
    command = [sys.executable, "-W", "ignore", __file__, "--measure", what, "--folder", str(folder)]
    command += ["--seconds", str(options.seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        print(f"{what} failed: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return 0
    return json.loads(done.stdout.splitlines()[-1])


def measure(what, folder, seconds):
    kind, *rest = what.split(":")
    if kind == "facts":
        import stream_facts

        return getattr(stream_facts, rest[0])(folder, seconds)
    if kind in ("peer", "write"):
        import stream_peers

        stream_peers.private_folders(folder / "private")
        write, read = stream_peers.PEERS[rest[0]]
        place = folder / (rest[0] if write else "out")
        if kind == "write":
            import stream_ours

            write(stream_ours.stored_rows(folder / "out"), place)
            return 0
        return rate(read(place, int(rest[1]), ROW_LENGTH), seconds)
    import stream_ours

    makers = {
        "loader": lambda: stream_ours.loader(folder / "out", int(rest[0])),
        "dataset": lambda: stream_ours.dataset(folder / "out", int(rest[0])),
        "three": lambda: stream_ours.loader(folder / "out", 0, stream_ours.THREE),
        "numpy": lambda: stream_ours.numpy_gather(folder / "out"),
        "numba": lambda: stream_ours.bare_numba(folder / "out"),
    }
    return rate(makers[kind](), seconds)


def rate(batches, seconds):
    """Measure rows a second, after all files were touched once."""
    for _ in range(600):
        assert next(batches).shape == (BATCH, ROW_LENGTH)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(20):
            next(batches)
        count += 20
    return count * BATCH / (time.perf_counter() - start)


def report(results, options):
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for name, value in results.items():
        if isinstance(value, dict):
            for fact, number in value.items():
                print(f"{fact:60} {number:>12,}")
        else:
            print(f"{name:60} {value:>12,.0f} rows/s")
    ours = {name: results[name] for name in OURS if name in results}
    best = max(ours.values(), default=0)
    peers = {
        name: value
        for name, value in results.items()
        if name not in {**OURS, **BOUNDS, **THREE} and isinstance(value, float)
    }
    if best and peers:
        name = max(peers, key=peers.get)
        print(f"best of ours / best peer ({name}): {best / peers[name]:.1f} (target 3)")
        record(max(ours, key=ours.get), best, peers, options)
    if best and results.get("numpy gather and widen"):
        print(f"best of ours / numpy gather: {best / results['numpy gather and widen']:.2f} (target 0.5)")
    if all(results.get(name) for name in THREE):
        three, bare = (results[name] for name in THREE)
        print(f"labels and positions / bare numba: {three / bare:.2f} (target 0.5)")
    names = ("torch", "numpy", "numba", "pyarrow", "datasets", "webdataset", "litdata", "mosaicml-streaming")
    versions = [f"{name} {metadata.version(name)}" for name in names if _installed(name)]
    print(
        f"Python {sys.version.split()[0]}, {', '.join(versions)}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )


def record(best_name, best, peers, options):
    comparisons = [
        Comparison(
            work=f"shuffled batches of {BATCH} rows of {ROW_LENGTH:,} tokens as int64 tensors",
            peer=name,
            ratio=round(best / speed, 1),
            ours=f"{best:,.0f} rows/s",
            theirs=f"{speed:,.0f} rows/s",
        )
        for name, speed in sorted(peers.items(), key=lambda item: -item[1])
    ]
    data = f"16,384 rows of {ROW_LENGTH:,} uint16 in 8 shards, warm page cache; {best_name}"
    packages = ["datasets", "litdata", "mosaicml-streaming", "torch", "webdataset"]
    write_result(options, data, comparisons, packages)


def _installed(name):
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    add_result_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
