"""Chats to ids with loss masks: one process against transformers, and runs on two workers; sessions of agents."""

from __future__ import annotations

from functools import partial

from benchmarks.harness.contest import OURS, Contest, Limit, Ratio, Setting, Side
from benchmarks.inputs import agent_sessions, chats, corpora, tokenizers
from benchmarks.inputs.recipes import our_side, to_rows, write_recipe, write_template

TRL = "TRL, `DPOTrainer`"
TRANSFORMERS = "transformers, `return_assistant_tokens_mask`"
ALONE = "two independent processes, half each"
KERNEL_MB = 14
LONG_ROW_LENGTH = 65_536
SESSIONS_MB = 56
TARGETS = {"many-turns": 10, "crosswoz_zh": 10}
MODELS = {
    "gemma2": ("Gemma 2", ("<start_of_turn>", "<end_of_turn>")),
    "gemma3": ("Gemma 3", ("<start_of_turn>", "<end_of_turn>")),
    "llama2": ("Llama 2", ("<s>", "</s>")),
    "yi": ("Yi", ("<|startoftext|>", "<|endoftext|>")),
    "command_r_plus": ("Command R+", ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>")),
}
"""Published tokenizers: the model, and the tokens that begin and end a turn."""
COST = Limit("CPU time of a chat", None, "µs", lambda run: run["inner"] / run["units"] * 1e6)


def list_contests(setting: Setting) -> list[Contest]:
    kinds = chats.list_kinds(setting)
    kernels = [_kernel(kind, None, TARGETS.get(kind, 20)) for kind in kinds]
    published = [_kernel("conversation" if not setting.chats else kinds[0], model, 8) for model in MODELS]
    return [*kernels, *published, _workers(14, rounds=5), _workers(256, rounds=3), LONG, PREFERENCES, SESSIONS]


def _kernel(kind: str, model: str | None, at_least: float) -> Contest:
    def make_sides(setting: Setting) -> list[Side]:
        path = chats.chats(setting, kind, setting.scaled(KERNEL_MB))
        if model is None:
            folder, template = tokenizers.for_chats(setting), write_template(setting)
        else:
            folder = setting.folder / "inputs" / f"tokenizer-{model}"
            template = write_template(setting, f"turns-{model}", MODELS[model][1])
        words = [str(path), str(folder), str(template)]
        prepare = partial(tokenizers.fetch, folder, model) if model else None
        theirs = ["-m", "benchmarks.sides.chats_transformers", *words]
        return [
            Side(OURS, ["-m", "benchmarks.sides.chats_ours", *words], prepare=prepare),
            Side(TRANSFORMERS, theirs, "hugging-face", max_rounds=3, prepare=prepare),
        ]

    marks = "ChatML" if model is None else "ChatML with the model's tokens for turns"
    return Contest(
        name=f"chats-{kind}" + (f"-{model}" if model else ""),
        work=f"chats ({kind}) to packed rows with masks, one process, CPU time"
        + (f", {MODELS[model][0]}'s tokenizer" if model else ""),
        make_sides=make_sides,
        claims=[Ratio(TRANSFORMERS, at_least=at_least, metric="inner"), COST],
        unit="chats",
        data=lambda setting: (
            f"{setting.scaled(KERNEL_MB):g} MB of chats, {marks} and `generation` tags; from the loaded tokenizer on, "
            "at most 2,000 chats for transformers, which makes no rows"
        ),
        rounds=5 if model is None else 3,
    )


def _workers(megabytes: int, rounds: int) -> Contest:
    def make_sides(setting: Setting) -> list[Side]:
        path = chats.chats(setting, "conversation", setting.scaled(megabytes))
        halves = sorted(corpora.parts(setting, path, 2).glob("*.jsonl"))
        size = path.stat().st_size / corpora.MB
        steps = [{"render": {"template": "chatml"}}, *to_rows(tokenizers.for_chats(setting))]
        recipe = write_recipe(setting, f"chats-{megabytes}", str(path.resolve()), steps)
        alone = [
            str(write_recipe(setting, f"chats-{megabytes}-{number}", str(half.resolve()), steps, f"half-{number}"))
            for number, half in enumerate(halves)
        ]
        return [
            our_side(recipe, size),
            Side(ALONE, ["-m", "benchmarks.sides.two_alone", *alone], units=size),
        ]

    return Contest(
        name=f"chats-workers-{megabytes}",
        work=f"chats to packed rows with masks, {megabytes} MB, 2 workers, whole process",
        make_sides=make_sides,
        claims=[Ratio(ALONE, at_least=0.85)],
        data=lambda setting: f"{setting.scaled(megabytes):g} MB of chats of 1 to 4 turns in one file",
        rounds=rounds,
    )


def _long_sides(setting: Setting) -> list[Side]:
    path = chats.chats(setting, "long", setting.scaled(1000))
    steps = [{"render": {"template": "chatml"}}, *to_rows(tokenizers.for_chats(setting), LONG_ROW_LENGTH)]
    return [our_side(write_recipe(setting, "chats-long", str(path.resolve()), steps), path.stat().st_size / corpora.MB)]


LONG = Contest(
    name="chats-long",
    work="chats of about 100 turns to rows of 65,536, 1 GB, 2 workers",
    make_sides=_long_sides,
    claims=[Limit("memory of the largest worker", 700, "MiB", lambda run: run["worker_mib"])],
    rounds=1,
)


def _session_sides(setting: Setting) -> list[Side]:
    folder = agent_sessions.sessions(setting, setting.scaled(SESSIONS_MB))
    words = [str(folder), str(tokenizers.for_chats(setting))]
    return [Side(OURS, ["-m", "benchmarks.sides.sessions_ours", *words])]


SESSIONS = Contest(
    name="agent-sessions",
    work="agent sessions to rows of 16,384 with masks, in windows of turns, one process, CPU time",
    make_sides=_session_sides,
    claims=[Limit("CPU time of a gigabyte of logs", 50, "s/GB", lambda run: run["inner"] / run["units"] * 1000)],
    data=lambda setting: (
        f"{setting.scaled(SESSIONS_MB):g} MB of logs of 40 to 80 turns, as Claude Code writes them; from the loaded "
        "tokenizer on"
    ),
    rounds=5,
)


def _preference_sides(setting: Setting) -> list[Side]:
    kind = "conversation" if not setting.chats else chats.list_kinds(setting)[0]
    path = chats.pairs(setting, kind, setting.scaled(KERNEL_MB))
    words = [str(path), str(tokenizers.for_chats(setting)), str(write_template(setting))]
    return [
        Side(OURS, ["-m", "benchmarks.sides.preferences_ours", *words]),
        Side(TRL, ["-m", "benchmarks.sides.preferences_trl", *words], "hugging-face", max_rounds=3),
    ]


PREFERENCES = Contest(
    name="chats-preferences",
    work="preference pairs to ids of prompt, chosen and rejected, one process, CPU time",
    make_sides=_preference_sides,
    claims=[Ratio(TRL, at_least=10, metric="inner")],
    unit="pairs",
    data=lambda setting: (
        f"pairs of {setting.scaled(KERNEL_MB):g} MB of chats, ChatML; from the loaded tokenizer on, at most 2,000 for "
        "TRL"
    ),
    rounds=5,
)
