"""Tokenizers, corpora, chats and templates to test on, by name.

Some of each are on every machine: made for the tests, part of Python, or brought by a package. The rest are large
published files that only some machines have: tests of these skip elsewhere, with the reason. `GRISTMILL_TEST_DATA`
names their folder (else `shared/data` beside the project): it holds `tokenizers/<name>/tokenizer.json`,
`corpus/<name>.jsonl`, `chats/<name>.jsonl`, `bench/<name>.jsonl` and `chat_templates/<name>.jinja`.
"""

import json
import os
from itertools import islice
from pathlib import Path

import pytest

from gristmill_testing.made_tokenizers import MADE_TOKENIZERS, made_tokenizer
from gristmill_testing.open_chats import OPEN_CHATS, made_chats, published_templates
from gristmill_testing.open_texts import OPEN_CORPORA

_BESIDE_THE_PROJECT = Path(__file__).parents[4] / "shared" / "data"
ROOT = Path(os.environ.get("GRISTMILL_TEST_DATA", _BESIDE_THE_PROJECT))
TOKENIZERS = (*MADE_TOKENIZERS, "gpt2", "gpt_neox", "qwen2_5", "mistral_nemo", "bert_base_cased")
LARGE_CORPORA = (
    "kubernetes_website",
    "msdocs_cpp",
    "code_rust",
    "code_django",
    "webdev_translations",
    "chinese_poetry",
)
CORPORA = (*OPEN_CORPORA, *LARGE_CORPORA)
LARGE_CHATS = ("gsm8k", "gpteacher", "oasst1_en", "star_tools", "tau_airline_tools", "crosswoz_zh")

LARGE_TEMPLATES = (
    "GLM-4.6",
    "HuggingFaceTB-SmolLM3-3B",
    "Kimi-K2-Instruct",
    "LFM2-8B-A1B",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "deepseek-ai-DeepSeek-V3.1",
    "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "meta-llama-Llama-3.1-8B-Instruct",
    "microsoft-Phi-3.5-mini-instruct",
    "openai-gpt-oss-120b",
)


def tokenizer_folder(name):
    if name in MADE_TOKENIZERS:
        return made_tokenizer(name)
    return _large_file(f"tokenizers/{name}/tokenizer.json").parent


def corpus_texts(name, count, *, first=0):
    if name in OPEN_CORPORA:
        texts = OPEN_CORPORA[name]()
        return texts[min(first, len(texts) - count) :][:count]
    return [record["text"] for record in corpus_records(name, count, first=first)]


def corpus_records(name, count, *, first=0):
    return _records(_large_file(f"corpus/{name}.jsonl"), count, first)


def chat_records(name, count):
    if name in OPEN_CHATS:
        return made_chats(name, count)
    return _records(_large_file(f"chats/{name}.jsonl"), count)


def benchmark_records(name):
    return _records(_large_file(f"bench/{name}.jsonl"), None)


def template_source(name):
    if name in published_templates():
        return published_templates()[name]
    return _large_file(f"chat_templates/{name}.jinja").read_text(encoding="utf-8")


def _records(path, count, first=0):
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, first, None if count is None else first + count)]


def _large_file(name):
    path = ROOT / name
    if not path.is_file():
        pytest.skip(f"{name} is not on this machine (GRISTMILL_TEST_DATA names its folder)")
    return path
