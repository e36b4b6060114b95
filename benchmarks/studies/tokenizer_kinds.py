"""How fast each engine is with several kinds of tokenizers: `-m benchmarks.studies.tokenizer_kinds TEXTS.jsonl FOLDER`.

The first `--megabytes` of the texts go through both engines in a process of their own each, text seen once, one thread,
CPU time; the reference gets an eighth of them. `--make FOLDER` trains a tokenizer of each kind without a published file
here (ids with gaps, Gemma's and Llama 2's kind) on these texts and writes them to folders in it.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from time import process_time

from benchmarks.inputs.tokenizers import train_without_pre_tokenizer, write_tokenizer

SPECIALS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
VOCAB_SIZE = 16_000


def texts_of(path, num_bytes):
    size = 0
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            text = json.loads(line)["text"]
            yield text
            size += len(text.encode())
            if size >= num_bytes:
                return


def measure(options, engine):
    from gristmill.text.tokenizers.engine import load_engine
    from gristmill.text.tokenizers.files import find_tokenizer

    loaded = load_engine(find_tokenizer(str(options.folders[0])), engine)
    loaded.encode(["a first word"])
    share = 8 if engine == "tokenizers" else 1
    texts = list(texts_of(options.texts, options.megabytes * 1_000_000 // share))
    began = process_time()
    for first in range(0, len(texts), 500):
        loaded.encode(texts[first : first + 500])
    return sum(len(text.encode()) for text in texts) / 1e6 / (process_time() - began)


def make_tokenizers(options):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    texts = list(texts_of(options.texts, 8_000_000))
    rules = {"special_tokens": SPECIALS, "vocab_size": VOCAB_SIZE, "show_progress": False}
    for kind in ("gemma", "llama2"):
        write_tokenizer(options.make / f"{kind}_like", train_without_pre_tokenizer(texts, kind))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(initial_alphabet=alphabet, **rules))
    data = json.loads(tokenizer.to_str())
    write_tokenizer(options.make / "byte_level", data)
    for place, token in enumerate(data["added_tokens"]):
        token["id"] = data["model"]["vocab"][token["content"]] = VOCAB_SIZE + 20 + 2 * place
    write_tokenizer(options.make / "gapped", data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--make", type=Path)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        print(measure(options, options.engine))
        return
    if options.make:
        make_tokenizers(options)
    from gristmill.text.tokenizers.choose import choose_engine
    from gristmill.text.tokenizers.files import find_tokenizer

    print("| tokenizer | engine chosen | fastokens, MB/s | tokenizers, MB/s | times |\n|---|---|---|---|---|")
    for folder in options.folders:
        choice = choose_engine(find_tokenizer(str(folder)), "auto", specials_as_text=True)
        speeds = []
        for engine in ("fastokens", "tokenizers"):
            command = [
                sys.executable,
                "-m",
                "benchmarks.studies.tokenizer_kinds",
                options.texts,
                folder,
                "--engine",
                engine,
            ]
            command += ["--megabytes", str(options.megabytes)]
            settings = os.environ | {"FASTOKENS_BPE_THREADS": "1", "RAYON_NUM_THREADS": "1"}
            if engine == "fastokens" and choice.engine != engine:
                speeds.append(float("nan"))
            else:
                speeds.append(float(subprocess.run(command, env=settings, capture_output=True, check=True).stdout))
        fast, slow = speeds
        numbers = f"{fast:.0f} | {slow:.2f} | {fast / slow:.0f}".replace("nan", "none")
        print(f"| {folder.name} | {choice.engine} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
