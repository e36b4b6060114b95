"""Logs of coding agents, as Claude Code writes them: one event a line.

A session has 40 to 80 turns on one question. A turn is some reasoning, a sentence, a call, and its result of 1 to 8 KB,
which the log holds twice: as the model sees it and as the interface shows it. Now and then an edit of a file is called.
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

USAGE = {
    "input_tokens": 12,
    "cache_creation_input_tokens": 2210,
    "cache_read_input_tokens": 51200,
    "output_tokens": 314,
}
TEMPLATE = """{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}{{ '\\n<tool_call>\\n' }}{{ call.function | tojson }}{{ '\\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def sessions(setting: Setting, megabytes: float) -> Path:
    """Return a folder of logs, made once."""
    folder = setting.folder / "inputs" / f"agent-sessions-{megabytes:g}"
    pool, rng = list_sentences(), random.Random(7)
    num_bytes = number = 0
    while num_bytes < megabytes * corpora.MB:
        path = folder / f"{number:04}.jsonl"
        if not path.exists():
            corpora._write(path, _make(number, pool, random.Random(rng.random() + number)))
        num_bytes += path.stat().st_size
        number += 1
    return folder


def _make(number: int, pool: list[str], rng: random.Random) -> Iterator[bytes]:
    parent = None
    keys = itertools.count()

    def event(kind: str, **fields: object) -> bytes:
        nonlocal parent
        key = f"{number:08x}-0000-4000-8000-{next(keys):012x}"
        common = {"parentUuid": parent, "isSidechain": False, "userType": "external", "cwd": "/home/user/project"}
        more = {"sessionId": f"session-{number}", "version": "2.0.42", "gitBranch": "main", "type": kind, "uuid": key}
        parent = key
        line = {**common, **more, "timestamp": "2026-01-31T12:00:00.000Z", **fields}
        return json.dumps(line, ensure_ascii=False).encode() + b"\n"

    def say(fewest: int, most: int) -> str:
        text = " ".join(rng.choices(pool, k=rng.randint(fewest, most)))
        return " ".join(edit_words(text.split(" "), 0.02, rng))

    yield event("user", message={"role": "user", "content": say(2, 8)})
    for turn in range(rng.randint(40, 80)):
        message = {"id": f"msg_{number}_{turn}", "type": "message", "role": "assistant", "model": "m", "usage": USAGE}
        call_id = f"toolu_{number}_{turn}"
        is_edit = rng.random() < 0.2
        arguments = {"file_path": "/home/user/project/a.py", "old_string": say(3, 10), "new_string": say(3, 12)}
        call = {"type": "tool_use", "id": call_id, "name": "Edit", "input": arguments}
        if not is_edit:
            call |= {"name": "Bash", "input": {"command": f"grep -rn {rng.random():.9f} src", "description": "Search"}}
        for part in ({"type": "thinking", "thinking": say(1, 5), "signature": "c" * 300}, say(1, 2), call):
            block = {"type": "text", "text": part} if isinstance(part, str) else part
            yield event("assistant", message={**message, "content": [block]}, requestId=f"req_{turn}")
        output = "\n".join(say(1, 1) for _ in range(rng.randint(10, 80)))
        result = {"type": "tool_result", "tool_use_id": call_id, "content": output}
        shown = {"stdout": output, "stderr": "", "interrupted": False}
        yield event("user", message={"role": "user", "content": [result]}, toolUseResult=shown)
    yield event(
        "assistant", message={"id": "msg_end", "role": "assistant", "content": [{"type": "text", "text": say(2, 6)}]}
    )
