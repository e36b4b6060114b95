"""Source files to clean code."""

from __future__ import annotations

from gristmill.recipe.templates.sample_text import encode_lines

RECIPE = """\
# Source files to clean code.
output: out
seed: 0

sources:
  code: {read: files.jsonl}       # or a folder: {read: "src/**/*.py", format: text}

steps:
  - length: {min_chars: 60, max_chars: 200000}              # keeps 38 of 40
  - code: {}                      # keeps 36 of 38: long lines, data in place of code
  - repetition: {max_longest_character_run: 100}            # keeps 35 of 36: rulers and padding
  - pii: {kinds: [email, key]}    # keeps 35 of 35: addresses, tokens and private keys become placeholders
  - deduplicate: {threshold: 0.85}                          # keeps 32 of 35: copies and forks
  # - deduplicate: {kind: lines, min_words: 12}             # licences that every file begins with
  - write: {format: jsonl}        # or: tokenize: {tokenizer: FOLDER}, pack: {row_length: 8192}
"""


def _write_function(number: int) -> str:
    names = [f"value_{number}_{index}" for index in range(6)]
    body = "\n".join(f"    {name} = compute_{name}(first + {number * 7 + index})" for index, name in enumerate(names))
    head = f'def task_{number}(first):\n    """Compute the parts of task {number}."""\n'
    return f"{head}{body}\n    return {' + '.join(names)}\n"


def make_data() -> dict[str, bytes]:
    """Make 40 files: some are too short, some data, some copies, and one holds a token."""
    files = []
    for number in range(40):
        text = _write_function(number)
        if number in (3, 4):
            text = f"x = {number}\n"
        elif number in (8, 9):
            text = "DATA = [" + ", ".join(str(value * number) for value in range(400)) + "]\n"
        elif number == 14:
            text += "#" * 120 + "\n"
        elif number == 20:
            text += f'TOKEN = "ghp_{"a1B2" * 9}"  # ask dev@example.org\n'
        elif number in (31, 32, 33):
            text = _write_function(30) + f"# fork {number}\n"
        files.append({"text": text, "path": f"src/task_{number}.py"})
    return {"files.jsonl": encode_lines(files)}
