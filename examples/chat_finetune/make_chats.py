"""Write the example's data beside this file: `sharegpt.jsonl`, a few hundred small chats, and a tokenizer for them.

Then: `gristmill template check tokenizer sharegpt.jsonl --template chatml`, `gristmill run recipe.yaml`,
`gristmill inspect out`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gristmill as gm

HERE = Path(__file__).parent
GOODS = ("wheat", "rye", "barley", "oats", "spelt")


def chats() -> Iterator[dict[str, Any]]:
    """Make chats about sums in a mill, of one to three turns, some with a system prompt."""
    for number in range(400):
        goods = GOODS[number % len(GOODS)]
        turns = []
        for turn in range(1 + number % 3):
            sacks, more = 3 + number % 17, 2 + (number + turn) % 11
            turns.append({"from": "human", "value": f"We have {sacks} sacks of {goods} and get {more} more. How many?"})
            turns.append({"from": "gpt", "value": f"{sacks} + {more} = {sacks + more} sacks of {goods}."})
        system = {"system": "You are the miller's clerk. Be exact."} if number % 4 == 0 else {}
        yield {"id": number, **system, "conversations": turns}


def main() -> None:
    """Write the chats and train their tokenizer."""
    lines = [json.dumps(chat) for chat in chats()]
    (HERE / "sharegpt.jsonl").write_text("\n".join(lines) + "\n")
    texts = [turn["value"] for chat in chats() for turn in chat["conversations"]]
    special_tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    gm.train_tokenizer(texts, HERE / "tokenizer", vocab_size=512, special_tokens=special_tokens, overwrite=True)


if __name__ == "__main__":
    main()
