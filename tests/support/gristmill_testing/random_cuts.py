"""Random recipes on random files, by 1, 2 and 7 workers, with slices of a set size, and stopped and resumed.

`python -m gristmill_testing.random_cuts FOLDER TOKENIZER SEED …` runs the cases with these seeds and prints those
in which anything in the output differs. Cells have 4 KiB instead of 4 MiB: then a hundred kilobytes have as many cells
and units as hundreds of megabytes.
"""

import gzip
import io
import json
import logging
import os
import random
import shutil
import sys
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import zstandard

from gristmill import steps
from gristmill.core.errors import GristmillError
from gristmill.core.recipe import Recipe
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.pipeline.stages.unit_tasks import UnitTasks
from gristmill.storage.remembered_proofs import choose_plan_cache
from gristmill_testing.reports import read_without_times

WORDS = ["mill", "grist", "flour", "stone", "wheat", "größe", "粉", "<b>", "x" * 40]
TABLES = ("parquet", "arrow", "csv", "txt", "tar")
LINES = ("jsonl", "jsonl.gz", "jsonl.zst", "json")
LAYOUT = UnitLayout(
    cell_bytes=4096,
    unit_bytes=65536,
    min_group_bytes=16384,
    file_open_bytes=64,
    unpack_bytes=12000,
    slow_cell_bytes=512,
    feed_bytes=0,
)
"""All that is measured in cells, at a thousandth of its size."""


class Stopped(BaseException):
    """The end of a run in the middle."""


class Case:
    """One recipe and its files, all chosen by the seed."""

    def __init__(self, seed, folder, tokenizer):
        self.rng = random.Random(seed)
        self.folder = folder
        self.output = folder / "out"
        self.is_chat = self.rng.random() < 0.5
        names = ["a", "b"][: self.rng.choice([1, 1, 2])]
        self.sources = {name: self.write_source(folder / name) for name in names}
        self.steps = self.choose_steps(names, str(tokenizer))
        self.settings = {
            "seed": seed,
            "max_quarantine": self.rng.choice([0.6, 1.0]),
            "keep_dropped": self.rng.choice([None, "samples", "all"]),
        }

    def write_source(self, folder):
        rng = self.rng
        folder.mkdir(parents=True)
        kind = rng.choice(LINES if self.is_chat else (*LINES, *TABLES))
        sizes = rng.choice(
            [[300], [40, 200], [30, 0, 120, 1, 60], [rng.choice([0, 1, 5, 30]) for _ in range(20)], [60]]
        )
        for number, size in enumerate(sizes):
            records = [self.make_record(1000 * number + n) for n in range(size)]
            for _ in range(size // 8):  # copies
                records[rng.randrange(size)] = dict(rng.choice(records))
            self.write_file(folder / f"f{number:02}.{kind}", kind, records)
        return steps.Read(read=f"{folder}/*", **({"text": "txt"} if kind == "tar" else {}))

    def make_record(self, number):
        rng = self.rng
        if not self.is_chat:
            return {"id": number, "text": " ".join(rng.choices(WORDS, k=int(rng.paretovariate(0.8) * 3) % 200 + 1))}
        said = [" ".join(rng.choices(WORDS, k=rng.randrange(1, 30))) for _ in range(2 * rng.randrange(1, 4))]
        turns = [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(said)]
        return {"id": number, "messages": turns}

    def write_file(self, path, kind, records):
        if kind.startswith("jsonl"):
            pack = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.zst": zstandard.compress}[kind]
            path.write_bytes(pack(self.encode_lines(records)))
        elif kind == "json":
            path.write_text(json.dumps(records))
        elif kind == "txt":
            path.write_text("\n".join(record["text"] for record in records))
        elif kind == "tar":
            write_tar(path, records)
        else:
            write_table(path, kind, records or [self.make_record(0)], self.rng.choice([7, 50, 1000]))

    def encode_lines(self, records):
        """Lines with some that are broken, blank, or of the wrong type, these in runs."""
        rng = self.rng
        lines = []
        num_bad = 0
        for record in records:
            lines += rng.choices([[], ["{broken"], [""]], [50, 1, 1])[0]
            num_bad = rng.randrange(1, 40) if rng.random() < 0.01 else num_bad - 1
            wrong = {"messages" if self.is_chat else "text": 5} if num_bad > 0 else {}
            lines.append(json.dumps(record | wrong, ensure_ascii=False))
        return ("\n".join(lines) + rng.choice(["", "\n"])).encode()

    def choose_steps(self, names, tokenizer):
        rng = self.rng

        def maybe(chance, *choices):
            return [rng.choice(choices)] if rng.random() < chance else []

        across = [steps.Shuffle(across="sources"), steps.Mix(weights=dict.fromkeys(names, 1), size=30, by="documents")]
        chosen = [
            *([steps.Render(template="chatml")] if self.is_chat else maybe(0.3, steps.GopherRepetition())),
            *maybe(0.6, steps.Length(min_chars=5), steps.Length(min_chars=60), steps.Sample(fraction=0.7)),
            *maybe(0.3, steps.Deduplicate(kind="exact"), steps.Deduplicate()),
            *maybe(0.4, steps.Split(validation=0.2), steps.Split(validation=3)),
            *maybe(0.4, steps.Limit(max_records=50), steps.Shuffle(), *(across if len(names) > 1 else [])),
        ]
        if rng.random() < 0.4:
            pack = steps.Pack(row_length=256, strategy=rng.choice(["best_fit", "pad"]))
            return [*chosen, steps.Tokenize(tokenizer=tokenizer, engine="tokenizers"), *maybe(0.7, pack)]
        written = [steps.Write(format=name) for name in ("jsonl", "parquet", "arrow", "webdataset")]
        return [*chosen, rng.choice([*written, steps.Write(format="jsonl", compression="zstd")])]

    def run(self, workers, *, stop_after=None, slice_bytes="auto"):
        """Run it, with an end after that many tasks; return the error or all files, and the number of tasks."""
        recipe = Recipe(
            sources=self.sources, steps=self.steps, output=str(self.output), slice_bytes=slice_bytes, **self.settings
        )
        finish = UnitTasks.finish_task
        num_tasks = 0

        def count(tasks, task, result):
            nonlocal num_tasks
            if num_tasks == stop_after:
                raise Stopped
            num_tasks += 1
            finish(tasks, task, result)

        UnitTasks.finish_task = count
        options = {"backend": "serial"} if workers == 1 else {"backend": "threads", "workers": workers}
        try:
            run_recipe(recipe, RunOptions(progress=False, layout=LAYOUT, **options))
        except Stopped:
            return None, num_tasks
        except GristmillError as error:
            return f"{type(error).__name__}: {error}", num_tasks
        finally:
            UnitTasks.finish_task = finish
        return files_in(self.output), num_tasks

    def run_fresh(self, workers, **options):
        shutil.rmtree(self.output, ignore_errors=True)
        return self.run(workers, **options)

    def find_differences(self):
        """Yield what was done differently, with the names of the files that differ."""
        expected, _ = self.run_fresh(1)
        num_tasks = 0
        for workers in (2, 7):
            made, num_tasks = self.run_fresh(workers)
            yield f"{workers} workers", compare(expected, made)
        size = self.rng.choice([4096, 5000, 20000, 100000])
        yield f"slices of {size}", compare(drop_recipe(expected), drop_recipe(self.run_fresh(3, slice_bytes=size)[0]))
        if isinstance(expected, dict):
            for first, second in self.rng.sample([(7, 2), (2, 7), (1, 7), (7, 1)], 2):
                self.run_fresh(first, stop_after=self.rng.randrange(num_tasks))
                yield f"{first} workers, then {second}", compare(expected, self.run(second)[0])


def write_tar(path, records):
    with tarfile.open(path, "w") as archive:
        for number, record in enumerate(records):
            for suffix, data in (("txt", record["text"].encode()), ("json", b"{}")):
                member = tarfile.TarInfo(f"{number:06}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def write_table(path, kind, records, num_rows):
    table = pa.Table.from_pylist(records)
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=num_rows)
    elif kind == "csv":
        pyarrow.csv.write_csv(table, path)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=num_rows)


def files_in(folder):
    paths = [path for path in folder.rglob("*") if path.is_file() and ".gristmill" not in path.parts]
    return {path.relative_to(folder).as_posix(): read_without_times(path) for path in paths}


def drop_recipe(files):
    """Leave out what names `slice_bytes`, which is a setting of the recipe."""
    return {k: v for k, v in files.items() if k != "manifest.json"} if isinstance(files, dict) else files


def compare(expected, made):
    """Return the paths of files that differ, or both errors."""
    if isinstance(expected, dict) and isinstance(made, dict):
        return sorted(path for path in expected.keys() | made.keys() if expected.get(path) != made.get(path))
    return [] if expected == made else [str(made)[:200], str(expected)[:200]]


def main():
    folder, tokenizer, *seeds = sys.argv[1:]
    logging.disable()
    choose_plan_cache(None)
    os.fsync = lambda fd: None  # thousands of small files, and no power cut is part of the case
    for seed in map(int, seeds):
        case = Case(seed, Path(folder, str(seed)), tokenizer)
        for what, paths in case.find_differences():
            if paths:
                print(f"seed {seed}, {what}: {paths} {case.steps}")
        shutil.rmtree(case.folder)


if __name__ == "__main__":
    main()
