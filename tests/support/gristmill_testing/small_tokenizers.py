"""Tokenizers made in the test: one trained on a few sentences, and ones that are wrong in some way."""

import functools
import json

from gristmill.text.tokenizers.files import find_tokenizer
from gristmill.text.tokenizers.train import save_tokenizer, train_bpe

SENTENCES = (
    "The mill grinds the corn, and the corn becomes flour; don't ask how: it's 1,234 turns of the stone.",
    "Die Mühle mahlt das Korn. Le moulin moud le blé. 水车磨玉米。粉引き小屋。 мельница 🌾🌾",
    "def grind(corn: Corn, *, turns=1234) -> Flour:\n    return Flour(corn.weight * 0.98)\n\n\n",
)


@functools.lru_cache(maxsize=4)
def _trained(vocab_size, specials):
    return train_bpe(SENTENCES * 20, vocab_size=vocab_size, special_tokens=specials)


def trained(folder, *, vocab_size=400, specials=("<|endoftext|>", "<|pad|>"), **config):
    """A byte-level BPE tokenizer in a folder; `config` changes its `tokenizer_config.json`."""
    files = dict(_trained(vocab_size, specials))
    files["tokenizer_config.json"] = json.dumps(json.loads(files["tokenizer_config.json"]) | config).encode()
    save_tokenizer(files, folder, overwrite=True)
    return find_tokenizer(str(folder))


def changed(folder, change):
    """The trained tokenizer, with its `tokenizer.json` changed by a function of its data."""
    trained(folder)
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return find_tokenizer(str(folder))
