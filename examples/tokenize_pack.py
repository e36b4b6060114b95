"""Turn text files into packed training rows. Copy this file and change the steps.

    python tokenize_pack.py --src "data/*.jsonl.zst" --dst rows --tokenizer tokenizers/mine --seq-len 2048
    python tokenize_pack.py --src "data/*.jsonl.zst" --dst rows --tokenizer tokenizers/mine --debug

Kill it and start it again: it resumes. The rows do not depend on the number of workers or on the backend.
"""

import argparse
from typing import Any

import gristmill as gm
from gristmill import steps


def normalize_spaces(record: dict[str, Any]) -> dict[str, Any]:
    """Change a record: your own code goes here."""
    return {**record, "text": " ".join(record["text"].split())}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Turn text files into packed training rows.")
    parser.add_argument("--src", nargs="+", required=True, help="files, folders, patterns or URLs")
    parser.add_argument("--dst", required=True, help="folder of the dataset")
    parser.add_argument("--tokenizer", required=True, help="folder with tokenizer.json, or a name on the Hub")
    parser.add_argument("--seq-len", type=int, default=2048, help="tokens in a row")
    parser.add_argument("--workers", type=int, help="default: as many as this machine allows")
    parser.add_argument("--backend", default="processes", choices=["processes", "threads", "serial", "ray", "auto"])
    parser.add_argument("--debug", action="store_true", help="show a few records after each step; write nothing")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    recipe = gm.Recipe(
        sources={"text": steps.Read(read=arguments.src, text="text")},  # `text` is the field that holds the text
        steps=[
            steps.Map(call=normalize_spaces),
            steps.Length(min_chars=20),
            steps.Deduplicate(kind="exact"),
            steps.Split(validation=0.01),
            steps.Tokenize(tokenizer=arguments.tokenizer),
            steps.Pack(row_length=arguments.seq_len),
        ],
        output=arguments.dst,
    )
    workers = arguments.workers or "auto"
    result = gm.run(recipe, workers=workers, backend=arguments.backend, debug=arguments.debug)
    for account in result.books["text"]:  # where every record went: in + created = out + dropped + quarantined
        print(account)
    if not arguments.debug:
        rows = result.dataset()
        print(f"{len(rows):,} rows, {result.tokens:,} tokens in {arguments.dst}")
        print(rows.decode(0)[:200])


if __name__ == "__main__":
    main()
