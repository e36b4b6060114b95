"""The inputs of the golden recipes: the same records on every machine, whatever the versions of Python and libraries.

No `random` (its methods may change) and no compressor (its bytes do change): gzip members are stored, not deflated, and
the tokenizer is written by hand. What pyarrow and `datasets` write may differ in bytes, but the records read from it do
not, and nothing else of files of this size shapes an output.
"""

import io
import json
import struct
import tarfile
import zlib

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from gristmill_testing import agent_logs
from gristmill_testing.web_archives import http_page, warc_record

_SENTENCES = (
    "the mill stands by river and grinds corn of valley that nobody remembers building but everybody knows have way to "
    "its door with water high wheel turns day night children bring their bread school talk about weather harvest was "
    "poor miller took nothing for his work stone flour sacks carried over bridge town every morning before sun rises"
)
WORDS = _SENTENCES.split()
GERMAN = (
    "Die Mühle steht am Fluss und mahlt das Korn des ganzen Tales, aber niemand weiß mehr, wer sie gebaut hat. "
    "Im Frühling steht das Wasser hoch und das Rad dreht sich bei Tag und bei Nacht, sagen die Leute im Dorf. "
)


class Draws:
    """A sequence of pseudo-random numbers (SplitMix64)."""

    def __init__(self, seed):
        self._state = seed

    def below(self, bound):
        self._state = (self._state + 0x9E3779B97F4A7C15) % 2**64
        mixed = (self._state ^ (self._state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        return (mixed ^ (mixed >> 31)) % bound

    def sentence(self, num_words):
        words = [WORDS[self.below(len(WORDS))] for _ in range(num_words)]
        return f"{words[0].capitalize()} {' '.join(words[1:])}."

    def text(self, num_sentences):
        return " ".join(self.sentence(4 + self.below(12)) for _ in range(num_sentences))

    def page(self, num_paragraphs):
        return "\n\n".join(self.text(2 + self.below(4)) for _ in range(num_paragraphs))


def write_inputs(folder):
    """All of them, below `folder`."""
    _write_documents(folder)
    _write_pages(folder / "pages.jsonl")
    _write_copies(folder)
    _write_chats(folder)
    _write_sessions(folder / "agents")
    _write_large(folder)
    _write_crawl(folder)
    _write_rollouts(folder)
    write_tokenizer(folder / "tokenizer")


def _write_rollouts(folder):
    """Literal tokens, one of them outside the vocabulary, and prompts with what is right."""
    draws = Draws(33)
    rollouts = []
    for number in range(60):
        prompt, completion = ([draws.below(200) for _ in range(1 + draws.below(20))] for _ in range(2))
        completion += [9999] if number == 17 else []
        numbers = [draws.below(4000) / -1000 for _ in completion]
        weights = [1, 0.5, 0][: len(completion)] + [1] * (len(completion) - 3)
        rollouts.append({"prompt": prompt, "completion": completion, "logprobs": numbers, "weights": weights})
    _write(folder / "rollouts.jsonl", _lines(rollouts))
    prompts = [{"question": draws.sentence(9), "answer": str(number), "level": number % 3} for number in range(40)]
    _write(folder / "prompts.jsonl", _lines([*prompts, *prompts[:5]]))
    pairs = [
        {"prompt": draws.sentence(9), "chosen": draws.sentence(6), "rejected": draws.sentence(5)} for _ in range(40)
    ]
    pairs[7]["rejected"] = pairs[7]["chosen"]
    _write(folder / "pairs.jsonl", _lines(pairs))


def _write_crawl(folder):
    """An archive of pages, some of which hold a question of a benchmark, and a model that scores them."""
    draws = Draws(21)
    questions = [draws.sentence(18) for _ in range(4)]
    _write(folder / "questions.jsonl", _lines({"question": question, "answer": "7"} for question in questions))
    records = [warc_record("warcinfo", b"software: test\r\n", content_type="application/warc-fields")]
    for number in range(30):
        path = "blocked" if number % 11 == 5 else "page"
        paragraphs = [
            draws.text(3),
            f"Write to miller{number}@example.com or 8.8.4.{number} &amp; wait.\u0007",
            draws.text(2),
        ]
        if number % 6 == 1:
            paragraphs.insert(1, questions[number % 4].upper())
        body = "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
        page = f"<html><body><nav>Menu</nav><main>{body}</main></body></html>".encode()
        url = f"https://site{number % 7}.example.com/{path}/{number}"
        records.append(warc_record("response", http_page(page), url=url))
    _write(folder / "crawl.warc", b"".join(records))
    weights = np.array([draws.below(4001) - 2000 for _ in range(1 << 10)], "<f4").tobytes()
    header = {"bits": 10, "bias": 0.25, "num_good": 1, "num_bad": 1, "xxh3": xxhash.xxh3_64_hexdigest(weights)}
    _write(folder / "quality.model", b"gristmill linear model 1\n" + json.dumps(header).encode() + b"\n" + weights)


def _lines(records):
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def _write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def stored_gzip(content):
    """A gzip file of blocks that are not compressed."""
    blocks = [content[start : start + 0xFFFF] for start in range(0, len(content), 0xFFFF)] or [b""]
    packed = [
        struct.pack("<BHH", number == len(blocks) - 1, len(block), len(block) ^ 0xFFFF) + block
        for number, block in enumerate(blocks)
    ]
    end = struct.pack("<II", zlib.crc32(content), len(content) % 2**32)
    return b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff" + b"".join(packed) + end


def _records(seed, count, **columns):
    draws = Draws(seed)
    return [
        {"text": draws.text(1 + draws.below(4)), "id": number, "topic": f"topic-{draws.below(5)}", **columns}
        for number in range(count)
    ]


def _write_documents(folder):
    """The same kind of records in each format that can be read."""
    bad = [b"{no json\n", b'["no object"]\n', b'{"id": 7}\n', b'{"text": null}\n', b'{"text": "\\ud800"}\n', b"\xff\n"]
    lines = _lines(_records(1, 60, lang="en")).splitlines(keepends=True)
    mixed = [*lines[:20], *bad[:3], *lines[20:40], *bad[3:], b"\n", b'{"text": "x"}\n', *lines[40:]]
    _write(folder / "web/a.jsonl", b"".join(mixed))
    _write(folder / "web/b.jsonl.gz", stored_gzip(_lines(_records(2, 40, extra={"k": [1, 2]}))))
    _write(folder / "web/empty.jsonl", b"")
    array = json.dumps({"version": 1, "data": _records(3, 30)}, indent=2)
    _write(folder / "array.json", array.encode())
    rows = "".join(f'{r["id"]},"{r["text"]}",{r["id"] / 4}\n' for r in _records(4, 30))
    _write(folder / "table.csv", f"id,body,score\n{rows}".encode())
    texts = [Draws(seed).text(3) for seed in range(50, 70)]
    _write(folder / "texts/one.txt", "\n---\n".join(texts[:15]).encode())
    _write(folder / "texts/two.md", "\n---\n".join(texts[15:]).encode())
    columns = pa.Table.from_pylist(_records(5, 40, score=1.5))
    pq.write_table(columns, folder / "columns.parquet", row_group_size=16)
    with pa.ipc.new_stream(folder / "stream.arrow", columns.schema) as stream:
        stream.write_table(columns.slice(0, 25), max_chunksize=10)
    _write_tar(folder / "samples.tar")
    _write_pictures(folder / "pictures")
    splits = {"train": _records(6, 30), "test": _records(7, 10)}
    saved = datasets.DatasetDict({name: datasets.Dataset.from_list(records) for name, records in splits.items()})
    saved.save_to_disk(folder / "saved", num_proc=None)


def _write_tar(path):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for record in _records(8, 20):
            members = {
                "txt": record["text"].encode(),
                "json": json.dumps({"id": record["id"], "topic": record["topic"]}).encode(),
                "bin": bytes(range(record["id"])),
            }
            for extension, content in members.items():
                member = tarfile.TarInfo(f"sample-{record['id']:04d}.{extension}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def _write_pictures(folder):
    """Images in folders of classes, with captions beside them: PNG files whose pixels are not compressed."""
    for number in range(12):
        name = f"{'cats' if number % 2 else 'dogs'}/{number:04d}"
        _write(folder / f"{name}.png", stored_png(8 + number, 6, number * 20))
        _write(folder / f"{name}.txt", f"picture {number}".encode())
    _write(folder / "dogs/empty.png", b"")
    _write(folder / "dogs/cut.png", stored_png(9, 9, 77)[:-40])


def stored_png(width, height, grey):
    """A PNG file of one grey, in blocks that are not compressed."""
    rows = (b"\0" + bytes([grey]) * width) * height
    block = struct.pack("<BHH", 1, len(rows), len(rows) ^ 0xFFFF) + rows
    pixels = b"\x78\x01" + block + struct.pack(">I", zlib.adler32(rows))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IDAT", pixels), (b"IEND", b"")]
    packed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def _write_pages(path):
    """Pages that break the rules of the filters, each another one."""
    draws = Draws(9)
    pages = [draws.page(4 + draws.below(4)) for _ in range(60)]
    line = draws.sentence(9)
    pages += [
        "word " * 120,
        "\n".join([line] * 40),
        "\n".join(f"- {draws.sentence(5)}" for _ in range(30)),
        f"{pages[0]}\nThis site needs javascript to work for you.\nWe use cookies on all of these pages today.",
        f"{pages[1]}\nLorem ipsum dolor sit amet and more of it.",
        f"{pages[2]} {{ x = 1; }} is what they say over there.",
        f"{pages[3]} [12] and so it goes on and on [citation needed].",
        f"{pages[4]} darn {pages[5]} darn heck",
        " ".join(["darn heck the mill"] * 40),
        "x" * 1500 + " " + pages[6],
        " ".join(str(number) for number in range(300)),
        *(GERMAN * 3 + f"Es ist der {number}. Tag im Jahr der Ernte." for number in range(8)),
        "def grind(corn, turns=12):\n    return [stone(corn) for _ in range(turns)]\n\n\n" * 6,
        "…",
        "",
        "too short",
    ]
    _write(path, _lines({"text": page, "id": number} for number, page in enumerate(pages)))


def _write_sessions(folder):
    """Logs of agents, trajectories, and a template that writes calls."""
    draws = Draws(12)
    log = agent_logs.claude_session()
    for number in range(12):
        log.call(f"c{number}", command=f"mail miller{number}@example.com")
        log.result(f"c{number}", draws.text(2))
    log.answer(agent_logs.text("Done."))
    _write(folder / "claude.jsonl", log.data())
    _write(folder / "codex.jsonl", agent_logs.lines(agent_logs.codex_events()))
    _write(folder / "pi.jsonl", agent_logs.lines(agent_logs.pi_events()))
    _write(folder / "openhands.jsonl", agent_logs.lines(agent_logs.openhands_sdk_events()))
    _write(
        folder / "rows.jsonl", _lines({"id": n, "messages": json.dumps(agent_logs.chat_messages())} for n in range(3))
    )
    template = (
        "{%- for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}{{ m.content }}"
        "{% for call in m.tool_calls %}{{ call.function | tojson }}{% endfor %}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    _write(folder.parent / "agents.jinja", template.encode())


def _write_copies(folder):
    """Texts that come several times, or almost."""
    draws = Draws(10)
    texts = [draws.text(8) for _ in range(60)]
    near = [text.replace("mill", "factory", 1).replace("corn", "grain", 1) for text in texts[:10]]
    _write(folder / "copies/first.jsonl", _lines({"text": text, "from": 1} for text in texts + texts[:8]))
    more = [*near, *texts[20:26], *(draws.text(6) for _ in range(40)), "short", "short"]
    _write(folder / "copies/second.jsonl", _lines({"text": text, "from": 2} for text in more))
    _write(folder / "bench.jsonl", _lines({"question": text} for text in texts[50:53]))


def _write_chats(folder):
    draws = Draws(11)

    def turns(num_exchanges):
        for _ in range(num_exchanges):
            yield "user", draws.sentence(3 + draws.below(8))
            yield "assistant", draws.text(1 + draws.below(2))

    messages = []
    for number in range(40):
        said = [{"role": role, "content": text} for role, text in turns(1 + draws.below(3))]
        system = [{"role": "system", "content": "You are the miller."}] if number % 3 == 0 else []
        messages.append({"messages": system + said, "id": number})
    messages[5]["messages"].pop()  # ends with the user
    messages[6]["messages"] = messages[6]["messages"][:1]  # nobody answers
    messages[7]["messages"][0]["content"] = "What does <|im_end|> mean?"
    messages[8]["messages"][0]["role"] = "weather"
    messages[9]["messages"] *= 12  # longer than a row
    messages[10]["messages"][1]["content"] = 5
    _write(folder / "chats/messages.jsonl", _lines(messages))
    names = {"user": "human", "assistant": "gpt"}
    shared = [{"conversations": [{"from": names[role], "value": text} for role, text in turns(2)]} for _ in range(20)]
    _write(folder / "chats/sharegpt.json", json.dumps(shared).encode())
    alpaca = [{"instruction": draws.sentence(6), "input": "", "output": draws.text(2)} for _ in range(10)]
    _write(folder / "chats/alpaca.jsonl", _lines(alpaca))


def _write_large(folder):
    """Enough bytes for several units and many cells, in few records, so that little comes of them."""
    draws = Draws(12)
    filling = "".join(chr(97 + draws.below(26)) for _ in range(1 << 16))

    def records(name, num_bytes, record_bytes):
        draws = Draws(sum(name.encode()))
        for number in range(num_bytes // record_bytes):
            start = draws.below(1 << 15)
            filler = (filling * (record_bytes // len(filling) + 2))[start : start + record_bytes]
            yield {"text": draws.text(1 + draws.below(5)), "number": number, "filler": filler}

    # One file of more than a unit, the same compressed (unpacked into pieces before it is read), plain files that are
    # grouped (small ones in clusters), and compressed ones, which are counted four times: with three or five times
    # their size they would be grouped in another way.
    large = _lines(records("one", 70 << 20, 90_000))
    _write(folder / "large/one.jsonl", large)
    _write(folder / "large_packed/one.jsonl.gz", stored_gzip(large))
    for number in range(14):
        size = (200 << 10) if number % 3 else (5 << 20)
        _write(folder / f"grouped/{number:02d}.jsonl", _lines(records(f"grouped-{number}", size, 40_000)))
    for number in range(30):
        size = (150 << 10) * (1 + number * 5 % 13)
        content = _lines(records(f"packed-{number}", size, 25_000))
        _write(folder / f"packed/{number:02d}.jsonl.gz", stored_gzip(content))


def write_tokenizer(folder):
    """A byte-level BPE tokenizer with a few hundred merges of the words above, and the special tokens of ChatML."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [*map(chr, printable), *(chr(256 + number) for number in range(len(others)))]
    vocab = {letter: number for number, letter in enumerate(letters)}
    merges = []
    for word in WORDS:
        left = "Ġ"
        for right in word[:5]:
            if left + right not in vocab:
                vocab[left + right] = len(vocab)
                merges.append([left, right])
            left += right
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    added = [
        {
            "id": len(vocab) + number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, token in enumerate(specials)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }
    _write(folder / "tokenizer.json", json.dumps(content, ensure_ascii=False).encode())
    template = (
        "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    config = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "chat_template": template}
    _write(folder / "tokenizer_config.json", json.dumps(config).encode())
