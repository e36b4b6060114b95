"""Pairs to rows of ids in one process: `python -m benchmarks.sides.preferences_ours PAIRS TOKENIZER TEMPLATE`.

CPU time from the loaded tokenizer on; the first batch is made twice, since kernels and traces are loaded with it.
"""

import json
import os
import sys
from pathlib import Path
from time import process_time

from benchmarks.sides.chats_ours import BATCH, batch_of


def main():
    from gristmill.engine.worker_process import ONE_THREAD, STEADY_HEAP

    os.environ |= {**ONE_THREAD, **STEADY_HEAP}  # as in a worker; Arrow and the engine read them when they are loaded
    import msgspec

    from gristmill.steps import Render, Tokenize
    from gristmill.steps.tokenize.tokenize import to_chat_form
    from gristmill.text.tokenizers.choose import choose_engine
    from gristmill.text.tokenizers.files import find_tokenizer

    path, tokenizer, template = sys.argv[1:]
    engine = choose_engine(find_tokenizer(tokenizer), "auto", specials_as_text=True).engine
    render = Render(template=template, tokenizer=tokenizer, preferences="pairs").resolve(".")
    render = msgspec.structs.replace(render, is_tokenized=True).load()
    encode = to_chat_form(Tokenize(tokenizer=tokenizer, engine=engine), None, cuts=False).resolve(".")
    encode = msgspec.structs.replace(encode, has_preferences=True).load()
    lines = Path(path).read_bytes().splitlines()
    make_rows(lines[:BATCH], render, encode)
    began = process_time()
    num_rows = make_rows(lines, render, encode)
    assert num_rows == len(lines)
    print(json.dumps({"inner": process_time() - began, "units": len(lines), "engine": engine}))


def make_rows(lines, render, encode):
    from gristmill.shards.token_rows import make_document_rows

    num_rows = 0
    for start in range(0, len(lines), BATCH):
        rendered = render.apply(batch_of(lines[start : start + BATCH]), 0).batch
        num_rows += make_document_rows(encode.apply(rendered, 0).batch).num_rows
    return num_rows


if __name__ == "__main__":
    main()
