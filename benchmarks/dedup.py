"""Near-duplicates beside what people use, in one run: see `--help`.

Every side is a fresh process on one core. It gets the same documents in memory, real ones and edited copies of them
planted among them, and returns the numbers of those it would remove; CPU time is measured from the texts to that
list. Slow peers get the first part of the documents (`--peer-mib`): speeds are compared, not times.
Recall is the share of planted pairs, at least as similar as `--threshold` and `--clear` by the exact definition, of
which one was removed. Kernels are compiled before the clock starts, because they are kept between runs. For fast
sides the best of three rounds in a process counts.

Peers need environments of their own: `python -m venv peers && peers/bin/pip install datasketch rensa`, and
for datatrove as `documents_datatrove.py` says, and also spacy and `xxhash<4`. `--scale` runs the whole pipeline
instead, on ten thousand to a million documents of 300 words.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from results import Comparison, add_result_option, write_result

HERE = Path(__file__).parent
TARGETS = {"datasketch": 60, "datasketch-batch": None, "datatrove": 30, "rensa": 3, "rensa-hashes": None}
PEERS = {
    "datasketch": "datasketch, `update` as in its documentation",
    "datasketch-batch": "datasketch, `update_batch`",
    "datatrove": "datatrove, its three stages",
    "rensa": "rensa, from word lists",
}
ONE_CORE = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "RENSA_NUM_THREADS": "1"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="*", type=Path, help="JSON lines with a text field")
    parser.add_argument("--peers", help="an interpreter that has datasketch and rensa")
    parser.add_argument("--datatrove", help="an interpreter that has datatrove")
    parser.add_argument("--mib", type=int, default=64, help="how much text the fast sides get (default 64)")
    parser.add_argument("--peer-mib", type=int, default=4, help="how much the slow peers get (default 4)")
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--clear", type=float, default=0.85)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("bench-data"))
    parser.add_argument("--scale", action="store_true", help="the whole pipeline on up to a million documents instead")
    add_result_option(parser)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.scale:
        from dedup_scale import scale

        scale(options.folder)
        return
    compete(options)


def compete(options):
    from dedup_data import planted

    whole = planted(options.corpus, options.folder / "planted.jsonl", options.mib << 20)
    part = planted(options.corpus, options.folder / "planted-part.jsonl", options.peer_mib << 20)
    sides = {"gristmill": (sys.executable, whole), "gristmill-part": (sys.executable, part)}
    if options.peers:
        sides |= {"datasketch": (options.peers, part), "datasketch-batch": (options.peers, part)}
        sides |= {"rensa": (options.peers, whole), "rensa-hashes": (options.peers, whole)}
    if options.datatrove:
        sides["datatrove"] = (options.datatrove, part)
    runs = {name: [] for name in sides}
    for _ in range(options.repeats):
        for name, (python, data) in sides.items():
            command = [python, str(HERE / "dedup_sides.py"), name.removesuffix("-part"), str(data.path)]
            environment = {**os.environ, **ONE_CORE}
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    show(options, sides, runs)


def show(options, sides, runs):
    comparisons = []
    ours = {data.path: 0.0 for _, data in sides.values()}
    print(f"{'side':18}{'MB/s':>8}{'ours is':>10}{'target':>8}{'removed':>9}{'recall':>8}{'clear':>8}")
    for name, (_, data) in sides.items():
        best = max(run["mb_s"] for run in runs[name])
        removed = set(runs[name][0]["removed"])
        if name.startswith("gristmill"):
            ours[data.path] = best
        ratio = ours[data.path] / best
        target = TARGETS.get(name)
        recalls = [data.recall(removed, threshold) for threshold in (options.threshold, options.clear)]
        print(
            f"{name:18}{best:8.2f}{ratio:9.1f}x{f'{target}x' if target else '':>8}{len(removed):9,}"
            + "".join(f"{recall:8.3f}" for recall in recalls)
        )
        if name in PEERS:
            speeds = {"ours": f"{ours[data.path]:.0f} MB/s", "theirs": f"{best:.2f} MB/s"}
            work = "find near-duplicates among texts in memory, one core each, CPU time"
            comparisons.append(Comparison(work, PEERS[name], round(ratio, 1), **speeds))
    data = f"{options.mib} MiB of documents and edited copies, the first {options.peer_mib} MiB for slow peers"
    write_result(options, data, comparisons, ["datasketch", "datatrove", "numba", "rensa"])


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
