"""A run with a global step that is killed before the first and the last receipt of every stage, and is then run again.

The run is serial, so that one process is all there is to kill. Each child is a fork of a process in which the kernels
are compiled already. The same runs are also let on, with a damaged file in place of what the receipt names.
"""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import gzip, json, logging, os, random, shutil, signal, sys, traceback
from pathlib import Path

from gristmill.core.recipe import Recipe
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.pipeline.stages.receipts import Receipts
from gristmill.pipeline.run import run_recipe
from gristmill.shards.verify import verify
from gristmill.steps import *

root = Path(sys.argv[1])
layout = UnitLayout(
    unit_bytes=12_000,
    min_group_bytes=8_000,
    max_pieces=0,  # so that streams are merged
    min_piece_bytes=1_000,
    unpack_bytes=100 if sys.argv[3] == "damage" else 16 << 20,
)
os.fsync = lambda fd: None  # a power cut is not what is tried here
rng = random.Random(5)
(root / "in").mkdir()

def make_text(num_words):
    return " ".join(rng.choices([f"w{n}" for n in range(500)], k=num_words))

def edited(text):
    return " ".join(word if rng.random() > 0.02 else f"x{rng.random()}" for word in text.split(" "))

questions = [make_text(20) for _ in range(20)]
(root / "ask.jsonl").write_text("".join(json.dumps({"question": text}) + "\\n" for text in questions))
texts = [make_text(60) for _ in range(60)]
texts += [edited(rng.choice(texts)) for _ in range(40)] + texts[:10]
for number in range(0, 60, 4):
    texts[number] += f"\\n{rng.choice(questions)}\\n\\n{texts[number][:100]} end."
# One is like another, and that like a third, which is not like the first.
words = [f"c{n}" for n in range(300)]
texts += [" ".join(words[first : first + 200]) for first in range(0, 60, 8)]
rng.shuffle(texts)
for number in range(4):
    urls = [f"http://x{len(text) % 5}.org/{len(text) % 50}" for text in texts[number::4]]
    lines = [json.dumps({"text": text, "url": url}) for text, url in zip(texts[number::4], urls, strict=True)]
    (root / f"in/{number}.jsonl").write_text("\\n".join(lines))
if sys.argv[3] == "damage":
    (root / "in/0.jsonl.gz").write_bytes(gzip.compress((root / "in/0.jsonl").read_bytes()))
    (root / "in/0.jsonl").unlink()
(root / "known.jsonl").write_text(json.dumps({"text": texts[0]}) + "\\n")

left = {"receipts": -1}
written, files, stored = [], [], set()
real = Receipts.add

def add(self, fingerprint, result):
    if left["receipts"] == 0 and "damage" not in left:
        os.kill(os.getpid(), signal.SIGKILL)
    written.append(getattr(result, "stage", type(result).__name__))
    files.append([file.path for file in getattr(result, "files", list)() if file.bytes])
    paths = (out / ".gristmill/stored").glob("[!.]*")
    stored.update(str(path.relative_to(out)) for path in paths if path.stat().st_size)
    real(self, fingerprint, result)
    if left["receipts"] == 0:
        damage_file(*left["damage"])
    left["receipts"] -= 1

def damage_file(path, kind):
    path, stat = out / path, os.stat(out / path)
    content = bytearray(path.read_bytes())
    if kind == "removed":
        path.unlink()
        return
    place = rng.randrange(len(content))
    content = content[:place] if kind == "cut" else content
    if kind == "flipped":
        content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    # A disk changes no times; of shards, which no later stage reads, only what programs do to them is noticed.
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9 * ("work" in path.parts)))

class Messages(logging.Handler):
    def emit(self, record):
        print(record.getMessage(), file=sys.stderr)

Receipts.add = add
out = root / "out"
steps = eval(sys.argv[2])
steps = steps if isinstance(steps, list) else [steps]
recipe = Recipe(
    sources={"web": Read(read=f"{root}/in/*.jsonl*")},
    steps=steps if isinstance(steps[-1], Write) else [*steps, Write(format="jsonl")],
    output=str(out),
)

def run(max_receipts=-1):
    left["receipts"] = max_receipts
    del written[:]
    run_recipe(recipe, RunOptions(backend="serial", progress=False, layout=layout))

def tree():
    paths = [path for path in sorted(out.rglob("*")) if path.is_file() and path.stem != "report"]
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}

def in_child(function):
    pid = os.fork()
    if pid == 0:
        try:
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

run()
expected, stages, stage_files = tree(), list(written), list(files)
unlisted = stored - {path for paths in files for path in paths}
problems, unnoticed = [f"no receipt lists {path}" for path in unlisted], []
borders = [n for n in range(len(stages)) if stages[n] not in stages[:n] or stages[n] not in stages[n + 1 :]]
if sys.argv[3] == "damage":
    logging.getLogger("gristmill").addHandler(Messages())
    kinds = ("flipped", "cut", "removed")
    for number, (point, path) in enumerate((point, path) for point in borders for path in stage_files[point]):
        shutil.rmtree(out)
        kind = kinds[number % 3]
        left["damage"] = path, kind
        messages = root / "messages"
        def run_damaged():
            os.dup2(os.open(messages, os.O_RDWR | os.O_CREAT | os.O_TRUNC), 2)
            run(point)
        is_wrong = in_child(run_damaged) or tree() != expected or not verify(out)
        text = messages.read_text()
        if kind == "flipped" and "is run again" not in text:
            unnoticed.append(f"{stages[point]} {kind} {path}")
        if is_wrong:
            problems.append(f"{point} ({stages[point]}): {path} was {kind}: not the same\\n{text}")
    borders = []
for point in borders:
    shutil.rmtree(out)
    code = in_child(lambda: run(point))
    if code != -signal.SIGKILL:
        problems.append(f"{point}: was not killed: {code}")
    def again():
        run()
        # What had its receipt is not done again.
        assert len(written) == len(stages) - point, (written, stages)
    if in_child(again) or tree() != expected or not verify(out):
        problems.append(f"{point} ({stages[point]}): not the same after a kill")
has_scores = any(path.startswith("scores/") for path in expected)
print(json.dumps({"stages": stages, "problems": problems, "has_scores": has_scores, "unnoticed": unnoticed}))
"""

DOCUMENT_STAGES = {
    "merging",
    "copies",
    "marking",
    "candidates",
    "sketches",
    "comparing",
    "clusters",
    "members",
    "choosing",
    "survivors",
    "removals",
}

PIECE_STAGES = {"hashing", "merging", "copies", "removals"}


def kill_everywhere(folder, step):
    """Return the kinds of all receipts, in the order in which a run writes them."""
    return run_everywhere(folder, step, "kill")["stages"]


def run_everywhere(folder, step, fault):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), step, fault], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert not report["problems"], "\n".join([*report["problems"], done.stderr])
    return report


@pytest.mark.parametrize(
    ("step", "kinds"),
    [
        ("Decontaminate(benchmarks={'ask': str(root / 'ask.jsonl')}, action='cut')", {"searching", "judging"}),
        ("Deduplicate(kind='lines', partition_bytes=1000)", PIECE_STAGES),
        ("Deduplicate(kind='paragraphs', partition_bytes=1000)", PIECE_STAGES),
        ("Deduplicate(kind='substring', min_words=13, partition_bytes=20_000)", PIECE_STAGES),
        ("Deduplicate(kind='exact', by='url', partition_bytes=1000, max_source_loss=1.0)", PIECE_STAGES),
        ("Mix(weights={'web': 1}, size=150, by='documents', max_epochs=2)", {"counting", "choosing"}),
        # Filters keep their scores: blocks of tasks, which publishing joins into one file a stage.
        ("[GopherRepetition(), Shuffle(), Scores(min_words=61)]", {"buckets"}),
        ("Limit(max_records=40)", set()),
        ("Cap(by='host', max=2)", {"ranking", "scattering", "counting", "choosing", "removals"}),
        ("Split(validation=9)", {"keys"}),
    ],
)
def test_killed_in_every_stage(tmp_path, step, kinds):
    assert set(kill_everywhere(tmp_path, step)) == {"SliceResult", *kinds}


@pytest.mark.full
def test_killed_while_clusters_are_found(tmp_path):
    step = "Deduplicate(partition_bytes=4_000, against=str(root / 'known.jsonl'))"
    stages = kill_everywhere(tmp_path, step)
    assert set(stages) == {"SliceResult", *DOCUMENT_STAGES}
    num_ranges = stages.count("removals")
    assert num_ranges > 3
    assert stages.count("clusters") > num_ranges, "one round was enough"
    assert stages.count("candidates") > 1
    assert stages.count("merging") > 2


@pytest.mark.full
@pytest.mark.parametrize(
    "step",
    [
        "Decontaminate(benchmarks={'ask': str(root / 'ask.jsonl')}, action='cut')",
        "Deduplicate(kind='lines', partition_bytes=1000)",
        "Deduplicate(partition_bytes=4_000, against=str(root / 'known.jsonl'))",
        "Mix(weights={'web': 1}, size=150, by='documents', max_epochs=2)",
        "[GopherRepetition(), Shuffle(), Scores(min_words=61)]",
        "Limit(max_records=40)",
        "[Split(validation=9), Write(format='parquet')]",
    ],
)
def test_damage_of_every_kind_of_file_is_noticed_and_its_task_is_run_again(tmp_path, step):
    assert not run_everywhere(tmp_path, step, "damage")["unnoticed"]
