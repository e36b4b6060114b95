"""Count the modules on the way of a record: those whose functions run, for one small recipe each.

python -m benchmarks.studies.ways lists them. Imports do not count, nor planning, publishing and the commands.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec

import gristmill as gm
from gristmill import steps
from gristmill.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = f"{Path(gm.__file__).parent}/"
CHAT_ROOMS = ("steps/render", "steps/tokenize", "text/chats")
NEAR_ROOMS = ("pipeline/barriers", "steps/deduplicate", "text/")


def count_modules(function: Callable[[], Any], inside: str = "") -> set[str]:
    """Return the modules of Gristmill that run in a call; with `inside`, only while a function of that name runs."""
    modules, depth = set[str](), [0]

    def watch(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(ROOT):
            return
        depth[0] += code.co_name == inside and {"call": 1, "return": -1}.get(event, 0)
        if event == "call" and (depth[0] or not inside) and code.co_name != "<module>":
            modules.add(code.co_filename.removeprefix(ROOT))

    sys.setprofile(watch)
    threading.setprofile(watch)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return modules


def count_ways(folder: Path) -> dict[str, set[str]]:
    """Count the modules of all ways, with files in a folder."""
    numbers = random.Random(1)
    texts = [" ".join(f"w{numbers.randrange(300)}" for _ in range(60)) for _ in range(300)]
    chats = [[{"role": "user", "content": text[:12]}, {"role": "assistant", "content": text[:9]}] for text in texts]
    for name, records in (
        ("documents", [{"text": text} for text in [*texts, *(f"{text} end" for text in texts[:30])]]),
        ("chats", [{"messages": messages} for messages in chats]),
    ):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    gm.train_tokenizer(texts, folder / "tokenizer", vocab_size=400)
    rows = [steps.Tokenize(tokenizer=str(folder / "tokenizer")), steps.Pack(row_length=512)]

    def run(name: str, chain: list[Any]) -> None:
        read = steps.Read(read=str(folder / f"{name}.jsonl"))
        recipe = gm.Recipe(sources={"web": read}, steps=chain, output=str(folder / f"out-{len(chain)}-{name}"))
        gm.run(recipe, backend="serial", progress=False)

    near = count_modules(lambda: run("documents", [steps.Deduplicate(), steps.Write(format="jsonl")]))
    line = count_modules(lambda: run("documents", [steps.Length(min_chars=3), *rows]), inside="run_unit_task")
    chat = count_modules(lambda: run("chats", [steps.Render(template="chatml"), *rows]), inside="run_unit_task")
    output, store = folder / "out-3-documents", fsspec.filesystem("memory")
    for path in output.rglob("*"):
        if path.is_file():
            store.pipe_file(f"/ways/{path.relative_to(output)}", path.read_bytes())
    local, remote = Stream(output, epochs=1), Stream("memory://ways", epochs=1, cache=folder / "cache")
    return {
        "a JSON line, from file to tensor": line | count_modules(lambda: local.batch(0, 4)),
        "a chat, to ids and masks": {module for module in chat if module.startswith(CHAT_ROOMS)},
        "a near-duplicate, to its removal": {module for module in near if module.startswith(NEAR_ROOMS)},
        "a row, from a store to a batch": count_modules(lambda: remote.batch(0, 4)),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for way, modules in count_ways(Path(temporary)).items():
            print(f"{way}: {len(modules)}", *sorted(modules), sep="\n    ")
