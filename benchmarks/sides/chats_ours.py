"""Chats to packed rows with masks in one process: `python -m benchmarks.sides.chats_ours CHATS TOKENIZER TEMPLATE`.

CPU time from the loaded tokenizer on; the first chat is not timed, since kernels and plans are loaded with it.
"""

import json
import os
import sys
from pathlib import Path
from time import process_time

ROW_LENGTH = 4096
BATCH = 1000


def main():
    from gristmill.engine.worker_process import ONE_THREAD, STEADY_HEAP

    os.environ |= {**ONE_THREAD, **STEADY_HEAP}  # as in a worker; Arrow and the engine read them when they are loaded
    import msgspec

    from gristmill.steps import Pack, Render, Tokenize
    from gristmill.steps.tokenize.tokenize import to_chat_form
    from gristmill.text.tokenizers.choose import choose_engine
    from gristmill.text.tokenizers.files import find_tokenizer

    path, tokenizer, template = sys.argv[1:]
    engine = choose_engine(find_tokenizer(tokenizer), "auto", specials_as_text=True).engine
    render = Render(template=template, tokenizer=tokenizer).resolve(".")
    render = msgspec.structs.replace(render, is_tokenized=True).load()
    tokenize = Tokenize(tokenizer=tokenizer, engine=engine)
    encode = to_chat_form(tokenize, None, cuts=False).resolve(".").load()
    pack = Pack(row_length=ROW_LENGTH)
    lines = Path(path).read_bytes().splitlines()
    make_rows(lines[:1], render, encode, pack)
    began = process_time()
    make_rows(lines, render, encode, pack)
    print(json.dumps({"inner": process_time() - began, "units": len(lines), "engine": engine}))


def make_rows(lines, render, encode, pack):
    from gristmill.steps.pack_rows import pack_documents

    batches = []
    for start in range(0, len(lines), BATCH):
        rendered = render.apply(batch_of(lines[start : start + BATCH]), 0).batch
        batches.append(encode.apply(rendered, 0).batch)
    for _ in pack_documents(pack, 0, batches, keeps_unfinished=True).rows():
        pass


def batch_of(lines):
    import pyarrow as pa

    from gristmill.core.records import ORIGIN, RECORD, make_origins

    positions = pa.array(range(len(lines)), pa.uint64())
    return pa.RecordBatch.from_arrays(
        [make_origins(1, positions), pa.array(lines, pa.large_binary())], [ORIGIN, RECORD]
    )


if __name__ == "__main__":
    main()
