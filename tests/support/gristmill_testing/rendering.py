"""Records through `render` and the chat form of `tokenize`, without a run."""

import json

import msgspec
import pyarrow as pa

from gristmill.core.records import ORIGIN, RECORD, make_origins
from gristmill.steps import Render, Tokenize
from gristmill.steps.tokenize.tokenize import to_chat_form
from gristmill.text.tokenizers.engine import load_engine
from gristmill.text.tokenizers.files import find_tokenizer

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def batch(*records):
    lines = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
    places = pa.array(range(len(lines)), pa.uint64())
    return pa.RecordBatch.from_arrays([make_origins(7, places), pa.array(lines, pa.large_binary())], [ORIGIN, RECORD])


def rendered(given, **parameters):
    step = Render(**parameters).resolve(".")
    return step.load().apply(given, seed=0)


def tokens(given, tokenizer, *, max_tokens=None, cuts=False, tokenize=None, **parameters):
    step = Render(tokenizer=tokenizer, max_tokens=max_tokens, too_long="cut" if cuts else "drop_turns", **parameters)
    text = msgspec.structs.replace(step.resolve("."), is_tokenized=True).load().apply(given, 0)
    encode = to_chat_form(Tokenize(tokenizer=tokenizer, **(tokenize or {})), max_tokens, cuts=cuts).resolve(".")
    encode = msgspec.structs.replace(encode, has_preferences="preferences" in parameters)
    return text, encode.load().apply(text.batch, 0)


def words(tokenizer, encoded, row=0):
    """The trained text of a row."""
    ids, mask = (encoded.batch.column(name)[row].as_py() for name in ("input_ids", "loss_mask"))
    decoder = load_engine(find_tokenizer(tokenizer), "tokenizers", specials_as_text=False)
    return decoder.decode([token for token, is_trained in zip(ids, mask, strict=True) if is_trained])
