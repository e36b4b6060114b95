"""Recipes for common jobs, each with sample data that it runs on: `gristmill init --template NAME`.

`STARTER_RECIPE` is what `gristmill init` writes without a name. The comments of the others say how many records of the
sample data each step keeps; a test runs the recipes and compares. The prose of the sample data is made of sentences in
an order that depends on a number.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING

from gristmill.core.seeds import derive_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def make_files(name: str) -> Mapping[str, bytes]:
    """Make the files of a template: path -> content, the recipe first."""
    recipe, make_data = TEMPLATES[name]
    return {"recipe.yaml": recipe.encode(), **make_data()}


STARTER_RECIPE = """\
# A recipe: where records come from, what happens to them, where they go.
#   gristmill plan recipe.yaml     check everything, do nothing
#   gristmill run recipe.yaml      do it; the same command resumes after a crash
# Paths are relative to this file. Any value can be changed for one run: --set steps.0.length.min_chars=50

output: out                       # a new folder
seed: 0                           # every random choice depends on it

sources:
  sample:                         # a name for these files; add as many sources as you like
    read: sample.jsonl            # also folders, "data/**/*.jsonl.zst", "part-{0000..0099}.parquet", s3://…, lists
    text: text                    # the field that holds the text; "payload.body" for one inside another
    # columns: [url, date]        # only these; without it documents keep all their columns
    # steps: [sample: {fraction: 0.1}]     # only for this source, before the common steps

steps:
  - length: {min_chars: 20}       # drops shorter documents, counted as too_short
  # - filter: {call: functions.py:keep}    # your own function: gets a record as a dict, returns True or False
  # - map: {call: functions.py:clean}      # gets a dict, returns a dict
  # - limit: {max_records: 1000}           # the first 1000 of each source
  # - deduplicate: {threshold: 0.8}        # one of each set of copies, also of nearly equal ones
  # - split: {validation: 0.1}             # by the hash of the text, so copies stay on one side
  - tokenize: {tokenizer: tokenizer}       # a folder, or a name on the Hugging Face Hub
  - pack: {row_length: 64}        # rows of whole documents; models take 2048 or more
  # Documents instead of rows: write: {format: jsonl}, or parquet, arrow, webdataset, instead of the last two steps

max_quarantine: 0.01              # fail if more than 1 % of a source's records cannot be used
"""

STARTER_DATA = "".join(
    f'{{"text": "Document {number}: {sentence}", "url": "https://example.org/{number}"}}\n'
    for number, sentence in enumerate(
        [
            "Wheat goes in at the top of the mill.",
            "The stones turn, and nothing is lost between them.",
            "Short.",
            "What comes out is weighed against what went in.",
            "The miller keeps a book of every sack.",
            "Flour of the same wheat is the same flour, however many hands helped.",
        ]
        * 5
    )
)


FINEWEB_RECIPE = """\
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


def make_fineweb_data() -> dict[str, bytes]:
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


PRETRAIN_RECIPE = """\
# Documents to packed rows of tokens, and a training loop that reads them.
#   gristmill run recipe.yaml, then: python train.py (pip install "gristmill[torch]")
output: out
seed: 0

sources:
  web: {read: documents.jsonl}    # also folders, "data/**/*.parquet", s3://…; add as many sources as you like

steps:
  - length: {min_chars: 200}      # keeps 58 of 60
  - deduplicate: {threshold: 0.8} # keeps 55 of 58
  - split: {validation: 0.1}      # keeps 55 of 55
  - tokenize: {tokenizer: tokenizer}      # init trained it on documents.jsonl; or a name on the Hugging Face Hub
  - pack: {row_length: 128}
"""


def make_pretrain_data() -> dict[str, bytes]:
    """Make 60 documents: two are too short, and three are copies."""
    texts = [write_prose(0 if number in (10, 11, 12) else number) for number in range(60)]
    texts[20] = texts[21] = "A note."
    return {"documents.jsonl": encode_lines({"text": text} for text in texts), "train.py": TRAINING_LOOP.encode()}


SFT_RECIPE = """\
# Chats to packed rows of tokens with a loss mask, and a training loop that reads them.
#   gristmill run recipe.yaml, then: python train.py (pip install "gristmill[torch]")
output: out
seed: 0

sources:
  chats: {read: chats.jsonl}      # messages with role and content, ShareGPT, or instructions and answers

steps:
  - split: {validation: 0.2, by: origin}                    # keeps 30 of 30
  - render: {template: chatml}    # keeps 29 of 30; or the folder of a model, for its own template
  - tokenize: {tokenizer: tokenizer}      # init trained it on chats.jsonl; name that of your model
  - pack: {row_length: 512}       # whole conversations; only answers are trained

max_quarantine: 0.1               # one chat of the sample data has no messages
"""

TRAINING_LOOP = """\
# Trains a small model on the rows of out/. Replace the model with yours; torchrun divides the rows among ranks.
import torch
from torch.nn.functional import cross_entropy

import gristmill as gm
from gristmill.stream import Collate, Stream
from gristmill.stream.torch import TorchLoader

stream = Stream("out", seed=7, epochs=2, collate=Collate(labels="shifted"))
loader = TorchLoader(stream, batch_size=4)
vocab_size = gm.open_dataset("out").manifest.tokenizer.vocab_size
model = torch.nn.Sequential(torch.nn.Embedding(vocab_size, 64), torch.nn.Linear(64, vocab_size))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for batch in loader:
    logits = model(batch["input_ids"])
    loss = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())  # labels of -100 are not trained
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"row {batch.next_row}: loss {loss.item():.2f}")  # loader.state_dict() resumes here
"""

CHATS_RECIPE = """\
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
  # Rows for training, instead of write and of keep: messages:
  # - tokenize: {tokenizer: FOLDER}
  # - pack: {row_length: 4096}    # whole conversations; longer ones lose their oldest exchanges

max_quarantine: 0.1               # one chat of the sample data has no messages
"""


def make_chats_data() -> dict[str, bytes]:
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


def make_sft_data() -> dict[str, bytes]:
    """Make the chats of the template `chats`, and the training loop."""
    return {**make_chats_data(), "train.py": TRAINING_LOOP.encode()}


CODE_RECIPE = """\
# Source files to clean code.
output: out
seed: 0

sources:
  code: {read: files.jsonl}       # or a folder: {read: "src/**/*.py", format: text}

steps:
  - length: {min_chars: 60, max_chars: 200000}              # keeps 38 of 40
  - code: {}                      # keeps 36 of 38: long lines, data instead of code
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


def make_code_data() -> dict[str, bytes]:
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


IMAGES_RECIPE = """\
# A folder of images to tars. Needs Pillow: pip install "gristmill[images]"
output: out
seed: 0

sources:
  photos: {read: photos}          # photos/cat/0001.jpg, photos/dog/0002.png: folders are labels

steps:
  - images: {min_width: 32, min_height: 32, max_aspect: 3, resize: 64, reencode: png}     # keeps 22 of 24
  - deduplicate: {kind: exact}    # keeps 21 of 22; kind: image also finds resized and recompressed copies
  - split: {validation: 0.2, by: origin}                    # keeps 21 of 21
  - write: {format: webdataset}
"""


def make_images_data() -> dict[str, bytes]:
    """Make 24 pictures in two folders: one is too small, one too wide, one a copy."""
    pictures = {}
    for number in range(24):
        width, height = (16, 16) if number == 3 else (400, 40) if number == 4 else (80, 96)
        shade = 5 if number == 6 else number
        pictures[f"photos/{'cat' if number % 2 else 'dog'}/{number:04}.png"] = _draw_png(width, height, shade)
    return pictures


def _draw_png(width: int, height: int, shade: int) -> bytes:
    """Draw a colour gradient as a PNG file."""
    rows = b"".join(
        b"\0" + bytes(channel for column in range(width) for channel in ((column * 3) % 256, row % 256, shade * 10))
        for row in range(height)
    )
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


DEDUP_RECIPE = """\
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


def make_dedup_data() -> dict[str, bytes]:
    """Make 12 books and 36 pages, of which five are near copies and two have the address of another."""
    notice = "This text may be copied as long as this line stays."
    books = [{"text": f"{notice}\n{write_prose(number)}", "url": None} for number in range(12)]
    pages = []
    for number in range(36):
        text = write_prose(number - 20 if number in range(20, 25) else 100 + number)
        address = 1 if number in (5, 6) else number
        pages.append({"text": f"{notice}\n{text} The end.", "url": f"https://web.example.org/{address}"})
    return {"books.jsonl": encode_lines(books), "web.jsonl": encode_lines(pages)}


_SUBJECTS = (
    "The miller",
    "An old farmer",
    "The baker",
    "A young carpenter",
    "The river",
    "Our neighbour",
    "The village",
)
_VERBS = ("brings", "carries", "remembers", "follows", "repairs", "watches", "describes", "measures")
_OBJECTS = (
    "the sacks that have been left by the door",
    "a wooden wheel that turns with the water",
    "every letter of the book with great care",
    "the road to the market in the early morning",
    "stones which have been worn by years of work",
    "a basket of bread and the news of the day",
    "some tools that nobody has used since spring",
    "the old clock whose hands have stopped at noon",
    "an apple tree that stands behind the barn",
    "songs of sailors who have never seen the sea",
    "two horses and the cart with a broken axle",
    "her notes about birds to show them to a friend",
    "the narrow bridge where children like to fish",
    "grain of four fields that have different soils",
    "a lantern for the people who walk home late",
    "his letters to a brother in another country",
    "maps of the valley that were drawn by hand",
    "the fire of the oven until the loaves are brown",
)
_ENDS = (
    "before the rain comes",
    "with a quiet smile",
    "because the harvest was good",
    "and goes home",
    "in late autumn",
    "as always",
    "without a word",
    "when the bell rings",
    "to be of help",
    "for a small fee",
)


def write_prose(number: int, num_sentences: int = 9) -> str:
    """Write a page of sentences, three to a line.

    >>> write_prose(1, 1) == write_prose(1, 1), write_prose(1) == write_prose(2)
    (True, False)
    """
    first = derive_key(number, "first")
    sentences = []
    for index in range(num_sentences):
        key = derive_key(number, f"sentence {index}")
        # Steps of 5 and 3 through the lists: no page says the same thing twice.
        thing, end = _OBJECTS[(first + 5 * index) % len(_OBJECTS)], _ENDS[(first + 3 * index) % len(_ENDS)]
        subject, verb = _SUBJECTS[key % len(_SUBJECTS)], _VERBS[key // 7 % len(_VERBS)]
        sentences.append(f"{subject} {verb} {thing} {end}, {key // 100 % 900} steps from {key // 10**6 % 70} wells.")
    lines = [" ".join(sentences[start : start + 3]) for start in range(0, num_sentences, 3)]
    return "\n".join(lines)


def encode_lines(records: Iterable[Mapping[str, object]]) -> bytes:
    """Encode records as JSON lines."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


TEMPLATES: Mapping[str, tuple[str, Callable[[], Mapping[str, bytes]]]] = {
    "pretrain": (PRETRAIN_RECIPE, make_pretrain_data),
    "sft": (SFT_RECIPE, make_sft_data),
    "fineweb": (FINEWEB_RECIPE, make_fineweb_data),
    "chats": (CHATS_RECIPE, make_chats_data),
    "code": (CODE_RECIPE, make_code_data),
    "images": (IMAGES_RECIPE, make_images_data),
    "dedup": (DEDUP_RECIPE, make_dedup_data),
}
