"""JSON lines to a tokenized, packed dataset on disk, beside what people use, in one run: see `--help`.

Every side is a fresh process and sees its text once. The slow peers get the first part of the corpus (`--peer-mib`),
the others all of it: speeds are compared, not times. Ours counts from the start of the process to the finished dataset,
planning and proof of parity included; the bare engine is two processes over text that is already in memory, timed
without their start. datatrove needs an environment of its own (`documents_datatrove.py` says how), with `tokenizers`
and `humanize` as well.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from results import Comparison, add_result_option, write_result

HERE = Path(__file__).parent
ROW_LENGTH = 2048
PEERS = {
    "bare": "fastokens alone, two processes, text in memory",
    "stage": "the same stage as two independent processes",
    "datasets": "`datasets.map`, `group_texts` and `save_to_disk`, 2 processes",
    "datatrove": "datatrove's `DocumentTokenizer`, 2 workers, no packing",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="JSON lines with a text field, some hundred MiB")
    parser.add_argument("tokenizer", type=Path, help="a folder with tokenizer.json")
    parser.add_argument("--datatrove", help="an interpreter that has datatrove; without, no such peer")
    parser.add_argument("--peer-mib", type=int, default=16, help="how much the slow peers get (default 16)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("bench-data"))
    parser.add_argument("--side", help=argparse.SUPPRESS)
    add_result_option(parser)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(SIDES[options.side](options)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    compete(options)


def compete(options):
    part = options.folder / "part.jsonl"
    with options.corpus.open("rb") as lines:
        part.write_bytes(b"".join(_lines_of(lines, options.peer_mib << 20)))
    corpora = {"gristmill": options.corpus, "bare": options.corpus, "stage": options.corpus, "datasets": part}
    if options.datatrove:
        corpora["datatrove"] = part
    runs = {name: [] for name in corpora}
    for _ in range(options.repeats):
        for name, corpus in corpora.items():
            python = options.datatrove if name == "datatrove" else sys.executable
            command = [python, __file__, str(corpus), str(options.tokenizer), "--side", name]
            runs[name].append(json.loads(subprocess.check_output([*command, "--folder", str(options.folder)])))
    show(options, runs)


def show(options, runs):
    best = {name: max(run["mb_s"] for run in side_runs) for name, side_runs in runs.items()}
    targets = {"datasets": 50, "datatrove": 40, "bare": 0.5, "stage": 0.9}
    print(f"{options.corpus.name}, {options.corpus.stat().st_size / 1e6:.0f} MB, tokenizer {options.tokenizer.name}")
    for name, speed in best.items():
        ratio = (
            "" if name == "gristmill" else f"{best['gristmill'] / speed:8.2f} times as fast, at least {targets[name]}"
        )
        print(f"  {name:10} {speed:8.1f} MB/s {ratio}")
    ours = runs["gristmill"]
    print(f"  worker at most {max(run['worker_mib'] for run in ours):.0f} MiB (at most 600)", end="")
    print(f", parent {max(run['parent_mib'] for run in ours):.0f} MiB, rows filled {ours[0]['filled']:.3%}")
    comparisons = [
        Comparison(
            work=f"JSON lines to a tokenized dataset packed in rows of {ROW_LENGTH:,}, 2 workers",
            peer=PEERS[name],
            ratio=round(best["gristmill"] / speed, 2),
            ours=f"{best['gristmill']:.1f} MB/s",
            theirs=f"{speed:.1f} MB/s",
        )
        for name, speed in best.items()
        if name != "gristmill"
    ]
    data = (
        f"{options.corpus.stat().st_size / 1e6:,.0f} MB of JSON lines, the first {options.peer_mib} MiB for slow peers"
    )
    packages = ["datasets", "datatrove", "fastokens", "tokenizers", "transformers"]
    write_result(options, data, comparisons, packages)


def _lines_of(lines, num_bytes):
    while num_bytes > 0 and (line := lines.readline()):
        num_bytes -= len(line)
        yield line


def gristmill_side(options, *, backend="processes", workers=2):
    from documents_ours import PeakOfChildren, peak_mib  # the datatrove side has no psutil

    began = perf_counter()
    import gristmill
    from gristmill import steps

    out = options.folder / f"out-{backend}"
    shutil.rmtree(out, ignore_errors=True)
    recipe = gristmill.Recipe(
        sources={"web": steps.Read(read=str(options.corpus))},
        steps=[steps.Tokenize(tokenizer=str(options.tokenizer)), steps.Pack(row_length=ROW_LENGTH)],
        output=str(out),
    )
    with PeakOfChildren() as children:
        result = gristmill.run(recipe, backend=backend, workers=workers, progress=False)
    seconds = perf_counter() - began
    counters = result.books["web"][-1].counters
    return {
        "mb_s": options.corpus.stat().st_size / 1e6 / seconds,
        "worker_mib": children.mib,
        "parent_mib": peak_mib(),
        "filled": counters["row_tokens"] / (counters["rows"] * ROW_LENGTH),
    }


def halves(options):
    """Cut the corpus into two files of whole lines."""
    paths = [options.folder / f"half-{number}.jsonl" for number in range(2)]
    if sum(path.stat().st_size for path in paths if path.exists()) != options.corpus.stat().st_size:
        with options.corpus.open("rb") as lines:
            paths[0].write_bytes(b"".join(_lines_of(lines, options.corpus.stat().st_size // 2)))
            paths[1].write_bytes(lines.read())
    return paths


def in_two_processes(options, side):
    """Run each half in a process of its own, both at the same time; the slower one counts."""
    command = [sys.executable, __file__, "--side", side, "--folder"]
    processes = [
        subprocess.Popen(
            [*command, str(options.folder / f"alone-{number}"), str(path), str(options.tokenizer)],
            stdout=subprocess.PIPE,
        )
        for number, path in enumerate(halves(options))
    ]
    seconds = max(json.loads(process.communicate()[0])["seconds"] for process in processes)
    return {"mb_s": options.corpus.stat().st_size / 1e6 / seconds}


def bare_half(options):
    import os

    os.environ["FASTOKENS_BPE_THREADS"] = "1"
    import fastokens
    import msgspec

    tokenizer = fastokens.Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    decode = msgspec.json.Decoder().decode
    texts = [decode(line)["text"] for line in options.corpus.open("rb")]
    began = perf_counter()
    for first in range(0, len(texts), 500):
        tokenizer.encode_batch_flat(texts[first : first + 500], split_special_tokens=True)
    return {"seconds": perf_counter() - began}


def stage_half(options):
    """Run the same stage without an engine: one process, no workers."""
    began = perf_counter()
    gristmill_side(options, backend="serial", workers=1)
    return {"seconds": perf_counter() - began}


def datasets_side(options):
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(str(options.tokenizer))
    end = tokenizer.eos_token_id
    out = options.folder / "datasets"
    shutil.rmtree(out, ignore_errors=True)
    began = perf_counter()
    data = datasets.load_dataset("json", data_files=str(options.corpus), split="train", cache_dir=str(out / "cache"))

    def encode(batch):
        return {"input_ids": [[*ids, end] for ids in tokenizer(batch["text"], add_special_tokens=False)["input_ids"]]}

    def group_texts(batch):
        stream = [token for ids in batch["input_ids"] for token in ids]
        stop = len(stream) // ROW_LENGTH * ROW_LENGTH
        return {"input_ids": [stream[first : first + ROW_LENGTH] for first in range(0, stop, ROW_LENGTH)]}

    data = data.map(encode, batched=True, num_proc=2, remove_columns=data.column_names)
    data.map(group_texts, batched=True, num_proc=2).save_to_disk(str(out / "saved"))
    return {"mb_s": options.corpus.stat().st_size / 1e6 / (perf_counter() - began)}


def datatrove_side(options):
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer
    from loguru import logger

    logger.remove()
    out = options.folder / "datatrove"
    shutil.rmtree(out, ignore_errors=True)
    parts = out / "in"
    parts.mkdir(parents=True)
    lines = options.corpus.read_bytes().splitlines(keepends=True)
    for number in range(2):
        (parts / f"{number}.jsonl").write_bytes(b"".join(lines[number::2]))
    began = perf_counter()
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(parts)),
            DocumentTokenizer(
                str(out / "tokens"), str(options.tokenizer / "tokenizer.json"), eos_token="<|endoftext|>"
            ),
        ],
        tasks=2,
        workers=2,
        logging_dir=str(out / "logs"),
    ).run()
    return {"mb_s": options.corpus.stat().st_size / 1e6 / (perf_counter() - began)}


SIDES = {
    "gristmill": gristmill_side,
    "bare": lambda options: in_two_processes(options, "bare-half"),
    "bare-half": bare_half,
    "stage": lambda options: in_two_processes(options, "stage-half"),
    "stage-half": stage_half,
    "datasets": datasets_side,
    "datatrove": datatrove_side,
}

if __name__ == "__main__":
    main()
