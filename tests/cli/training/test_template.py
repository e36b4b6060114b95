"""`gristmill template check`: what it shows, and its exit codes."""

import json

import pytest
from click.testing import CliRunner
from gristmill_testing.chat_templates import CHATML, THINKING_PROMPT
from gristmill_testing.small_tokenizers import trained

from gristmill.cli.main import command_line

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture
def folder(tmp_path):
    trained(tmp_path / "tokenizer", specials=SPECIALS, chat_template=CHATML)
    messages = [{"role": "user", "content": "Hi <|im_end|>"}, {"role": "assistant", "content": "Hello"}]
    lines = [{"messages": messages}, {"messages": messages[:1]}, {"messages": "nothing"}]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def check(folder, *options, tokenizer="tokenizer"):
    arguments = ["template", "check", str(folder / tokenizer), str(folder / "chats.jsonl"), *options]
    return CliRunner().invoke(command_line, arguments)


def test_an_example_and_the_counts_are_shown(folder):
    done = check(folder)
    assert done.exit_code == 0, done.output
    assert "⟦Hello<|im_end|>⟧" in done.output
    for told in ("1 example from 3 records", "no_assistant 1", "invalid_messages 1", "1 special tokens written"):
        assert told in done.output


def test_problems_are_exit_code_1(folder):
    (folder / "endless.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}")
    done = check(folder, "--template", str(folder / "endless.jinja"))
    assert done.exit_code == 1
    assert "learn to stop" in done.output
    assert "help:" in done.output


def test_json(folder):
    found = json.loads(check(folder, "--json").stdout)
    assert found["report"]["num_examples"] == 1
    assert len(found["tokens"]) == len(found["trained"]) == len(found["kinds"])
    assert {"user", "assistant", "end"} <= set(found["kinds"])


def test_a_syntax_error_is_told_with_its_line(folder):
    (folder / "wrong.jinja").write_text("{% for m in messages %}\n{% endif %}")
    done = check(folder, "--template", str(folder / "wrong.jinja"))
    assert done.exception is not None
    assert "line 2" in str(done.exception)


def test_prompts_that_differ_are_shown_beside_the_rendering(folder):
    (folder / "thinks.jinja").write_text(THINKING_PROMPT)
    done = check(folder, "--template", str(folder / "thinks.jinja"))
    assert done.exit_code == 0, done.output
    assert "prompt:   " in done.output
    assert "rendered: " in done.output
    assert "answers, plain: 1, of which 0 would not be trained" in done.output
    refused = check(folder, "--template", str(folder / "thinks.jinja"), "--prompt", "refuse")
    assert refused.exit_code == 1
    assert "of which 1 would not be trained" in refused.output


def test_tokens_that_only_the_config_knows_are_a_problem(folder):
    path = folder / "tokenizer" / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["added_tokens_decoder"] = {"900": {"content": "<|turn_end|>", "special": True}}
    path.write_text(json.dumps(config))
    assert check(folder).exit_code == 0  # the template does not write it
    (folder / "other.jinja").write_text(CHATML.replace("<|im_end|>", "<|turn_end|>"))
    done = check(folder, "--template", str(folder / "other.jinja"))
    assert done.exit_code == 1
    assert "<|turn_end|>, which only tokenizer_config.json adds" in done.output
    assert "'<|turn_end|>' (one token)" not in done.output


def test_what_a_template_leaves_out_is_counted_in_tokens(folder):
    answer = {"role": "assistant", "content": "Hello", "reasoning_content": "Greet back."}
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "wave", "arguments": {}}}]}
    chats = [[{"role": "user", "content": "Hi"}, message] for message in (answer, call)]
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    done = check(folder)
    assert done.exit_code == 0, done.output
    assert "no problems found" not in done.output
    report = json.loads(check(folder, "--json").stdout)["report"]
    assert report["left_out_tokens"].keys() == {"reasoning", "calls"}
    assert report["num_answer_tokens"] > sum(report["left_out_tokens"].values())
    assert f"leaves out {sum(report['left_out_tokens'].values())} of" in " ".join(done.output.split())
    assert check(folder, "--strict").exit_code == 1


def test_fields_that_nothing_reads_are_listed(folder):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello", "mask": 0.5}]
    (folder / "chats.jsonl").write_text(json.dumps({"messages": messages, "persona": 1, "context": "Noon."}) + "\n")
    done = check(folder, "--strict")
    assert done.exit_code == 1
    assert "mask (1)" in done.output
    assert "context (1)" in done.output
    assert "persona" not in done.output
    assert "no problems found" not in done.output


def test_chats_under_other_keys(folder):
    (folder / "chats.jsonl").write_text(json.dumps({"question": "Hi", "answer": "Hello"}) + "\n")
    assert "fields: {prompt: question, response: answer}" in " ".join(check(folder).output.split())
    done = check(folder, "--field", "prompt=question", "--field", "response=answer", "--strict")
    assert done.exit_code == 0, done.output
    assert "⟦Hello<|im_end|>⟧" in done.output
    for wrong in ("answer=answer", "prompt=question"):
        assert check(folder, "--field", wrong).exit_code
