"""Chats to packed rows with loss masks, beside transformers, in one run: see `--help`.

Every side is a fresh process and sees its text once. In the first contest both sides are timed from loaded tokenizer to
ids and masks (ours to packed rows), with a template that has `{% generation %}` tags, since transformers gives no mask
without them; CPU time, so that other programs do not count. The others time whole runs.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from time import perf_counter, process_time

TEMPLATE = """{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
{%- else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
ROW_LENGTH = 4096
LONG_ROW_LENGTH = 65536
LONG_CHARS = 120_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chats", type=Path, nargs="+", help="JSON lines with messages of plain text")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder with tokenizer.json")
    parser.add_argument("--contest", choices=["kernel", "workers", "memory", "turns"], action="append")
    parser.add_argument("--long-mib", type=int, default=1024, help="of generated long chats (default 1024)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("bench-data/chats"))
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(SIDES[options.side](options)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    for contest in options.contest or ["kernel", "turns", "workers", "memory"]:
        CONTESTS[contest](options)


def side(options, name, *, chats=None, folder=None):
    command = [sys.executable, __file__, *map(str, chats or options.chats), "--tokenizer", str(options.tokenizer)]
    return subprocess.Popen(
        [*command, "--folder", str(folder or options.folder), "--side", name], stdout=subprocess.PIPE
    )


def outcome(process):
    return json.loads(process.communicate()[0])


def kernel_contest(options):
    for path in options.chats:
        best = {"gristmill": 0.0, "transformers": 0.0}
        for _ in range(options.repeats):
            for name, speed in best.items():
                found = outcome(side(options, f"kernel-{name}", chats=[path]))
                best[name] = max(speed, found["chats_s"])
        ratio = best["gristmill"] / best["transformers"]
        print(f"{path.stem}: render, mask and pack in one process: ", end="")
        print(f"{best['gristmill']:,.0f} chats/s, transformers {best['transformers']:,.0f}: {ratio:.1f} times (10)")


def turns_contest(options):
    found = outcome(side(options, "turns"))
    print("microseconds a turn, by number of turns:", ", ".join(f"{n}: {t:.1f}" for n, t in found.items()))


def workers_contest(options):
    long = long_chats(options, 256)
    halves = [options.folder / f"half-{number}.jsonl" for number in range(2)]
    lines = long.read_bytes().splitlines(keepends=True)
    for number, half in enumerate(halves):
        half.write_bytes(b"".join(lines[number::2]))
    best_ratio = 0.0
    for _ in range(options.repeats):
        ours = outcome(side(options, "run", chats=[long]))["seconds"]
        alone = [side(options, "run-alone", chats=[half], folder=options.folder / half.stem) for half in halves]
        apart = max(outcome(process)["seconds"] for process in alone)
        best_ratio = max(best_ratio, apart / ours)
    print(f"2 workers: {best_ratio:.2f} of two independent processes (0.9)")


def memory_contest(options):
    long = long_chats(options, options.long_mib)
    found = outcome(side(options, "run", chats=[long]))
    print(
        f"{options.long_mib} MiB of chats of {LONG_CHARS // 1000} KB: {found['seconds']:.1f} s, worker at most "
        f"{found['worker_mib']:.0f} MiB (700), parent {found['parent_mib']:.0f} MiB"
    )
    half = long_chats(options, options.long_mib // 4)
    smaller = outcome(side(options, "run", chats=[half]))
    print(f"  of a quarter: worker {smaller['worker_mib']:.0f} MiB, parent {smaller['parent_mib']:.0f} MiB")


def long_chats(options, mib):
    """Write chats of about 120 KB, made of the words of real ones in new orders: no text occurs twice."""
    path = options.folder / f"long-{mib}.jsonl"
    if path.exists():
        return path
    words = []
    for source in options.chats:
        for line in source.open(encoding="utf-8"):
            words += [word for m in json.loads(line)["messages"] for word in str(m.get("content") or "").split(" ")]
    rng = random.Random(mib)
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < mib << 20:
            messages, size = [], 0
            while size < LONG_CHARS:
                first = rng.randrange(len(words) - 400)
                content = " ".join(rng.sample(words[first : first + 400], rng.randrange(20, 400)))
                if content.strip():
                    messages.append({"role": "assistant" if len(messages) % 2 else "user", "content": content})
                    size += len(content)
            if len(messages) % 2:
                messages.pop()
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    return path


def records_of(options):
    lines = [line for path in options.chats for line in path.read_bytes().splitlines()]
    plain = []
    for line in lines:
        messages = json.loads(line)["messages"]
        if all(set(message) == {"role", "content"} for message in messages):
            plain.append((line, messages))
    return plain


def kernel_gristmill(options):
    import os

    os.environ["FASTOKENS_BPE_THREADS"] = "1"
    import msgspec
    import pyarrow as pa

    from gristmill.core.records import ORIGIN, RECORD, make_origins
    from gristmill.steps import Pack, Render, Tokenize
    from gristmill.steps.pack.documents import pack_documents
    from gristmill.steps.tokenize.tokenize_chats import to_chat_form

    template = options.folder / "tagged.jinja"
    template.write_text(TEMPLATE)
    tokenizer = str(options.tokenizer)
    render = Render(template=str(template), tokenizer=tokenizer).resolve(".")
    render = msgspec.structs.replace(render, is_tokenized=True).load()
    encode = to_chat_form(Tokenize(tokenizer=tokenizer, engine="fastokens"), None, cuts=False).resolve(".").load()
    pack = Pack(row_length=ROW_LENGTH)
    lines = [line for line, _ in records_of(options)]
    first = batch_of(lines[:1], pa, make_origins, ORIGIN, RECORD)  # what is loaded with the first chat is not timed
    list(pack_documents(pack, 0, [encode.apply(render.apply(first, 0).batch, 0).batch], keeps_unfinished=True).rows())
    began = process_time()
    batches = []
    for start in range(0, len(lines), 1000):
        batch = batch_of(lines[start : start + 1000], pa, make_origins, ORIGIN, RECORD)
        batches.append(encode.apply(render.apply(batch, 0).batch, 0).batch)
    for _ in pack_documents(pack, 0, batches, keeps_unfinished=True).rows():
        pass
    return {"chats_s": len(lines) / (process_time() - began)}


def batch_of(lines, pa, origins, origin, record):
    places = pa.array(range(len(lines)), pa.uint64())
    return pa.RecordBatch.from_arrays([origins(1, places), pa.array(lines, pa.large_binary())], [origin, record])


def kernel_transformers(options):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    chats = [messages for _, messages in records_of(options)][:2000]
    settings = {"chat_template": TEMPLATE, "tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
    tokenizer.apply_chat_template(chats[0], **settings)
    began = process_time()
    for messages in chats:
        tokenizer.apply_chat_template(messages, **settings)
    return {"chats_s": len(chats) / (process_time() - began)}


def run_side(options, *, backend="processes", workers=2):
    from documents_ours import PeakOfChildren, peak_mib

    began = perf_counter()
    import gristmill
    from gristmill import steps

    out = options.folder / f"out-{backend}"
    shutil.rmtree(out, ignore_errors=True)
    recipe = gristmill.Recipe(
        sources={"chats": steps.Read(read=[str(path.resolve()) for path in options.chats])},
        steps=[
            steps.Render(template="chatml"),
            steps.Tokenize(tokenizer=str(options.tokenizer.resolve())),
            steps.Pack(row_length=LONG_ROW_LENGTH),
        ],
        output=str(out.resolve()),
    )
    with PeakOfChildren() as children:
        gristmill.run(recipe, backend=backend, workers=workers, progress=False)
    return {"seconds": perf_counter() - began, "worker_mib": children.mib, "parent_mib": peak_mib()}


def turns_side(options):
    from gristmill.text.chats import ChatOptions, ExampleMaker, find_template
    from gristmill.text.tokenizers import find_tokenizer

    found = find_template(None, find_tokenizer(str(options.tokenizer)))
    times = {}
    for turns in (1, 10, 100, 1000):
        maker = ExampleMaker(found, ChatOptions())
        messages = [
            {"role": "assistant" if n % 2 else "user", "content": f"message {n} " * 20} for n in range(2 * turns)
        ]
        maker.make({"messages": messages})
        repeats = 2000 // turns
        began = process_time()
        for _ in range(repeats):
            maker.make({"messages": messages})
        times[turns] = (process_time() - began) / repeats / turns * 1e6
    return times


CONTESTS = {
    "kernel": kernel_contest,
    "turns": turns_contest,
    "workers": workers_contest,
    "memory": memory_contest,
}
SIDES = {
    "kernel-gristmill": kernel_gristmill,
    "kernel-transformers": kernel_transformers,
    "run": run_side,
    "run-alone": lambda options: run_side(options, backend="serial", workers=1),
    "turns": turns_side,
}

if __name__ == "__main__":
    main()
