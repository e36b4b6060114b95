"""Chats made for the tests, and chat templates that a package on PyPI brings: what every machine has."""

import functools
import itertools
import json
import random
from importlib.util import find_spec
from pathlib import Path

from gristmill_testing.open_texts import LANGUAGES

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


def _dialogue(rng, language, num_turns):
    roles = itertools.islice(itertools.cycle(["user", "assistant"]), 2 * num_turns)
    return [
        {"role": role, "content": " ".join(rng.choices(LANGUAGES[language], k=rng.randint(1, 4)))} for role in roles
    ]


def _questions(rng):
    return {"messages": _dialogue(rng, "en", 1)}


def _dialogues(rng):
    system = [{"role": "system", "content": rng.choice(LANGUAGES["en"])}] * rng.randint(0, 1)
    return {"messages": [*system, *_dialogue(rng, rng.choice(["en", "de", "ru", "ar"]), rng.randint(2, 5))]}


def _unspaced(rng):
    return {"messages": _dialogue(rng, rng.choice(["zh", "ja", "th"]), rng.randint(1, 4))}


def _tools(rng):
    place = rng.choice(["Riga", "Łódź", "京都"])
    call = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {"place": place}}}
    return {
        "messages": [
            *_dialogue(rng, "en", rng.randint(0, 1)),
            {"role": "user", "content": f"What is the weather in {place}?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": '{"celsius": 21}'},
            {"role": "assistant", "content": f"It is 21 degrees in {place}."},
        ],
        "tools": [WEATHER],
    }


OPEN_CHATS = {
    "made_questions": _questions,
    "made_dialogues": _dialogues,
    "made_unspaced": _unspaced,
    "made_tools": _tools,
}


def made_chats(name, count):
    rng = random.Random(name)
    return [json.loads(json.dumps(OPEN_CHATS[name](rng))) for _ in range(count)]


@functools.cache
def published_templates():
    """Chat templates by name, as TRL publishes them; those called `*_training` mark answers with generation tags."""
    folder = Path(find_spec("trl").origin).parent / "chat_templates"
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}
