"""The bytes that a fixed set of recipes makes: all steps, all formats, one shard or several, whatever the backend.

Manifests, reports and cards are not hashed, since their keys may change, nor the index of blocks, which follows from
the shards (`tests/shards/test_block_index.py`); everything else in an output is. `make golden` writes the hashes in
`hashes/` again.
"""

import bz2
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.golden_inputs import write_inputs

import gristmill as gm
from gristmill import steps
from gristmill.stream import Collate, Stream

HERE = Path(__file__).parent
HASHES = HERE / "hashes"
UNPACK = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
"""Compressors of the system: the same text gives other bytes on another machine, so the text is hashed."""
NOT_HASHED = ("README.md", "manifest.json", "report.json", "report.html")
PROSE = ("error", "traceback")
"""Fields of quarantined records that are words for people; tracebacks also name folders."""
WHAT_TO_DO = """
The same recipe and the same inputs give other bytes than before. If that is not intended, it is a bug: datasets can no
longer be reproduced, resumed or updated. If it is intended,
  1. raise the version of what changed: LAYOUT_VERSION of units, `version` of a step, or the format's own
     (exports have none: each writes all its files, and nothing is kept by their hash);
  2. give the reason in CHANGELOG.md;
  3. run `make golden` and review the diff of tests/golden/hashes.
"""


@dataclass(frozen=True)
class Case:
    """A recipe, how it is changed for the case, what must be run before, and the exports of what it makes."""

    recipe: str
    overrides: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    exports: tuple[dict[str, str], ...] = ()
    unit_borders: bool = False


def _format_case(name, compression):
    return Case("formats", (f"steps.0.write.format={name}", f"steps.0.write.compression={compression}"))


def _exports(*formats, **options):
    return tuple({"to": name, **options} for name in formats)


COMPRESSIONS = {
    "arrow": ("none",),
    "jsonl": ("none", "gzip", "zstd", "bz2", "xz", "lz4"),
    "parquet": ("zstd", "snappy", "gzip", "lz4", "none"),
    "webdataset": ("none",),
}
CASES = {
    "agents": Case("agents"),
    "across": Case("across", exports=_exports("numpy", "webdataset")),
    "chats": Case(
        "chats",
        exports=(
            *_exports("parquet", "jsonl", "numpy", "megatron-bridge", "llamafactory", "mds"),
            *_exports("parquet", columns="stored"),
        ),
    ),
    "chats_kept": Case("chats_kept"),
    "chats_unpacked": Case(
        "chats_unpacked",
        exports=(
            *_exports("olmo-core"),
            *_exports("jsonl", "parquet", columns="axolotl"),
            *_exports("jsonl", columns="levanter"),
        ),
    ),
    "curation": Case("curation"),
    "deduplicate_exact": Case("deduplicate_exact", exports=_exports("jsonl")),
    "deduplicate_near": Case("deduplicate_near", exports=_exports("webdataset")),
    "fill_in": Case("fill_in"),
    "functions": Case("functions", exports=_exports("parquet")),
    "keep_best": Case("keep_best"),
    "literal_tokens": Case("literal_tokens", exports=_exports("jsonl", columns="stored")),
    "mix": Case("mix", exports=_exports("jsonl")),
    "mix_tokens": Case("mix_tokens"),
    "packed": Case(
        "packed",
        needs=("tokens",),
        exports=(
            *_exports("parquet", "jsonl", columns="transformers"),
            *_exports("parquet", "webdataset", columns="training"),
        ),
    ),
    "pictures": Case("pictures"),
    "pictures_again": Case("pictures_again", needs=("pictures",)),
    "preferences": Case("preferences", exports=_exports("parquet", columns="trl")),
    "prompts": Case("prompts", exports=_exports("verl", "trl-prompts", "nemo-rl")),
    "quality": Case("quality"),
    "sources": Case("sources", needs=("functions",)),
    "tokens": Case(
        "tokens",
        exports=(
            *_exports("megatron", "nanogpt", "llmc", "webdataset", "litdata"),
            *_exports("megatron", "nanogpt", "llmc", vocab_size=100_000),
        ),
    ),
    "units": Case("units", unit_borders=True),
    "units-small_shards": Case("units", ("steps.2.write.max_shard_bytes=30KB",)),
    "units_packed": Case("units_packed"),
    **{
        f"formats-{name}-{compression}": _format_case(name, compression)
        for name, compressions in COMPRESSIONS.items()
        for compression in compressions
    },
}

IN_WORKERS = ("chats", "deduplicate_near", "units", "units_packed")
"""The cases that are also run by two worker processes, in smaller slices: starting these takes a second or two."""


@dataclass
class Workspace:
    """A folder with the inputs, in which recipes are run when they are first needed."""

    folder: Path
    backend: str
    results: dict[str, dict[str, object]] = field(default_factory=dict)

    def output(self, name):
        self.run(name)
        return self.folder / "out" / name

    def run(self, name):
        """What a case gives, to be compared with what is recorded."""
        if name not in self.results:
            case = CASES[name]
            for needed in case.needs:
                self.run(needed)
            overrides = [*case.overrides, f"output=out/{name}"]
            if self.backend == "processes":
                overrides.append("slice_bytes=3MB")  # never shapes an output
            recipe = gm.load_recipe(self.folder / f"{case.recipe}.yaml", overrides)
            made = gm.run(recipe, backend=self.backend, workers=2, progress=False)
            self.results[name] = self._described(name, made)
        return self.results[name]

    def _described(self, name, made):
        case, output = CASES[name], self.folder / "out" / name
        files = hash_files(output)
        described = {"files": files}
        if not any(Path(path).suffix in UNPACK for path in files):
            described["dataset_hash"] = made.manifest.dataset_hash
        if case.unit_borders:
            described["units"] = unit_borders(gm.open_dataset(output), output)
        for options in case.exports:
            words = [str(value) for value in options.values()]
            folder = self.folder / "exports" / name / "-".join(words)
            backend = "serial" if self.backend == "serial" else "threads"
            gm.export(output, path=folder / "it", backend=backend, workers=2, progress=False, **options)
            described.setdefault("exports", {})[" ".join(words)] = hash_files(folder)
        return described


def hash_files(folder):
    """Path -> SHA-256 of each file that holds data."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and ".gristmill" not in path.parts)
    relative = [path.relative_to(folder).as_posix() for path in paths]
    hashed = [name for name in relative if name not in NOT_HASHED and not name.startswith("index/")]
    return {name: _hash_file(folder / name) for name in hashed}


def _hash_file(path):
    content = path.read_bytes()
    if path.suffix in UNPACK:
        content = UNPACK[path.suffix](content)
    if path.parent.name == "quarantine":
        records = [json.loads(line) for line in content.splitlines()]
        data = [{key: value for key, value in record.items() if key not in PROSE} for record in records]
        content = json.dumps(data).encode()
    return hashlib.sha256(content).hexdigest()


def unit_borders(dataset, folder):
    """Shard -> its rows, and where the first and the last of them came from."""
    borders = {}
    for split in dataset.splits:
        of_split, index = dataset.split(split), 0
        for source in dataset.sources:
            for path in sorted((folder / split / source).glob("*.arrow")):
                with pa.memory_map(str(path)) as file:
                    num_rows = pa.ipc.open_stream(file).read_all().num_rows
                [first], [last] = of_split.origins(index), of_split.origins(index + num_rows - 1)
                described = [f"{Path(origin.path).name}@{origin.position}" for origin in (first, last)]
                borders[path.relative_to(folder).as_posix()] = [num_rows, *described]
                index += num_rows
        assert index == len(of_split)
    return borders


def differences(recorded, now, where=""):
    """A line for each value that is not what is recorded."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in sorted({*recorded, *now}):
            yield from differences(recorded.get(key), now.get(key), f"{where} / {key}" if where else key)
    elif recorded != now:
        yield f"{where}: recorded {_short(recorded)}, now {_short(now)}"


def _short(value):
    return "nothing" if value is None else f"{value!s:.60}"


@pytest.fixture
def check(request):
    """Compares a description with the recorded one, or records it."""

    def compare(name, now, *, may_rewrite=True):
        path = HASHES / f"{name}.json"
        if may_rewrite and request.config.getoption("--rewrite-golden"):
            HASHES.mkdir(exist_ok=True)
            path.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
        recorded = json.loads(path.read_text()) if path.exists() else {}
        lines = list(differences(recorded, now))
        if lines:
            pytest.fail(f"golden recipe {name}:\n  " + "\n  ".join(lines) + f"\n{WHAT_TO_DO}", pytrace=False)

    return compare


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    yield from made_workspace(tmp_path_factory.mktemp("golden-serial"), "serial")


@pytest.fixture(scope="module")
def in_workers(tmp_path_factory):
    yield from made_workspace(tmp_path_factory.mktemp("in-another-folder"), "processes")


def made_workspace(folder, backend):
    write_inputs(folder / "inputs")
    for path in [*HERE.glob("recipes/*.yaml"), HERE / "functions.py"]:
        shutil.copy(path, folder)
    yield Workspace(folder, backend)
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", CASES)
def test_recipe(serial, check, name):
    check(name, serial.run(name))


@pytest.mark.full
@pytest.mark.parametrize("name", IN_WORKERS)
def test_recipe_in_workers(in_workers, check, name):
    check(name, in_workers.run(name), may_rewrite=False)


def test_mixed_datasets(serial, check):
    folder = serial.folder / "out/mixed_datasets"
    tokens = serial.output("tokens")
    gm.mix({"one": (tokens, 0.75), "two": (tokens, 0.25)}, folder, size=6000, seed=4, max_epochs=2)
    now = {"dataset_hash": gm.open_dataset(folder).manifest.dataset_hash, "files": hash_files(folder)}
    check("mixed_datasets", now)


def test_order_of_training(serial, check):
    """Batches by phases of a mixture."""
    phases = [(0, {"tokens": 0.9, "second": 0.1}), (40, {"tokens": 0.4, "second": 0.6})]
    collate = Collate(fields=("input_ids", "labels", "position_ids"))
    stream = Stream(serial.output("packed"), mixture=phases, seed=9, rows=200, collate=collate)
    batches = list(stream.batches(batch_size=8, rank=1, world_size=2))
    now = {
        name: hashlib.sha256(b"".join(np.ascontiguousarray(batch[name]).tobytes() for batch in batches)).hexdigest()
        for name in collate.fields
    }
    check("order_of_training", now)


def test_nothing_else_is_recorded():
    assert {path.stem for path in HASHES.iterdir()} == {*CASES, "mixed_datasets", "order_of_training"}


RECIPES = [gm.load_recipe(path) for path in sorted(HERE.glob("recipes/*.yaml"))]


def test_every_step_is_used():
    used = {type(step).__name__ for recipe in RECIPES for step in recipe.steps}
    for recipe in RECIPES:
        used.update(type(step).__name__ for source in recipe.sources.values() for step in source.steps)
    assert used == {*steps.__all__} - {"Read"}


def test_every_format_is_used():
    sources = [source.read for recipe in RECIPES for source in recipe.sources.values()]
    assert {read.format for read in sources} - {None} == choices("tokenizer train", "--format")
    exports = [export for case in CASES.values() for export in case.exports]
    assert {export["to"] for export in exports} == choices("export", "--to")
    assert {export.get("columns", "stored") for export in exports} == choices("export", "--columns")
    assert COMPRESSIONS.keys() == accepted(lambda word: steps.Write(format=word))
    for name, compressions in COMPRESSIONS.items():
        assert {*compressions} == accepted(lambda word, name=name: steps.Write(format=name, compression=word))


def choices(command, option):
    """What an option of a command takes, by its help."""
    words = [sys.executable, "-m", "gristmill", *command.split(), "--help"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"})
    return {*re.search(rf"{option} \[([^\]]+)\]", printed.stdout)[1].split("|")}


def accepted(make):
    """The words that are not refused, of those that the error for a wrong one lists."""
    with pytest.raises(gm.errors.UsageError) as refused:
        make("?")
    return {word for word in re.findall(r"\w+", str(refused.value)) if _is_accepted(make, word)}


def _is_accepted(make, word):
    try:
        make(word)
    except gm.errors.UsageError:
        return False
    return True
