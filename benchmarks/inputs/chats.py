"""Chats in the OpenAI shape, of the lengths that public sets have.

| kind | like | turns | characters a chat |
|---|---|---|---|
| `question` | gsm8k, gpteacher | 1 | 700 |
| `conversation` | oasst1 | 1 to 4 | 1,800 |
| `many-turns` | CrossWOZ | 5 to 12, short | 1,000 |
| `long` | agents, books | about 100 | 120,000 |

`CHATS=FOLDER` uses the files of a folder instead, each as one kind of its own; chats with anything but roles and plain
texts are left out.
"""

from __future__ import annotations

import itertools
import json
import random
from typing import TYPE_CHECKING

from benchmarks.inputs import corpora
from benchmarks.inputs.sentences import edit_words, list_sentences

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.harness.contest import Setting

KINDS = {
    # turns at least and at most, sentences of a question at most, of an answer at most
    "question": (1, 1, 3, 6),
    "conversation": (1, 4, 3, 9),
    "many-turns": (5, 12, 1, 1),
    "long": (90, 110, 4, 16),
}


def chats(setting: Setting, kind: str, megabytes: float) -> Path:
    """Return a file of chats of a kind, made or found."""
    source = setting.chats / f"{kind}.jsonl" if setting.chats else None
    if source and source.exists():
        return _plain_chats(setting, source)
    path = setting.folder / "inputs" / f"chats-{kind}-{megabytes:g}.jsonl"
    if not path.exists():
        corpora._write(path, corpora._until(_make(kind), megabytes * corpora.MB))
    return path


def pairs(setting: Setting, kind: str, megabytes: float) -> Path:
    """Return a file of preferences: the prompts and answers of chats, each with the answer of the chat before it."""
    source = chats(setting, kind, megabytes)
    path = source.with_name(f"pairs-of-{source.name}")
    if not path.exists():
        corpora._write(path, _make_pairs(source))
    return path


def _make_pairs(source: Path) -> Iterator[bytes]:
    rejected = {"role": "assistant", "content": "That depends on what you mean."}
    with source.open("rb") as lines:
        for line in lines:
            *prompt, chosen = json.loads(line)["messages"]
            if prompt and chosen["content"] != rejected["content"]:
                yield json.dumps({"prompt": prompt, "chosen": [chosen], "rejected": [rejected]}).encode() + b"\n"
            rejected = chosen


def list_kinds(setting: Setting) -> list[str]:
    """Return the names of the files in the user's folder, or the kinds that are made."""
    if setting.chats:
        return sorted(path.stem for path in setting.chats.glob("*.jsonl"))
    return ["question", "conversation", "many-turns"]


def _plain_chats(setting: Setting, source: Path) -> Path:
    path = setting.folder / "inputs" / f"chats-of-{source.name}"
    if not path.exists():
        with source.open("rb") as lines:
            corpora._write(path, (line for line in lines if _is_plain(json.loads(line)["messages"])))
    return path


def _is_plain(messages: list[dict]) -> bool:
    return all(set(message) == {"role", "content"} and isinstance(message["content"], str) for message in messages)


def _make(kind: str) -> Iterator[bytes]:
    fewest, most, question, answer = KINDS[kind]
    pool, rng = list_sentences(), random.Random(len(kind))
    for number in itertools.count():
        messages = []
        for _ in range(rng.randint(fewest, most)):
            messages.append({"role": "user", "content": _speak(pool, question, rng)})
            messages.append({"role": "assistant", "content": _speak(pool, answer, rng)})
        yield json.dumps({"id": str(number), "messages": messages}, ensure_ascii=False).encode() + b"\n"


def _speak(pool: list[str], most: int, rng: random.Random) -> str:
    text = " ".join(rng.choices(pool, k=rng.randint(max(1, most // 2), most)))
    return " ".join(edit_words(text.split(" "), 0.02, rng))
