"""Gopher's filters on JSON lines, against datatrove's."""

from __future__ import annotations

from benchmarks.harness.contest import Contest, Ratio, Setting, Side
from benchmarks.inputs import corpora
from benchmarks.inputs.recipes import our_side, write_recipe

DATATROVE = "datatrove, 2 tasks"
PEER_MB = 40


def _gopher(megabytes: int, at_least: float, rounds: int) -> Contest:
    def make_sides(setting: Setting) -> list[Side]:
        corpus = corpora.plain(setting, setting.scaled(megabytes))
        part = corpora.plain(setting, setting.scaled(min(megabytes, PEER_MB)))
        corpora.read_once(corpus)
        steps = [{"gopher_quality": {}}, {"gopher_repetition": {}}, {"write": {"format": "jsonl"}}]
        recipe = write_recipe(setting, f"gopher-{megabytes}", str(corpus.resolve()), steps)
        trove = ["-m", "benchmarks.sides.datatrove_runs", "gopher", str(corpora.parts(setting, part, 2))]
        size = part.stat().st_size / corpora.MB
        return [
            our_side(recipe, corpus.stat().st_size / corpora.MB),
            Side(DATATROVE, [*trove, str(setting.output)], "datatrove", size, max_rounds=1),
        ]

    return Contest(
        name=f"gopher-{megabytes}",
        work=f"`gopher_quality` and `gopher_repetition` on JSON lines, {megabytes} MB, 2 workers, whole process",
        make_sides=make_sides,
        claims=[Ratio(DATATROVE, at_least=at_least)],
        data=lambda setting: (
            f"{setting.scaled(megabytes):g} MB of JSON lines"
            + (f", the first {setting.scaled(PEER_MB):g} MB for datatrove" if megabytes > PEER_MB else "")
        ),
        rounds=rounds,
    )


CONTESTS = [_gopher(40, 50, rounds=5), _gopher(400, 120, rounds=3)]
