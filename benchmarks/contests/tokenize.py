"""JSON lines to a tokenized dataset in packed rows: the whole process, from the command to the committed manifest."""

from __future__ import annotations

from benchmarks.harness.contest import OURS, Contest, Limit, Ratio, Setting, Side
from benchmarks.inputs import corpora, tokenizers
from benchmarks.inputs.recipes import our_side, to_rows, write_recipe

BARE = "bare code, 2 processes"
DATASETS = "`datasets.map`, `group_texts` and `save_to_disk`, 2 processes"
DATATROVE = "datatrove's `DocumentTokenizer`, 2 tasks, no packing"
PEER_MB = 100


def _inputs(setting: Setting, megabytes: float):
    corpus = corpora.plain(setting, setting.scaled(megabytes))
    corpora.read_once(corpus)
    return corpus, tokenizers.byte_level(setting), corpus.stat().st_size / corpora.MB


def _ours(setting: Setting, megabytes: float) -> Side:
    corpus, tokenizer, size = _inputs(setting, megabytes)
    recipe = write_recipe(setting, f"tokenize-{megabytes}", str(corpus.resolve()), to_rows(tokenizer))
    return our_side(recipe, size)


def _bare(setting: Setting, megabytes: float) -> Side:
    corpus, tokenizer, size = _inputs(setting, megabytes)
    words = ["-m", "benchmarks.sides.bare_tokenize", str(corpus), str(tokenizer), str(setting.output)]
    return Side(BARE, words, units=size)


def _peers(setting: Setting) -> list[Side]:
    corpus, tokenizer, size = _inputs(setting, PEER_MB)
    folder = corpora.parts(setting, corpus, 2)
    maps = ["-m", "benchmarks.sides.datasets_map", str(corpus), str(tokenizer), str(setting.output)]
    trove = ["-m", "benchmarks.sides.datatrove_runs", "tokenize", str(folder), str(setting.output)]
    return [
        Side(DATASETS, maps, "hugging-face", size, max_rounds=2),
        Side(DATATROVE, [*trove, str(tokenizer / "tokenizer.json")], "datatrove", size, max_rounds=2),
    ]


def _against_bare(megabytes: int, at_least: float, rounds: int) -> Contest:
    return Contest(
        name=f"tokenize-{megabytes}",
        work=f"JSON lines to packed rows of 2,048, {megabytes:,} MB, 2 workers, whole process",
        make_sides=lambda setting: [_ours(setting, megabytes), _bare(setting, megabytes)],
        claims=[Ratio(BARE, at_least=at_least)],
        data=lambda setting: _describe(setting, megabytes),
        rounds=rounds,
    )


def _describe(setting: Setting, megabytes: float) -> str:
    size = setting.scaled(megabytes)
    return f"{size:g} MB of JSON lines in one file; bare code: msgspec, fastokens, one write, nothing packed or synced"


CONTESTS = [
    _against_bare(40, 0.5, rounds=5),
    _against_bare(400, 0.7, rounds=3),
    _against_bare(2000, 0.7, rounds=2),
    Contest(
        name="tokenize-peers",
        work="JSON lines to packed rows of 2,048, 400 MB, 2 workers, whole process",
        make_sides=lambda setting: [_ours(setting, 400), *_peers(setting)],
        claims=[
            Ratio(DATASETS, at_least=33),
            Ratio(DATATROVE, at_least=27),
            Limit("memory of the largest worker", 600, "MiB", lambda run: run["worker_mib"], side=OURS),
        ],
        data=lambda setting: (
            f"{setting.scaled(400):g} MB of JSON lines, the first {setting.scaled(PEER_MB):g} MB for `datasets` and "
            "datatrove: rates are compared"
        ),
    ),
]
