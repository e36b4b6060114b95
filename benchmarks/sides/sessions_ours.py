"""Agent sessions to packed rows with masks in one process: `python -m benchmarks.sides.sessions_ours LOGS TOKENIZER`.

CPU time from the loaded tokenizer on, with files read; the first log is not timed, since kernels are loaded with it.
`--profile` prints the functions that took the most time.
"""

import cProfile
import json
import os
import pstats
import sys
from pathlib import Path
from time import process_time

ROW_LENGTH = 16_384


def main():
    from gristmill.engine.worker_process import ONE_THREAD, STEADY_HEAP

    os.environ |= {**ONE_THREAD, **STEADY_HEAP}  # as in a worker; Arrow and the engine read them when they are loaded
    import msgspec

    from benchmarks.inputs.agent_sessions import TEMPLATE
    from gristmill.steps import Pack, Render, Tokenize
    from gristmill.steps.tokenize.tokenize import to_chat_form
    from gristmill.text.tokenizers.choose import choose_engine
    from gristmill.text.tokenizers.files import find_tokenizer

    folder, tokenizer, *options = sys.argv[1:]
    engine = choose_engine(find_tokenizer(tokenizer), "auto", specials_as_text=True).engine
    template = Path(folder).parent / "agents.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    render = Render(
        template=str(template),
        tokenizer=tokenizer,
        max_tokens=ROW_LENGTH,
        too_long="turn_windows",
        last_not_assistant="trim",
    ).resolve(".")
    render = msgspec.structs.replace(render, is_tokenized=True).load()
    encode = to_chat_form(Tokenize(tokenizer=tokenizer, engine=engine), ROW_LENGTH, cuts=False).resolve(".").load()
    pack = Pack(row_length=ROW_LENGTH)
    files = sorted(Path(folder).glob("*.jsonl"))
    make_rows(files[:1], render, encode, pack)
    profile = cProfile.Profile() if "--profile" in options else None
    began = process_time()
    if profile is not None:
        profile.enable()
    num_tokens, num_rows = make_rows(files, render, encode, pack)
    seconds = process_time() - began
    if profile is not None:
        profile.disable()
        pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(45)
    num_bytes = sum(file.stat().st_size for file in files)
    numbers = {"tokens": num_tokens, "rows": num_rows, "engine": engine}
    print(json.dumps({"inner": seconds, "units": num_bytes / 1e6, **numbers}))


def make_rows(files, render, encode, pack):
    from gristmill.core.records import SourceFile
    from gristmill.readers.schema import plan_schema
    from gristmill.readers.source import open_reader
    from gristmill.steps import Read
    from gristmill.steps.pack_rows import pack_documents

    read = Read(read=str(files[0].parent), format="agent")
    sources = [SourceFile(str(file), file.name, file.stat().st_size, "1", 1) for file in files]
    schema = plan_schema(read, sources[:1], keeps_record=True, has_text=False)
    batches = []
    for source in sources:
        for cell in open_reader(read, source, schema).read_cells():
            rendered = render.apply(cell.batch, 0).batch
            batches.append(encode.apply(rendered, 0).batch)
    num_tokens = sum(len(ids) for batch in batches for ids in batch.column("input_ids"))
    num_rows = sum(rows.num_rows for rows in pack_documents(pack, 0, batches, keeps_unfinished=True).rows())
    return num_tokens, num_rows


if __name__ == "__main__":
    main()
