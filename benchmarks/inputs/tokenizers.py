"""Tokenizers of the kinds that matter for speed, trained on the corpus of the contests.

`byte_level` is what `gristmill tokenizer train` makes: GPT-2's kind. `gemma` and `llama2` replace spaces by `▁` in a
normalizer and have no pre-tokenizer, so that a whole text is one word to an engine that is not made for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.harness.contest import OURS, Setting
from benchmarks.harness.environments import variables_of
from benchmarks.harness.processes import make_variables
from benchmarks.inputs import corpora

if TYPE_CHECKING:
    from pathlib import Path

END, START_OF_TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_TRAINING_MB = 10
_VOCAB_SIZE = 32_768
_SPECIALS = ["<unk>", "<s>", "</s>", END, START_OF_TURN, END_OF_TURN]


def byte_level(setting: Setting) -> Path:
    """Return the user's tokenizer, or one trained by Gristmill."""
    if setting.tokenizer:
        return setting.tokenizer
    return _trained(setting)


def for_chats(setting: Setting, kind: str = "byte_level") -> Path:
    """Return a tokenizer that has the markers of ChatML."""
    if kind != "byte_level":
        return _without_pre_tokenizer(setting, kind)
    if setting.tokenizer and START_OF_TURN in (setting.tokenizer / "tokenizer.json").read_text(encoding="utf-8"):
        return setting.tokenizer
    return _trained(setting)


def list_training_texts(setting: Setting) -> list[str]:
    with corpora.plain(setting, setting.scaled(_TRAINING_MB)).open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def _trained(setting: Setting) -> Path:
    folder = setting.folder / "inputs" / f"tokenizer-{setting.scaled(_TRAINING_MB):g}"
    if not (folder / "tokenizer.json").exists():
        corpus = corpora.plain(setting, setting.scaled(_TRAINING_MB))
        command = [sys.executable, "-m", "gristmill", "tokenizer", "train", str(folder), str(corpus), "--overwrite"]
        for special in (END, START_OF_TURN, END_OF_TURN):
            command += ["--special", special]
        command += ["--vocab-size", str(_VOCAB_SIZE)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=make_variables(variables_of(OURS)))
    return folder


def _without_pre_tokenizer(setting: Setting, kind: str) -> Path:
    folder = setting.folder / "inputs" / f"tokenizer-{kind}-{setting.scaled(_TRAINING_MB):g}"
    if not (folder / "tokenizer.json").exists():
        write_tokenizer(folder, train_without_pre_tokenizer(list_training_texts(setting), kind))
    return folder


def train_without_pre_tokenizer(texts: list[str], kind: str) -> dict:
    """Return the content of `tokenizer.json` for a tokenizer of Gemma's or Llama 2's kind."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    rules = {"special_tokens": _SPECIALS, "vocab_size": 16_000, "show_progress": False}
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(limit_alphabet=1000, **rules))
    data = json.loads(tokenizer.to_str())
    vocab = data["model"]["vocab"]
    vocab.update({f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)})
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prefix = {"type": "Prepend", "prepend": "▁"}
    data["pre_tokenizer"] = None
    data["normalizer"] = spaces if kind == "gemma" else {"type": "Sequence", "normalizers": [prefix, spaces]}
    return data


def write_tokenizer(folder: Path, data: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TURN}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
