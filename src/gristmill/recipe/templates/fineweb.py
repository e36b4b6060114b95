"""Web pages to clean documents, in the order of FineWeb."""

from __future__ import annotations

from gristmill.recipe.templates.sample_text import encode_lines, write_prose

RECIPE = """\
# Web pages to clean documents, in the order of FineWeb. The comments say what each step keeps of the sample data.
#   gristmill plan recipe.yaml, then gristmill run recipe.yaml; gristmill explain recipe.yaml pages.jsonl:3 shows why
output: out
seed: 0
keep_dropped: samples             # 20 records of each step and reason go to out/dropped/

sources:
  web: {read: pages.jsonl}        # or "crawl/*.warc.gz", with the step html (pip install "gristmill[web]")

steps:
  - url: {domains: [spam.example], words: [casino]}         # keeps 57 of 60
  # - html: {}                    # pages of HTML to text
  - normalize: {}                 # keeps 57 of 57: composed characters, plain newlines, no control characters
  - language: {languages: [en], min_score: 0.65}            # keeps 54 of 57
  - gopher_repetition: {}         # keeps 51 of 54: documents that repeat themselves
  - gopher_quality: {}            # keeps 48 of 51: too short, no sentences, mostly symbols
  - fineweb: {}                   # keeps 45 of 48: lists and menus
  - deduplicate: {threshold: 0.8}                           # keeps 39 of 45, over all sources together
  - pii: {}                       # keeps 39 of 39: e-mail and public IP addresses become <EMAIL> and <IP>
  # - decontaminate: {benchmarks: {gsm8k: gsm8k_test.jsonl}}
  - write: {format: jsonl}        # or: tokenize: {tokenizer: FOLDER}, pack: {row_length: 4096}
"""


def make_data() -> dict[str, bytes]:
    """Make 60 pages: most are fine, and some fail at each step."""
    german = "Der Müller bringt die Säcke am Morgen zum Markt, weil die Ernte in diesem Jahr gut war. " * 3
    pages = []
    for number in range(60):
        text, url = write_prose(number), f"https://site{number % 9}.example.org/{number}"
        kind = number % 20
        if kind == 1:
            url = f"https://www.spam.example/{number}"
        elif kind == 2:
            text = german
        elif kind == 3:
            text = "\n".join([write_prose(number, 1)] * 8)
        elif kind == 4:
            text = "See also: the mill, and the river that turns it."
        elif kind == 5:
            text = write_prose(number).replace(". ", "\n").replace(".", "")
        elif kind in (6, 7):
            text = write_prose(number - kind) + " It is the end."
        elif kind == 8:
            text += f" Write to miller{number}@mill.example.org or 8.8.4.4 for the rest of the story."
        pages.append({"text": text, "url": url})
    return {"pages.jsonl": encode_lines(pages)}
