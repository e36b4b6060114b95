"""Training a tokenizer: byte-level BPE, the same result for the same texts in the same order.

Memory grows with the number of distinct words, not with the length of the input: 450 MiB for 50 MB of text, 520 MiB for
200 MB. Texts are read from an iterator, one at a time.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import UsageError
from gristmill.storage.commit import write_file
from gristmill.text.tokenizers.files import CONFIG, TOKENIZER

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

END_OF_TEXT = "<|endoftext|>"
_NUM_BYTES = 256
# Cuts a text into words as most current models do: contractions, letters with one sign before them, up to three digits,
# signs, line ends, spaces.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

# What special tokens are for, by their letters: `<|im_start|>` is `imstart`, `</s>` is `/s`.
_ENDS_TEXT = frozenset({"/s", "endofdocument", "endofsentence", "endoftext", "eod", "eos", "eot"})
_ENDS_TURN = frozenset({"end", "endofmessage", "endofturn", "eom", "eotid", "imend", "turn/"})
_BEGINS_TEXT = frozenset({"beginofsentence", "beginoftext", "bos", "s", "sos", "startoftext"})
_BEGINS_TURN = frozenset({"imstart", "start", "startheaderid", "startofturn", "/turn"})


def train_bpe(
    texts: Iterable[str], *, vocab_size: int = 16384, special_tokens: Sequence[str] = (END_OF_TEXT,)
) -> dict[str, bytes]:
    """Train a tokenizer; returns its files by name. `find_text_ends` tells which special token ends documents.

    >>> files = train_bpe(["one fish two fish"], vocab_size=260)
    >>> sorted(files)
    ['tokenizer.json', 'tokenizer_config.json']
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415

    _check_options(vocab_size, special_tokens)
    text_ends = find_text_ends(special_tokens)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **text_ends}
    return {
        TOKENIZER: tokenizer.to_str(pretty=True).encode(),
        CONFIG: msgspec.json.format(msgspec.json.encode(config, order="sorted")),
    }


def find_text_ends(special_tokens: Sequence[str]) -> dict[str, str]:
    """Choose the tokens that end and begin documents, by their names.

    The first token ends documents, unless another one has a name that says so and the first has not.

    >>> find_text_ends(["<|im_start|>", "<|im_end|>"]), find_text_ends(["<s>", "</s>"])
    ({'eos_token': '<|im_end|>'}, {'eos_token': '</s>', 'bos_token': '<s>'})
    >>> find_text_ends(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])  # one for both, as GPT-2 has it
    {'eos_token': '<|endoftext|>', 'bos_token': '<|endoftext|>'}
    """
    names = {token: re.sub(r"[^a-z/]", "", token.lower()) for token in special_tokens}
    first = special_tokens[0]
    ends = [token for kind in (_ENDS_TEXT, _ENDS_TURN) for token in special_tokens if names[token] in kind]
    begins = [token for token in special_tokens if names[token] in _BEGINS_TEXT]
    if not ends and names[first] in _BEGINS_TEXT | _BEGINS_TURN:
        raise UsageError(
            f"{first!r} begins texts or turns, and none of the special tokens ends them",
            help=f'name one that does, such as "{END_OF_TEXT}"',
        )
    end = first if first in ends or not ends else ends[0]
    if not begins and names[end] == "endoftext":
        begins = [end]
    return {"eos_token": end} | ({"bos_token": begins[0]} if begins else {})


def save_tokenizer(files: dict[str, bytes], folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a tokenizer's files. `tokenizer.json` comes last: without it the folder is no tokenizer."""
    check_free(folder, overwrite=overwrite)
    for name in sorted(files, key=lambda name: name == TOKENIZER):
        write_file(Path(folder, name), files[name], "tokenizer")


def check_free(folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Refuse a folder that holds a tokenizer already, or cannot hold one."""
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file", help="name a folder")
    if (path / TOKENIZER).exists() and not overwrite:
        raise UsageError(f"{path / TOKENIZER} exists already", help="choose another folder, or use --overwrite")


def _check_options(vocab_size: int, special_tokens: Sequence[str]) -> None:
    if not special_tokens:
        raise UsageError("a tokenizer needs a special token that ends documents")
    if not all(special_tokens) or len(set(special_tokens)) < len(special_tokens):
        raise UsageError(f"special tokens must differ and not be empty: {', '.join(map(repr, special_tokens))}")
    least = _NUM_BYTES + len(special_tokens)
    if vocab_size < least:
        raise UsageError(f"vocab_size must be at least {least} (256 bytes and the special tokens), not {vocab_size}")
