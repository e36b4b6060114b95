"""Many templates, the same chats: nothing is trained wrongly, nothing is lost without a word, and the page says so."""

from importlib.metadata import version

import pytest
from gristmill_testing.shared_data import template_source
from gristmill_testing.template_matrix import PAGE, Row, all_rows, page, row_of

REASONS = {"template_error", "calls_left_out", "message_not_rendered"}
SHARED = {
    "GLM-4.6": "",
    "HuggingFaceTB-SmolLM3-3B": "<|im_end|>",
    "Kimi-K2-Instruct": "<|im_end|>",
    "LFM2-8B-A1B": "<|im_end|>",
    "Mistral-Small-3.2-24B-Instruct-2506": "</s>",
    "Qwen-Qwen2.5-7B-Instruct": "<|im_end|>",
    "Qwen-Qwen3-0.6B": "<|im_end|>",
    "deepseek-ai-DeepSeek-V3.1": "<｜end▁of▁sentence｜>",  # noqa: RUF001
    "google-gemma-2-2b-it": "<end_of_turn>",
    "ibm-granite-granite-3.3-2B-Instruct": "<|end_of_text|>",
    "meta-llama-Llama-3.1-8B-Instruct": "<|eot_id|>",
    "microsoft-Phi-3.5-mini-instruct": "<|end|>",
    "openai-gpt-oss-120b": "<|return|>",
}


@pytest.fixture(scope="module")
def rows():
    return all_rows()


def check(row):
    assert row.num_equal == row.num_texts, row.name
    assert row.wrong == [], row.name
    assert row.num_trained == row.num_ended == row.num_answers >= 4, row.name
    assert "lost" not in row.calls.values(), row.name
    assert set(row.refused.values()) <= REASONS, row.name


@pytest.mark.full
def test_every_template_keeps_the_promises(rows):
    assert len(rows) >= 40
    for row in rows:
        check(row)


def test_the_page_is_what_was_found(rows):
    """`python -m gristmill_testing.template_matrix` writes it, with tests/support on the path."""
    text = PAGE.read_text(encoding="utf-8")
    if f"TRL {version('trl')} " not in text or f"{version('transformers')} to the byte" not in text:
        pytest.skip("the page was made with other versions of TRL and transformers")
    assert page(rows) == text


@pytest.mark.parametrize("name", SHARED)
def test_other_real_templates_keep_them(name):
    check(row_of(Row(name, template_source(name), ending=SHARED[name])))
