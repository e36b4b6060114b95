"""Ids and masks by `apply_chat_template`: `python -m benchmarks.sides.chats_transformers CHATS TOKENIZER TEMPLATE`.

CPU time from the loaded tokenizer on, at most 2,000 chats, no rows.
"""

import json
import sys
from itertools import islice
from pathlib import Path
from time import process_time


def main():
    from transformers import AutoTokenizer

    path, folder, template = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with Path(path).open(encoding="utf-8") as lines:
        chats = [json.loads(line)["messages"] for line in islice(lines, 2000)]
    settings = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
    settings["chat_template"] = Path(template).read_text(encoding="utf-8")
    tokenizer.apply_chat_template(chats[0], **settings)
    began = process_time()
    for messages in chats:
        tokenizer.apply_chat_template(messages, **settings)
    print(json.dumps({"inner": process_time() - began, "units": len(chats)}))


if __name__ == "__main__":
    main()
