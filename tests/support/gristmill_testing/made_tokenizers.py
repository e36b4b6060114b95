"""Tokenizers of the common kinds, trained on texts that every machine has."""

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from gristmill_testing.open_chats import published_templates
from gristmill_testing.open_texts import OPEN_CORPORA

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_GPT4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(split=None, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), levels]) if split else levels
    )
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer, trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )


def _word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, trainers.WordPieceTrainer(
        vocab_size=3000, special_tokens=["[UNK]", *SPECIALS], show_progress=False
    )


MADE_TOKENIZERS = {
    "made_gpt2_like": _byte_level,
    "made_gpt4_like": functools.partial(_byte_level, _GPT4_SPLIT),
    "made_qwen_like": functools.partial(_byte_level, _GPT4_SPLIT, normalizers.NFC()),
    "made_word_piece": _word_piece,
}
"""The first and the third are what GPT-2's and Qwen's files describe, with fewer words."""


@functools.cache
def made_tokenizer(name):
    """The folder of a tokenizer, made once a process."""
    folder = Path(tempfile.mkdtemp(prefix="gristmill-test-tokenizer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tokenizer, trainer = MADE_TOKENIZERS[name]()
    texts = [text[:4000] for make in OPEN_CORPORA.values() for text in make()[:60]]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": published_templates()["qwen2_5"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
