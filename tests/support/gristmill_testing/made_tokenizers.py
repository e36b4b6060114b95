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


def _leave_gaps(data):
    """Ids as in cl100k and o200k: some numbers are nobody's, in the middle and before the special tokens."""
    vocab = data["model"]["vocab"]
    words = sorted((token for token in vocab if token not in SPECIALS), key=vocab.get)
    vocab.clear()
    vocab.update((token, number + 7 * (number > 2000)) for number, token in enumerate(words))
    first = len(words) + 10
    for number, token in enumerate(data["added_tokens"]):
        token["id"] = vocab[token["content"]] = first + 3 * number


def _finish_command_like(data):
    """As Command R+ has it: digits are split off first, and some words (emoji) are in no text, since its bytes are
    written in other characters.
    """
    digits = {"type": "Digits", "individual_digits": True}
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, data["pre_tokenizer"]]}
    vocab = data["model"]["vocab"]
    for word in ("\u200d", "™", "👍🏽"):
        vocab[word] = len(vocab)


def _sentence_piece():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # only to train
    return tokenizer, trainers.BpeTrainer(
        vocab_size=3000, special_tokens=["<unk>", *SPECIALS], limit_alphabet=300, show_progress=False
    )


def _finish_sentence_piece(data, *, prepends):
    """As Gemma's file has it; with `prepends`, as Llama 2's."""
    vocab = data["model"]["vocab"]
    first = max(vocab.values()) + 1
    vocab.update((f"<0x{byte:02X}>", first + byte) for byte in range(256))
    data["pre_tokenizer"] = None
    data["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    data["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ],
    }
    if prepends:
        prepend = {"type": "Prepend", "prepend": "▁"}
        data["normalizer"] = {"type": "Sequence", "normalizers": [prepend, data["normalizer"]]}
        data["decoder"]["decoders"].append({"type": "Strip", "content": " ", "start": 1, "stop": 0})


def _finish_gemma3_like(data):
    """As the files of Gemma 1 to 3 and Yi have it: a tab that is a word, so that no piece stands for its byte; a list
    of one normalizer; a split at spaces that are no longer there; thousands of added tokens, most of them not special.
    """
    _finish_sentence_piece(data, prepends=False)
    vocab = data["model"]["vocab"]
    number = vocab.pop("<0x09>")
    tab = vocab.pop("\t", None)
    vocab["\t"] = number if tab is None else tab
    data["normalizer"] = {"type": "Sequence", "normalizers": [data["normalizer"]]}
    data["pre_tokenizer"] = {
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False
    }  # fmt: skip
    names = [f"<unused{number}>" for number in range(6000)]
    names += [f"<{slash}{name}>" for name in ("table", "td", "tr", "b", "i", "s", "h1", "code") for slash in ("", "/")]
    names += ["[multimodal]", *("\n" * count for count in range(1, 9)), *("\t" * count for count in range(2, 9))]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    for name in names:
        number = vocab.setdefault(name, len(vocab))
        data["added_tokens"].append({"id": number, "content": name, **flags})
    data["added_tokens"].sort(key=lambda token: token["id"])


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
    "made_gapped": functools.partial(_byte_level, _GPT4_SPLIT),
    "made_command_like": functools.partial(_byte_level, None, normalizers.NFC()),
    "made_gemma_like": _sentence_piece,
    "made_llama2_like": _sentence_piece,
    "made_gemma3_like": _sentence_piece,
}
"""The first and the third are what GPT-2's and Qwen's files describe, with fewer words."""

_CHANGES = {
    "made_gapped": _leave_gaps,
    "made_command_like": _finish_command_like,
    "made_gemma_like": functools.partial(_finish_sentence_piece, prepends=False),
    "made_llama2_like": functools.partial(_finish_sentence_piece, prepends=True),
    "made_gemma3_like": _finish_gemma3_like,
}
"""What training cannot make, done to the file afterwards."""


@functools.cache
def made_tokenizer(name):
    """The folder of a tokenizer, made once a process."""
    folder = Path(tempfile.mkdtemp(prefix="gristmill-test-tokenizer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tokenizer, trainer = MADE_TOKENIZERS[name]()
    texts = [text[:4000] for make in OPEN_CORPORA.values() for text in make()[:60]]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    data = json.loads(tokenizer.to_str())
    _CHANGES.get(name, lambda data: None)(data)
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": published_templates()["qwen2_5"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
