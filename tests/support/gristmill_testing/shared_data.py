"""Real tokenizers and corpora that lie on some machines. Tests that want them skip where they are not, with a reason.

`GRISTMILL_TEST_DATA` names the folder (else `shared/data` beside the project): it holds
`tokenizers/<name>/tokenizer.json` and `corpus/<name>.jsonl`.
"""

import json
import os
from itertools import islice
from pathlib import Path

import pytest

_BESIDE_THE_PROJECT = Path(__file__).parents[4] / "shared" / "data"
ROOT = Path(os.environ.get("GRISTMILL_TEST_DATA", _BESIDE_THE_PROJECT))
TOKENIZERS = ("gpt2", "gpt_neox", "qwen2_5", "mistral_nemo", "bert_base_cased")
CORPORA = ("kubernetes_website", "msdocs_cpp", "code_rust", "code_django", "webdev_translations", "chinese_poetry")


def tokenizer_folder(name):
    folder = ROOT / "tokenizers" / name
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"no real tokenizers here: {folder} (set GRISTMILL_TEST_DATA)")
    return folder


def corpus_texts(name, count, *, first=0):
    return [record["text"] for record in corpus_records(name, count, first=first)]


def corpus_records(name, count, *, first=0):
    path = ROOT / "corpus" / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip(f"no real corpora here: {path} (set GRISTMILL_TEST_DATA)")
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, first, first + count)]


CHATS = ("gsm8k", "gpteacher", "oasst1_en", "star_tools", "tau_airline_tools", "crosswoz_zh")


def chat_records(name, count):
    path = ROOT / "chats" / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip(f"no real chats here: {path} (set GRISTMILL_TEST_DATA)")
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, count)]


def template_source(name):
    path = ROOT / "chat_templates" / f"{name}.jinja"
    if not path.is_file():
        pytest.skip(f"no real chat templates here: {path} (set GRISTMILL_TEST_DATA)")
    return path.read_text(encoding="utf-8")
