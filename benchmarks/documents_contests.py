"""One function for each contest. Every run is a fresh process, so each side sees the text once and pays for its start.

Repeats are interleaved. The best runs are compared, as in `engine_contests`, which also prints the tables.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import documents_corpora as corpora
import psutil
from engine_contests import Contest, as_json, show, show_claims
from results import Comparison, add_result_option, write_result

import gristmill

HERE = Path(__file__).parent


@dataclass
class Setting:
    folder: Path
    corpus: list[Path]
    datatrove: str | None
    repeats: int

    @property
    def output(self):
        """An empty folder, each time it is read."""
        path = self.folder / "out"
        shutil.rmtree(path, ignore_errors=True)
        return path


def timed(*commands):
    """Run all commands at the same time; return the seconds until the last one has ended."""
    began = time.perf_counter()
    processes = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for command in commands
    ]
    assert all(process.wait() == 0 for process in processes), commands
    return time.perf_counter() - began


def ours(inputs, output, **options):
    flags = [
        f"--{name.replace('_', '-')}" + (f"={value}" if value is not True else "") for name, value in options.items()
    ]
    return [sys.executable, str(HERE / "documents_ours.py"), str(inputs), str(output), *flags]


def measured(command):
    return json.loads(subprocess.check_output(command))


def jsonl_zstd(setting):
    """JSONL.zst, length filter, JSONL.zst on two workers."""
    parts = corpora.packed_parts(setting.corpus, setting.folder)
    paths = sorted(map(str, parts.glob("*.zst")))
    bare = [sys.executable, str(HERE / "documents_bare.py")]
    contest = Contest(f"JSONL.zst -> length -> JSONL.zst, {len(paths)} files, 2 workers, start included")
    for _ in range(setting.repeats):
        contest.add("gristmill", timed(ours(f"{parts}/*.zst", setting.output, compression="zstd")))
        output = setting.output
        contest.add("bare code, two processes", timed(*([*bare, f"{output}/{n}", *paths[n::2]] for n in range(2))))
        if setting.datatrove:
            peer = [setting.datatrove, str(HERE / "documents_datatrove.py"), str(parts), str(setting.output), "2"]
            contest.add("datatrove", timed(peer))
    contest.judge(
        "speed of gristmill / bare code", lambda of: of("bare code, two processes") / of("gristmill"), at_least=0.5
    )
    if setting.datatrove:
        contest.judge("speed of gristmill / datatrove", lambda of: of("datatrove") / of("gristmill"), at_least=10)
    return contest


def two_workers(setting):
    """Two workers against two processes that each do half of the files without an engine."""
    parts = corpora.packed_parts(setting.corpus, setting.folder)
    paths = sorted(map(str, parts.glob("*.zst")))
    contest = Contest("2 workers against two independent processes, start included")
    for _ in range(setting.repeats):
        contest.add("2 workers", timed(ours(f"{parts}/*.zst", setting.output, compression="zstd")))
        output = setting.output
        halves = [
            ours(",".join(paths[n::2]), f"{output}/{n}", compression="zstd", backend="serial", workers=1)
            for n in range(2)
        ]
        contest.add("two independent", timed(*halves))
    contest.judge(
        "speed of 2 workers / two independent", lambda of: of("two independent") / of("2 workers"), at_least=0.9
    )
    return contest


def memory(setting):
    """The peak memory of any worker, on very large inputs."""
    contest = Contest("peak memory of a worker, records of up to 1 MiB", unit="MiB")
    shapes = {
        "2 GiB JSONL": corpora.large_jsonl,
        "1 GiB in one gzip member": corpora.large_gzip,
        "1 GiB in one Parquet row group": corpora.large_row_group,
    }
    for name, make in shapes.items():
        for written in ("jsonl", "arrow"):
            key = f"{name} to {written}"
            contest.add(key, measured(ours(make(setting.folder), setting.output, format=written))["worker_mib"])
            contest.judge(key, lambda of, key=key: of(key), at_most=400)
    return contest


def up_to_date(setting):
    """A finished run of 10,000 tasks, run again."""
    contest = Contest("is a run of 10,000 tasks up to date?")
    files, output = corpora.tiny_files(setting.folder, 10_000), setting.output
    command = ours(f"{files}/**/*.jsonl", output, unit_a_file=True)
    contest.add("the run itself", measured(command)["run"])
    for _ in range(setting.repeats):
        found = measured(command)
        assert found["was_up_to_date"]
        contest.add("asked again, planning included", found["run"])
        contest.add("asked again, whole process", timed(command))
    contest.judge("whole process, seconds", lambda of: of("asked again, whole process"), at_most=3)
    return contest


def small_files(setting):
    """100,000 files of 30 bytes to 2 KB."""
    contest = Contest("100,000 tiny files on 2 workers")
    files = corpora.tiny_files(setting.folder, 100_000)
    for _ in range(setting.repeats):
        found = measured(ours(f"{files}/**/*.jsonl", setting.output, format="arrow", verify=True))
        for name in ("plan", "run", "verify"):
            contest.add(name, found[name])
    contest.judge("run, seconds", lambda of: of("run"), at_most=60)
    return contest


CONTESTS = {
    "jsonl-zstd": jsonl_zstd,
    "two-workers": two_workers,
    "memory": memory,
    "up-to-date": up_to_date,
    "small-files": small_files,
}


def main():
    parser = argparse.ArgumentParser(description="The document pipeline beside its peers.")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="interleaved repeats (default 3)")
    parser.add_argument("--only", choices=CONTESTS, action="append", metavar="NAME", help=", ".join(CONTESTS))
    parser.add_argument(
        "--corpus", type=Path, nargs="*", default=[], help="JSONL files (default: Python's own sources)"
    )
    parser.add_argument(
        "--datatrove", metavar="PYTHON", help="an interpreter that has datatrove; without, no such peer"
    )
    parser.add_argument("--folder", type=Path, default=Path("bench-data"), help="for inputs and outputs; up to 8 GB")
    parser.add_argument("--json", action="store_true", help="print all measurements as JSON instead")
    add_result_option(parser)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    setting = Setting(options.folder, options.corpus, options.datatrove, options.repeats)
    contests = {}
    for name in options.only or CONTESTS:
        outside_load = psutil.cpu_percent(0.5) / 100
        contests[name] = CONTESTS[name](setting)
        contests[name].outside_load = outside_load
        if not options.json:
            show(contests[name])
    record(contests, options)
    if options.json:
        print(as_json(contests))
        return
    show_claims(contests.values())
    print(
        f"\ngristmill {gristmill.__version__}; load average now: {', '.join(f'{load:.1f}' for load in os.getloadavg())}"
    )


def record(contests, options):
    """Note the contest with datatrove, if it was held."""
    contest = contests.get("jsonl-zstd")
    if contest is None or "datatrove" not in contest.values:
        return
    ours, theirs = contest.best("gristmill"), contest.best("datatrove")
    comparison = Comparison(
        work="JSONL.zst through a length filter to JSONL.zst, 2 workers, start included",
        peer="datatrove",
        ratio=round(theirs / ours, 1),
        ours=f"{ours:.1f} s",
        theirs=f"{theirs:.1f} s",
    )
    size = sum(path.stat().st_size for path in options.corpus) / 1e6
    data = f"{size:,.0f} MB of JSON lines" if options.corpus else "Python's own sources"
    write_result(options, data, [comparison], ["datatrove", "pyarrow", "zstandard"])


if __name__ == "__main__":
    main()
