"""Inputs of the contests of curation: pages of HTML, and documents with items of a benchmark inside them."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

from benchmarks.inputs import corpora
from benchmarks.inputs.sentences import list_sentences

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.harness.contest import Setting

NUM_ITEMS = 1000
PLANTED = 20
"""One document in so many has an item."""
_HEAD = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<link rel="stylesheet" href="/static/main.css"><style>{style}</style><script>{script}</script></head>
<body class="page"><div id="top"><header class="site-header"><nav aria-label="Main"><ul>{links}</ul></nav></header>
<main><div class="row"><div class="column column-8"><article itemscope><h1>{title}</h1>
"""
_FOOT = """</article><section class="comments"><h2>Comments</h2>{comments}</section></div>
<aside class="column column-4"><h2>Related</h2><ul>{links}</ul></aside></div></main>
<footer><ul>{links}</ul><p>&copy; 2026 Example. All rights reserved.</p></footer></div></body></html>"""
_LINK = '<li class="menu-item"><a class="nav" href="/p/{0}?ref=menu" data-id="{0}"><span>Page {1}</span></a></li>'
_COMMENT = (
    '<div class="comment" id="c{0}"><div class="meta"><img src="/u/{0}.png" alt=""><b>user{0}</b></div><p>{1}</p></div>'
)
_STYLE = ".row{display:flex;margin:0 auto;max-width:1200px}" * 40
_SCRIPT = 'window.items.push({id: 1, kind: "view", tags: ["a", "b"], url: "/x?y=<1>"});' * 40


def html(setting: Setting, megabytes: float) -> Path:
    """Pages with menus, scripts, comments and footers around the documents of `corpora.plain`, about 20 kB each."""
    path = setting.folder / "inputs" / f"html-{megabytes:g}.jsonl"
    if not path.exists():
        write_lines(path, _pages(corpora.plain(setting, megabytes)))
    return path


def contaminated(setting: Setting, megabytes: float) -> tuple[Path, Path]:
    """Documents of which one in 20 has a question of a benchmark, in one of three forms, and the file of questions.

    The key `item` of such a document is the number of its question. Questions have random words, so that no other
    document has 13 of them in a row.
    """
    folder = setting.folder / "inputs"
    documents, questions = folder / f"contaminated-{megabytes:g}.jsonl", folder / "questions.jsonl"
    if not (documents.exists() and questions.exists()):
        rng = random.Random(5)
        words = sorted({word for sentence in list_sentences(setting.corpus)[:4000] for word in sentence.split()})
        items = [
            {"question": " ".join(rng.choices(words, k=rng.randrange(16, 50))) + "?", "answer": rng.choice(words)}
            for _ in range(NUM_ITEMS)
        ]
        write_lines(questions, items)
        write_lines(documents, _plant(corpora.plain(setting, megabytes), items, rng))
    return documents, questions


def write_lines(path: Path, records: Iterator[dict] | list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _pages(documents: Path) -> Iterator[dict]:
    with documents.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            record = json.loads(line)
            sentences = record["text"].split(". ")
            links = "".join(_LINK.format(number + step, step) for step in range(30))
            comments = "".join(_COMMENT.format(number + step, sentences[0][:80]) for step in range(5))
            paragraphs = [". ".join(sentences[first : first + 4]) for first in range(0, len(sentences), 4)]
            body = "\n".join(
                f'<div class="block"><p class="text" id="p{index}">{text} <a href="/n/{index}">[{index}]</a></p></div>'
                for index, text in enumerate(paragraphs)
            )
            head = _HEAD.format(title=sentences[0][:60], style=_STYLE, script=_SCRIPT, links=links)
            yield {"id": record["id"], "text": head + body + _FOOT.format(links=links, comments=comments)}


def _plant(documents: Path, items: list[dict], rng: random.Random) -> Iterator[dict]:
    with documents.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            record = json.loads(line)
            if number % PLANTED == 0:
                index = rng.randrange(len(items))
                question, answer = items[index]["question"], items[index]["answer"]
                form = (question, question.upper(), f"{question} {answer}")[number // PLANTED % 3]
                words = record["text"].split(" ")
                record["text"] = " ".join([*words[: len(words) // 2], form, *words[len(words) // 2 :]])
                record["item"] = index
            yield record
