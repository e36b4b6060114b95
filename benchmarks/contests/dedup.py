"""Near-duplicates: a whole run, and texts in memory against other libraries."""

from __future__ import annotations

from benchmarks.harness.contest import OURS, Contest, Limit, Ratio, Setting, Side
from benchmarks.inputs import corpora
from benchmarks.inputs.recipes import our_side, write_recipe

SKETCH = "datasketch, `update` as in its documentation"
BATCH = "datasketch, `update_batch`"
RENSA = "rensa, from word lists"
DATATROVE = "datatrove, its three stages"
PEER_MB = 3
ONE_THREAD = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "RENSA_NUM_THREADS": "1"}


def _run_sides(setting: Setting) -> list[Side]:
    corpus = corpora.short_documents(setting, int(setting.scaled(500_000)))
    corpora.read_once(corpus)
    steps = [{"deduplicate": {}}, {"write": {"format": "jsonl"}}]
    recipe = write_recipe(setting, "dedup", str(corpus.resolve()), steps)
    return [our_side(recipe, corpus.stat().st_size / corpora.MB)]


def _texts_sides(setting: Setting) -> list[Side]:
    corpus = corpora.with_copies(setting, setting.scaled(50))

    def side(name: str, key: str, environment: str, *limit: str) -> Side:
        words = ["-m", "benchmarks.sides.texts_dedup", key, str(corpus), *limit]
        return Side(name, words, environment, max_rounds=2, variables=ONE_THREAD)

    few = str(setting.scaled(PEER_MB))
    return [
        side(OURS, "gristmill", OURS),
        side(RENSA, "rensa", "datasketch"),
        side(SKETCH, "datasketch", "datasketch", few),
        side(BATCH, "datasketch-batch", "datasketch", few),
        side(DATATROVE, "datatrove", "datatrove", few),
    ]


CONTESTS = [
    Contest(
        name="dedup-500000",
        work="near-duplicates among 500,000 documents, JSON lines to JSON lines, 2 workers, whole process",
        make_sides=_run_sides,
        claims=[
            Limit("CPU time of all processes", 10, "s", lambda run: run["cpu"]),
            Limit("memory of the largest worker", None, "MiB", lambda run: run["worker_mib"]),
        ],
        data=lambda setting: f"{setting.scaled(500_000):,.0f} documents of 300 words, one in ten a copy with edits",
        rounds=3,
    ),
    Contest(
        name="dedup-texts",
        work="find near-duplicates among texts in memory, one core each, CPU time",
        make_sides=_texts_sides,
        claims=[
            Ratio(SKETCH, 60, "inner"),
            Ratio(BATCH, None, "inner"),
            Ratio(DATATROVE, 30, "inner"),
            Ratio(RENSA, 3, "inner"),
            Limit("planted pairs missed, %", 0.5, "%", lambda run: 100 - 100 * run["facts"]["recall"]),
        ],
        data=lambda setting: (
            f"{setting.scaled(50):g} MB of documents, one in ten an edited copy; the first {setting.scaled(PEER_MB):g} "
            "MB for datasketch and datatrove"
        ),
        rounds=2,
    ),
]
