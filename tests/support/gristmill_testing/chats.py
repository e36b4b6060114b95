"""Small chats: written with special tokens of their own, tokenized and masked by a function, without a template.

`<|user|>…<|end|><|assistant|>…<|end|>` and so on. What stands after `<|assistant|>` is trained, with its `<|end|>`.
"""

import itertools
import json
import random
import re

from gristmill.steps import MapBatches, Tokenize
from gristmill_testing.chat_marks import mark_answers
from gristmill_testing.small_tokenizers import trained

SPECIALS = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>")
WORDS = ["mill", "grist", "flour", "stone", "größe", "粉"]


def chat_tokenizer(folder):
    trained(folder, specials=SPECIALS)
    return folder


def chat_text(rng, *, max_words=40, turns=None):
    """One conversation."""
    said = [
        " ".join(rng.choices(WORDS, k=rng.randrange(1, max_words))) for _ in range(2 * (turns or rng.choice([1, 2, 3])))
    ]
    roles = itertools.cycle(["<|user|>", "<|assistant|>"])
    return "".join(f"{role}{words}<|end|>" for role, words in zip(roles, said, strict=False))


def write_chats(path, count, seed=0, **options):
    rng = random.Random(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": chat_text(rng, **options)}) + "\n" for _ in range(count)))
    return path


def chat_steps(tokenizer):
    """From texts to tokens with masks: what `render` and `tokenize` do."""
    return [
        Tokenize(tokenizer=str(tokenizer), engine="tokenizers", special_tokens_in_text="token"),
        MapBatches(call=mark_answers, columns={"loss_mask": "list<bool>"}),
    ]


def answers(text):
    """The trained parts of a chat's text."""
    return re.findall(r"<\|assistant\|>(.*?<\|end\|>)", text, re.DOTALL)
