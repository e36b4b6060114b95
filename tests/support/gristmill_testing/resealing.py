"""Datasets whose shards were damaged by somebody who knows about checksums, and all that reads datasets.

Run as a program, since what is wrong may end the process: it says each case before it tries it.
"""

import json
import random
import shutil
import struct
import sys
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import gristmill
from gristmill.core.errors import GristmillError
from gristmill.shards.derived_files import make_derived_files
from gristmill.shards.manifest_file import dump_manifest, load_manifest
from gristmill.shards.stored_files import MANIFEST
from gristmill.shards.verify import verify
from gristmill.steps import Read, Write
from gristmill.storage.files import compute_file_checksum
from gristmill.stream import Collate, Stream
from gristmill_testing.small_tokenizers import trained
from gristmill_testing.token_datasets import write_tokens

TOKENS = ("ragged", "packed", "chats", "packed_chats")
DOCUMENTS = ("arrow", "parquet", "jsonl", "webdataset")
COLLATE = Collate(fields=("input_ids", "labels", "position_ids", "document_ids", "attention_mask", "cu_seqlens"))


def make(folder, kind):
    """A small dataset of one of these kinds."""
    rng = np.random.default_rng(3)
    if kind in TOKENS:
        is_packed, masked = "packed" in kind, "chats" in kind
        documents = [rng.integers(1, 60_000, int(size)).tolist() for size in rng.integers(1, 9, 24)]
        rows = [[one, other] for one, other in zip(documents[::2], documents[1::2], strict=True)]
        shards = {("train", "web"): [rows if is_packed else documents]}
        write_tokens(folder, shards, row_length=16 if is_packed else None, loss_masks=masked, rows_a_batch=5)
        return add_tokenizer(folder)
    source = folder.with_name(f"{folder.name}.parquet")
    table = pa.table(
        {
            "text": [f"text {n} ö" for n in range(20)],
            "n": [None if n % 3 else n for n in range(20)],
            "tags": [["a", "bc"][: n % 3] for n in range(20)],
            "more": [{"url": f"u{n}", "score": n / 2} for n in range(20)],
        }
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, source, row_group_size=7)
    read = Read(read=str(source), columns=["n", "tags", "more"])
    recipe = gristmill.Recipe(sources={"web": read}, steps=[Write(format=kind)], output=str(folder))
    gristmill.run(recipe, backend="serial", progress=False)
    return folder


def add_tokenizer(folder):
    """One that has enough tokens: ids are not looked up in it."""
    trained(folder / "tokenizer")
    files = [
        {"path": f"tokenizer/{path.name}", "bytes": path.stat().st_size, "xxh3": compute_file_checksum(path)}
        for path in sorted((folder / "tokenizer").iterdir(), key=lambda path: path.name != "tokenizer.json")
    ]
    facts = {"name": "small", "content": "0", "engine": "reference", "engine_version": "0", "why": "", "parity": {}}
    ids = {"vocab_size": 65_000, "eos_id": 0, "bos_id": None, "pad_id": 1}
    plain = msgspec.to_builtins(load_manifest(folder))
    seal(folder, plain | {"tokenizer": {**facts, **ids, "files": files}})
    return folder


def reseal(folder, path):
    """Make the manifest and its side files fit a changed file."""
    plain = msgspec.to_builtins(load_manifest(folder))

    def update(entry):
        if isinstance(entry, dict):
            if entry.get("path") == path and "xxh3" in entry:
                entry |= {"bytes": (folder / path).stat().st_size, "xxh3": compute_file_checksum(folder / path)}
            for value in entry.values():
                update(value)
        elif isinstance(entry, list):
            for value in entry:
                update(value)

    update(plain)
    seal(folder, plain)


def seal(folder, plain):
    manifest = msgspec.convert(plain, type(load_manifest(folder))).seal()
    (folder / MANIFEST).write_bytes(b"".join(dump_manifest(manifest)))
    for name, content in make_derived_files(manifest).items():
        (folder / name).write_bytes(content)


def messages(content):
    """(start of the header, its length, length of the body) of each record batch in an Arrow stream."""
    start = 0
    while start + 8 <= len(content):
        mark, size = struct.unpack_from("<Ii", content, start)
        if mark != 0xFFFFFFFF or size <= 0:
            return
        message = pa.ipc.read_message(pa.py_buffer(content[start:]))
        body = len(message.body) if message.body is not None else 0
        if message.type == "record batch":
            yield start + 8, size, body
        start += 8 + size + body


def special_values(value, rng):
    numbers = (0, 1, -1, value // 2, value * 2, value + 1, value - 1, value + 8, value - 8, 2**31 - 1, -(2**31), 2**40)
    return rng.choice([*numbers, 2**63 - 1, -(2**63), rng.randrange(-300, 300)])


def put(content, place, value, size):
    kind = "<q" if size == 8 else "<i"
    bits = 8 * size
    wrapped = (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    return content[:place] + struct.pack(kind, wrapped) + content[place + size :]


def damage(content, rng, *, is_arrow):
    """The content of a shard, changed at random."""
    way = rng.choice(["header", "header", "body", "flip", "cut"] if is_arrow else ["flip", "flip", "cut"])
    found = list(messages(content)) if is_arrow else []
    if way in ("header", "body") and found:
        start, size, body = rng.choice(found)
        first, length = (start, size) if way == "header" else (start + size, body)
        width = rng.choice([4, 8])
        if length >= width:
            place = first + rng.randrange(length // width) * width
            [value] = struct.unpack_from("<q" if width == 8 else "<i", content, place)
            return put(content, place, special_values(value, rng), width)
    if way == "cut" and len(content) > 10:
        first = rng.randrange(len(content))
        return content[:first] + content[first + rng.randrange(1, 40) :]
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 3, 10])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def read_dataset(folder):
    dataset = gristmill.open_dataset(folder)
    for index in (0, len(dataset) - 1, len(dataset) // 2):
        _ = dataset[index], dataset.origins(index)
    return sum(1 for _ in dataset)


def read_stream(folder):
    stream = Stream(folder, shuffle=False, epochs=1, collate=COLLATE)
    for batch in islice(stream.batches(batch_size=4), 20):
        _ = [np.asarray(batch[name]).sum() for name in COLLATE.fields]
    return stream.where(0, batch_size=4)


def as_source(folder):
    target = folder.with_name("again")
    shutil.rmtree(target, ignore_errors=True)
    recipe = gristmill.Recipe(sources={"web": Read(read=str(folder))}, steps=[], output=str(target))
    return gristmill.run(recipe, backend="serial", progress=False)


def exported(folder, to, **options):
    return gristmill.export(
        folder,
        to=to,
        path=folder.with_name("exported") / to,
        backend="serial",
        progress=False,
        overwrite=True,
        **options,
    )


def mixed(folder):
    target = folder.with_name("mixed")
    shutil.rmtree(target, ignore_errors=True)
    return gristmill.mix({"a": (folder, 1.0)}, target, size=3, by="rows")


def readers_of(kind, *, whole):
    """Everything that reads a dataset of a kind; the slow ones if `whole`."""
    readers = {"verify": verify, "open_dataset": read_dataset}
    if kind in TOKENS:
        readers["stream"] = read_stream
    if not whole:
        return readers
    readers["jsonl"] = lambda folder: exported(folder, "jsonl")
    if kind not in ("jsonl", "webdataset"):
        readers["parquet"] = lambda folder: exported(folder, "parquet")
    if kind in TOKENS:
        readers["training"] = lambda folder: exported(folder, "parquet", columns="training")
    if kind == "ragged":
        readers |= {to: lambda folder, to=to: exported(folder, to) for to in ("megatron", "nanogpt", "llmc")}
    if "packed" in kind:
        readers["numpy"] = lambda folder: exported(folder, "numpy")
    else:
        readers["source"] = as_source
    if kind in ("arrow", *TOKENS):
        readers["mix"] = mixed
    return readers


def try_all(folder, kind, case, *, whole):
    """Each reader gives something or an error of ours; anything else is printed and ends the program."""
    num_refused = 0
    for name, read in readers_of(kind, whole=whole).items():
        print(case, name, flush=True)
        try:
            found = read(folder)
        except GristmillError as error:
            print("  ", error.message, flush=True)
            num_refused += 1
        else:
            num_refused += name == "verify" and not found
    return num_refused


def fuzz(root, seed, num_cases):
    """Random damage to all kinds of datasets."""
    rng = random.Random(seed)
    kinds = {kind: make(root / kind / "out", kind) for kind in (*TOKENS, *DOCUMENTS)}
    for kind, folder in kinds.items():
        assert try_all(folder, kind, f"{kind} as it was", whole=True) == 0
    num_refused = 0
    for case in range(num_cases):
        kind = rng.choice([*TOKENS, *DOCUMENTS])
        folder = root / "damaged" / "out"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(kinds[kind], folder)
        [(_, _, shard)] = load_manifest(folder).shards()
        path = rng.choice([shard.path, *([shard.origins.path] if shard.origins else [])])
        content = (folder / path).read_bytes()
        (folder / path).write_bytes(damage(content, rng, is_arrow=path.endswith(".arrow")))
        reseal(folder, path)
        num_refused += try_all(folder, kind, f"{kind} {case}", whole=case % 4 == 0) > 0
    print(json.dumps({"cases": num_cases, "refused": num_refused}), flush=True)


def sweep(root, kind, num_values):
    """Every word of a record batch's header, changed to every suspicious value."""
    folder = make(root / "out", kind)
    [(_, _, shard)] = load_manifest(folder).shards()
    content = (folder / shard.path).read_bytes()
    start, size, _ = next(iter(messages(content)))
    cases = num_refused = 0
    for place in range(start, start + size - 7, 8):
        [value] = struct.unpack_from("<q", content, place)
        for number in sorted({0, -1, value // 2, value + 8, 2 * value, 2**63 - 1})[:num_values]:
            (folder / shard.path).write_bytes(put(content, place, number, 8))
            reseal(folder, shard.path)
            num_refused += try_all(folder, kind, f"{kind} word {place} = {number}", whole=False) > 0
            cases += 1
    print(json.dumps({"cases": cases, "refused": num_refused}), flush=True)


if __name__ == "__main__":
    way, root, *rest = sys.argv[1:]
    Path(root).mkdir(parents=True, exist_ok=True)
    if way == "fuzz":
        fuzz(Path(root), int(rest[0]), int(rest[1]))
    else:
        sweep(Path(root), rest[0], int(rest[1]))
