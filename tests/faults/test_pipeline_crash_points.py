"""A run that dies before any one of its renames, removals or new folders, and is then run again.

The run is serial, so all that happens to the disk happens in one process, and an audit hook can end it at the k-th
change. Each child is a fork of a warm process, which makes every single point affordable.
"""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, re, shutil, sys, traceback
from pathlib import Path

from gristmill.core.recipe import Recipe
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.pipeline.run import run_recipe
from gristmill.shards.manifest_file import load_manifest
from gristmill.shards.verify import verify
from gristmill.steps import Deduplicate, Length, Limit, Map, Pack, Read, Shuffle, Split, Tokenize, Write
from gristmill.text.tokenizers.train import save_tokenizer, train_bpe

root, scenario = Path(sys.argv[1]), sys.argv[2]
layout = UnitLayout(unit_bytes=400, min_group_bytes=300)  # several shards from a few lines
os.fsync = lambda fd: None  # a power cut is not what is tried here
points = {"left": -1}

def hook(event, arguments):
    if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate") and points["left"] >= 0:
        if points["left"] == 0:
            os._exit(99)
        points["left"] -= 1

sys.addaudithook(hook)
data = root / "in"
data.mkdir(parents=True)
save_tokenizer(train_bpe(["a b c"], vocab_size=257), root / "tokenizer")
(root / "f.py").write_text("def shout(record):\\n    return {**record, 'text': record['text'].upper()}\\n")

def lines(name, count):
    records = [{"id": f"{name}{n}", "text": f"{name} {n} " + "x" * (n % 7)} for n in range(count)]
    return "".join(json.dumps(record) + "\\n" for record in records)

for name in "abcdef":
    bad = "{not json\\n" if name in "bd" else ""
    (data / f"{name}.jsonl").write_text(lines(name, 6) + bad)

STEPS = {
    "jsonl": [Length(min_chars=5), Split(validation=0.3), Write(format="jsonl", compression="gzip")],
    "parquet": [Map(call=f"{root}/f.py:shout"), Write(format="parquet")],
    "barriers": [Limit(max_records=30), Shuffle(), Split(validation=5), Write(format="arrow")],
    "tokens": [Split(validation=0.3), Tokenize(tokenizer=f"{root}/tokenizer"), Pack(row_length=16)],
    "copies": [Deduplicate(ngram=1, threshold=0.6, max_source_loss=1.0), Split(validation=0.3)],
    "nothing": [Length(min_chars=5000), Write(format="jsonl")],
}

def recipe(kind, out):
    sources = {"web": Read(read=str(data / "*.jsonl"))}
    return Recipe(sources=sources, steps=STEPS[kind], output=str(out), allow_empty=kind == "nothing")

def run(kind, out, **options):
    return run_recipe(recipe(kind, out), RunOptions(backend="serial", progress=False, layout=layout, **options))

def without_times(path):
    content = path.read_bytes()
    if path.name == "report.json":
        return {name: value for name, value in json.loads(content).items() if name not in ("run", "page", "checksum")}
    return re.sub(b"<!--run-->.*?<!--/run-->", b"", content, flags=re.DOTALL) if path.name == "report.html" else content

def tree(out):
    return {str(p.relative_to(out)): without_times(p) for p in sorted(out.rglob("*")) if p.is_file()}

def folders(out):
    return sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_dir())

def in_child(left, function):
    pid = os.fork()
    if pid == 0:
        points["left"] = left
        try:
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

kind, _, change = scenario.partition("-")
out = root / "out"
before = root / "before"  # the dataset that is there when the run starts

def prepare():
    shutil.rmtree(out, ignore_errors=True)
    if before.exists():
        shutil.copytree(before, out)

SIDE_FILES = ("README.md", "dataset_dict.json", "state.json", "dataset_info.json", "report.json")
options = {}
if change:
    other = kind if kind in ("barriers", "tokens") else "jsonl"
    run(other, out)
    shutil.copytree(out, before)
    (data / "c.jsonl").unlink()
    (data / "cc.jsonl").write_text(lines("cc", 9) + "[1]\\n")
    options = {change: True}

prepare()
assert in_child(-1, lambda: run(kind, out, **options)) == 0
expected_hash = load_manifest(out).dataset_hash
expected, expected_folders = tree(out), folders(out)
problems = []
for point in range(10_000):
    prepare()
    code = in_child(point, lambda: run(kind, out, **options))
    if code == 0:
        break
    assert code == 99, code
    if (out / "manifest.json").exists():
        # Shards that wait for the manifest, and the small files for `datasets`, cannot change with it in one moment.
        found = [p for p in verify(out).problems if p.kind != "unexpected" and not p.path.endswith(SIDE_FILES)]
        problems += [f"{point}: after the crash: {problem}" for problem in found]
    code = in_child(-1, lambda: run(kind, out, **options))
    if code:
        problems.append(f"{point}: the second run failed")
        continue
    again = tree(out)
    if change == "overwrite":  # it starts anew each time, so the names of the shards depend on what was there
        found = verify(out)
        if not found or load_manifest(out).dataset_hash != expected_hash or len(again) != len(expected):
            problems.append(f"{point}: {found.problems}, {sorted(again)}")
    elif again != expected:
        differing = [path for path in sorted({*again, *expected}) if again.get(path) != expected.get(path)]
        problems.append(f"{point}: other files: {differing}")
    elif folders(out) != expected_folders:
        problems.append(f"{point}: other folders: {folders(out)}")
print(json.dumps({"points": point, "problems": problems}))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "scenario",
    [
        "jsonl",
        "parquet",
        "barriers",
        "nothing",
        "tokens",
        "jsonl-update",
        "parquet-update",
        "barriers-update",
        "nothing-update",
        "tokens-update",
        "copies",
        "copies-update",
        "jsonl-overwrite",
    ],
)
def test_dying_at_any_point_and_running_again_gives_the_same_folder(tmp_path, scenario):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), scenario], capture_output=True, text=True, timeout=590
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["points"] > 10
    assert not report["problems"], "\n".join([*report["problems"], done.stderr])
