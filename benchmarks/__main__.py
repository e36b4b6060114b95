"""Run contests and print one table: `make bench`, or `python -m benchmarks --help`.

Every contest is stored as soon as it is held, so an interrupted run loses one contest: `--resume` leaves out those that
the same commit has already been measured on.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.contests import list_contests
from benchmarks.harness.contest import Setting
from benchmarks.harness.processes import adopt_orphans
from benchmarks.harness.results import choose_folder, find_commit, load_result, store
from benchmarks.harness.rounds import hold
from benchmarks.reports.publish import publish
from benchmarks.reports.terminal import format_table

SCALES = {"smoke": 0.01, "small": 0.1, "full": 1.0}


def main() -> int:
    options = parse()
    folder = options.folder.resolve()
    setting = Setting(
        folder=folder,
        scale=SCALES[options.size],
        with_peers=not options.no_peers,
        corpus=options.corpus and options.corpus.resolve(),
        chats=options.chats and options.chats.resolve(),
        tokenizer=options.tokenizer and options.tokenizer.resolve(),
    )
    groups = list_contests(setting)
    chosen = choose(groups, options.only)
    results = options.results or choose_folder(options.size, folder)
    adopt_orphans()
    print(f"size {options.size}, load {os.getloadavg()[0]:.1f}, results in {results}", flush=True)
    held = []
    for group, contest in chosen:
        path = results / f"{group}.json"
        earlier = (load_result(path) or {"contests": {}})["contests"].get(contest.name)
        if options.resume and earlier and earlier["commit"] == find_commit() and not earlier["failures"]:
            held.append(earlier)
            continue
        print(f"{contest.name}: {contest.work}", flush=True)
        result = hold(contest, setting, options.rounds, lambda line: print(line, flush=True))
        held.append(dict(result))
        store(path, group, options.size, result)
    print(f"\n{format_table(held)}\n\nload {os.getloadavg()[0]:.1f}; {results}")
    if options.size == "full" and not options.results:
        publish()
    return 1 if any(result["failures"] for result in held) else 0


def choose(groups: dict, only: list[str]) -> list:
    """Return the contests of the named groups, or of these names, or whose names begin so."""
    every = [(group, contest) for group, contests in groups.items() for contest in contests]
    if not only:
        return every
    chosen = []
    for word in (word for given in only for word in given.split(",") if word):
        exact = [item for item in every if word in (item[0], item[1].name)]
        matching = exact or [item for item in every if item[1].name.startswith(word)]
        if not matching:
            sys.exit(f"no contest is called {word}; groups: {', '.join(groups)}; --list prints all")
        chosen += [item for item in matching if item not in chosen]
    return chosen


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a group, or how contests begin")
    parser.add_argument("--size", choices=SCALES, default="full", help="full (default): the sizes of the claims")
    parser.add_argument("--rounds", type=int, metavar="N", help="interleaved rounds (default: as each contest says)")
    parser.add_argument("--resume", action="store_true", help="leave out what this commit was measured on already")
    parser.add_argument("--no-peers", action="store_true", help="only sides that need no other environment")
    parser.add_argument("--corpus", type=Path, help="JSON lines with `text`, whose sentences are used")
    parser.add_argument("--chats", type=Path, help="a folder of JSON lines with `messages`")
    parser.add_argument("--tokenizer", type=Path, help="a folder with tokenizer.json")
    parser.add_argument("--folder", type=Path, default=Path("bench-data"), help="inputs, outputs, environments")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="where to write the results instead")
    parser.add_argument("--list", action="store_true", help="print the names of all contests")
    options = parser.parse_args()
    if options.list:
        for group, contests in list_contests(Setting(options.folder, chats=options.chats)).items():
            print(group, *(f"  {contest.name}: {contest.work}" for contest in contests), sep="\n")
        sys.exit()
    return options


if __name__ == "__main__":
    sys.exit(main())
