"""Copies out of a corpus of several sources."""

from __future__ import annotations

from gristmill.recipe.templates.sample_text import encode_lines, write_prose

RECIPE = """\
# Copies out of a corpus: equal addresses, near copies, and lines that every page has.
output: out
seed: 0

sources:
  books: {read: books.jsonl}
  web: {read: web.jsonl}

steps:
  - deduplicate: {kind: exact, by: url}                     # keeps 46 of 48: one record for each address
  - deduplicate: {threshold: 0.8, prefer: [books]}          # keeps 41 of 46: copies in web go, those in books stay
  - deduplicate: {kind: lines, prefer: [books], min_words: 5}         # keeps 41 of 41: only the first has the notice
  # - deduplicate: {kind: substring, min_words: 50}         # runs of 50 words that came before
  # - deduplicate: {against: older/out}                     # copies of an earlier dataset
  - write: {format: jsonl}
"""


def make_data() -> dict[str, bytes]:
    """Make 12 books and 36 pages, of which five are near copies and two have the address of another."""
    notice = "This text may be copied as long as this line stays."
    books = [{"text": f"{notice}\n{write_prose(number)}", "url": None} for number in range(12)]
    pages = []
    for number in range(36):
        text = write_prose(number - 20 if number in range(20, 25) else 100 + number)
        address = 1 if number in (5, 6) else number
        pages.append({"text": f"{notice}\n{text} The end.", "url": f"https://web.example.org/{address}"})
    return {"books.jsonl": encode_lines(books), "web.jsonl": encode_lines(pages)}
