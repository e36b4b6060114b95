"""Chats to clean chats, ready for a tokenizer."""

from __future__ import annotations

from gristmill.recipe.templates.sample_text import encode_lines, write_prose

RECIPE = """\
# Chats to clean chats; the last lines make packed rows with a loss mask of them.
output: out
seed: 0

sources:
  chats: {read: chats.jsonl}      # messages with role and content, ShareGPT, or instructions and answers

steps:
  - render: {template: chatml, keep: messages}              # keeps 29 of 30: checks roles and order; chats stay chats
  - length: {min_chars: 80, max_chars: 20000}               # keeps 28 of 29
  - deduplicate: {threshold: 0.9}                           # keeps 25 of 28
  - split: {validation: 0.1, by: origin}                    # keeps 25 of 25
  - write: {format: jsonl}
  # Rows for training, in place of write and of keep: messages:
  # - tokenize: {tokenizer: FOLDER}
  # - pack: {row_length: 4096}    # whole conversations; longer ones lose their oldest exchanges

max_quarantine: 0.1               # one chat of the sample data has no messages
"""


def make_data() -> dict[str, bytes]:
    """Make 30 chats: one is empty, one too short, three are copies."""
    chats = []
    for number in range(30):
        question, answer = f"What does the book say about day {number}?", write_prose(number, 3)
        if number == 7:
            question, answer = "Hm?", "Yes."
        if number in (11, 12, 13):
            question, answer = "What does the book say about day 10?", write_prose(10, 3)
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        chats.append({"messages": [] if number == 3 else messages})
    return {"chats.jsonl": encode_lines(chats)}
