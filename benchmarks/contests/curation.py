"""Curation: benchmark items in documents, text of HTML pages, repeated lines, and thresholds of kept scores."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.harness.contest import OURS, Contest, Limit, Ratio, Setting, Side
from benchmarks.inputs import corpora, web_pages
from benchmarks.inputs.recipes import our_side, write_recipe
from benchmarks.inputs.sentences import list_sentences

if TYPE_CHECKING:
    from pathlib import Path

DATATROVE = "datatrove, 2 tasks"
BARE = "resiliparse alone, 2 processes"
SIDES = ["-m", "benchmarks.sides.curation"]
PEER_MB = 20
LINES_MB = 400
HTML_MB = 100
"""A GB of HTML: ten seconds for the library, so that the start of three processes is not what is compared."""
TUNED = 1_000_000


def _decontaminate_sides(setting: Setting) -> list[Side]:
    megabytes = setting.scaled(PEER_MB * 10)
    documents, questions = web_pages.contaminated(setting, megabytes)
    part, _ = web_pages.contaminated(setting, setting.scaled(PEER_MB))
    for path in (documents, part):
        corpora.read_once(path)
    step = {"benchmarks": {"questions": str(questions.resolve())}, "action": "drop", "max_source_loss": 1.0}
    steps = [{"decontaminate": step}, {"write": {"format": "jsonl"}}]
    recipe = write_recipe(setting, "decontaminate", str(documents.resolve()), steps)
    output = str(setting.output / "out")
    peer = [str(corpora.parts(setting, part, 2)), str(part), str(questions), str(setting.output)]
    size, part_size = (path.stat().st_size / corpora.MB for path in (documents, part))
    return [
        Side(OURS, [*SIDES, "ours", str(recipe), str(documents), output], units=size),
        Side(DATATROVE, [*SIDES, "datatrove", *peer], "datatrove", part_size, max_rounds=1),
    ]


def _html_sides(setting: Setting) -> list[Side]:
    pages = web_pages.html(setting, setting.scaled(HTML_MB))
    corpora.read_once(pages)
    size = pages.stat().st_size / corpora.MB
    recipe = write_recipe(setting, "html", str(pages.resolve()), [{"html": {}}, {"write": {"format": "jsonl"}}])
    bare = [*SIDES, "html", str(corpora.parts(setting, pages, 2)), str(setting.output)]
    return [our_side(recipe, size), Side(BARE, bare, units=size)]


def _pieces(kind: str) -> Contest:
    def make_sides(setting: Setting) -> list[Side]:
        corpus = corpora.with_copies(setting, setting.scaled(LINES_MB))
        corpora.read_once(corpus)
        steps = [{"deduplicate": {"kind": kind, "max_source_loss": 1.0}}, {"write": {"format": "jsonl"}}]
        recipe = write_recipe(setting, f"dedup-{kind}", str(corpus.resolve()), steps)
        return [our_side(recipe, corpus.stat().st_size / corpora.MB, workers=1)]

    return Contest(
        name=f"dedup-{kind}",
        work=f"`deduplicate: {{kind: {kind}}}` on JSON lines, {LINES_MB} MB, 1 worker, whole process",
        make_sides=make_sides,
        # 30 MB/s a core are 33 s of a core for a GB.
        claims=[Limit(f"CPU time for {LINES_MB} MB", LINES_MB / 30, "s", lambda run: run["cpu"])],
        data=lambda setting: f"{setting.scaled(LINES_MB):g} MB of JSON lines, one document in ten a copy",
    )


def _tune_sides(setting: Setting) -> list[Side]:
    dataset = make_scored_dataset(setting, int(setting.scaled(TUNED, at_least=1000)))
    return [Side(OURS, ["-m", "gristmill", "tune", str(dataset)])]


def make_scored_dataset(setting: Setting, num_documents: int) -> Path:
    """Make a dataset of short documents whose scores of three filters are kept, once for all runs."""
    folder = (setting.folder / "inputs" / f"scored-{num_documents}").resolve()
    if not (folder / "manifest.json").exists():
        corpus = folder.with_suffix(".jsonl")
        pool = list_sentences(setting.corpus)
        with corpus.open("w", encoding="utf-8") as file:
            for number in range(num_documents):
                first = number * 7919 % (len(pool) - 3)
                file.write(json.dumps({"text": " ".join(pool[first : first + 3])}) + "\n")
        steps = [{"gopher_quality": {"min_words": 20}}, {"gopher_repetition": {}}, {"fineweb": {}}]
        steps.append({"write": {"format": "jsonl"}})
        recipe = write_recipe(setting, "scored", str(corpus), steps)
        content = recipe.read_text().replace(str((setting.output / "out").resolve()), str(folder))
        recipe.write_text(content)
        subprocess.run([sys.executable, "-m", "gristmill", "run", str(recipe), "--quiet"], check=True)
        corpus.unlink()
    return folder


def miss(run: dict) -> float:
    """Return the share of planted questions that a side has not found, in percent."""
    return 100 * (1 - run["facts"]["recall"])


CONTESTS = [
    Contest(
        name="decontaminate",
        work=f"1,000 questions in {PEER_MB * 10} MB of JSON lines, found and dropped, 2 workers, whole process",
        make_sides=_decontaminate_sides,
        claims=[
            Ratio(DATATROVE, 20, "inner"),
            Limit("documents with a question that are missed", 0.0, "%", miss),
            Limit("documents with a question that datatrove misses", None, "%", miss, side=DATATROVE),
            Limit("other documents dropped", 0, "", lambda run: run["facts"]["lost"]),
        ],
        data=lambda setting: (
            f"{setting.scaled(PEER_MB * 10):g} MB, one document in 20 with a question; "
            f"the first {setting.scaled(PEER_MB):g} MB for datatrove"
        ),
    ),
    Contest(
        name="html",
        work=f"text of HTML pages in JSON lines, {HTML_MB} MB of text in them, 2 workers, whole process",
        make_sides=_html_sides,
        claims=[Ratio(BARE, 0.9)],
        data=lambda setting: f"pages of about 20 kB around {setting.scaled(HTML_MB):g} MB of JSON lines",
    ),
    _pieces("lines"),
    _pieces("paragraphs"),
    Contest(
        name="tune",
        work="`gristmill tune` on the scores of 1,000,000 documents, whole process",
        make_sides=_tune_sides,
        claims=[
            Limit("seconds", 2, "s", lambda run: run["wall"]),
            Limit("CPU time", None, "s", lambda run: run["cpu"]),
        ],
        unit="run",
        data=lambda setting: f"{int(setting.scaled(TUNED, at_least=1000)):,} documents, three filters",
    ),
]
