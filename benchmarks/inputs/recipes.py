"""Recipes of the contests, written as files, because every side of Gristmill is the command `gristmill run`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from benchmarks.harness.contest import OURS, Setting, Side
from benchmarks.harness.environments import variables_of
from benchmarks.harness.processes import run_side

if TYPE_CHECKING:
    from pathlib import Path

ROW_LENGTH = 2048
TEMPLATE = """{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
{%- else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""ChatML with the tags without which transformers gives no mask."""


def write_recipe(setting: Setting, name: str, read: str | list[str], steps: list[dict], output: str = "out") -> Path:
    """Write a recipe whose output is in the folder that is emptied before each run."""
    path = (setting.folder / "recipes" / f"{name}.yaml").resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"output": str((setting.output / output).resolve()), "sources": {"data": {"read": read}}, "steps": steps}
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return path


def write_template(setting: Setting, name: str = "chatml", marks: tuple[str, str] | None = None) -> Path:
    """Write ChatML's template, or one whose turns begin and end with other tokens."""
    path = (setting.folder / "recipes" / f"{name}.jinja").resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    begin, end = marks or ("<|im_start|>", "<|im_end|>")
    path.write_text(TEMPLATE.replace("<|im_start|>", begin).replace("<|im_end|>", end), encoding="utf-8")
    return path


def our_side(recipe: Path, units: float, *, workers: int = 2, name: str = OURS, **options) -> Side:
    """Return the side that runs a recipe from the command line: the whole process, planning and proofs included."""
    command = ["-m", "gristmill", "run", str(recipe), "--workers", str(workers), "--quiet"]
    return Side(name, command, units=units, **options)


def make_dataset(setting: Setting, name: str, read: str, steps: list[dict]) -> Path:
    """Run a recipe once, and keep its dataset with the inputs: the folder of outputs is emptied before each run."""
    output = (setting.folder / "inputs" / name).resolve()
    if not (output / "manifest.json").exists():
        side = our_side(write_recipe(setting, name, read, steps, f"../inputs/{name}"), 1)
        run_side([sys.executable, *side.command], variables_of(side.environment))
    return output


def to_rows(tokenizer: Path, row_length: int = ROW_LENGTH) -> list[dict]:
    return [{"tokenize": {"tokenizer": str(tokenizer.resolve())}}, {"pack": {"row_length": row_length}}]
