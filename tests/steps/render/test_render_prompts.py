"""`render: {until: prompt}`: the text up to where the model answers, its messages, and what becomes of the rest."""

import json

import pyarrow as pa
import pytest
from gristmill_testing.small_tokenizers import trained

from gristmill.core.errors import UsageError
from gristmill.core.recipe import Recipe
from gristmill.core.records import RECORD, RECORD_TYPE, documents
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.recipe.load import parse_recipe
from gristmill.steps import Decontaminate, Deduplicate, Filter, Read, Render, Tokenize, Write
from gristmill.steps.render.link_chats import link_chat_steps

SYSTEM, USER, CALL, RESULT, ANSWER = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 2?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}],
    },
    {"role": "tool", "content": "4"},
    {"role": "assistant", "content": "4"},
)


def chatml(messages):
    return "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages) + "<|im_start|>assistant\n"


def render(*records, **keys):
    [step] = link_chat_steps([Render(template="chatml", until="prompt", **keys)], None)
    lines = pa.array([json.dumps(record).encode() for record in records], RECORD_TYPE)
    batch = documents([""] * len(records)).drop_columns(["text"]).append_column(RECORD, lines)
    resolved = step.resolve(".")
    result = resolved.apply(batch, 0)
    assert result.batch.schema.equals(resolved.output_schema(batch.schema))
    result.batch.validate(full=True)
    return result


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("record", "messages", "completion", "keys"),
    [
        ({"messages": [USER, ANSWER]}, [USER], "4", {}),
        ({"messages": [SYSTEM, USER]}, [SYSTEM, USER], None, {}),
        ({"messages": [USER, ANSWER, USER, ANSWER, ANSWER]}, [USER, ANSWER, USER], "4", {}),
        ({"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]}, [USER], "4", {}),
        ({"instruction": "2 + 2?", "output": "4"}, [USER], "4", {}),
        ({"prompt": "2 + 2?", "completion": "4"}, [USER], "4", {}),
        ({"prompt": "2 + 2?"}, [USER], None, {}),
        ({"prompt": [SYSTEM, USER]}, [SYSTEM, USER], None, {}),
        ({"prompt": "2 + 2?", "system": "Be brief."}, [SYSTEM, USER], None, {}),
        ({"question": "2 + 2?", "answer": "4"}, [USER], "4", {"fields": {"prompt": "question", "response": "answer"}}),
        ({"question": "2 + 2?", "answer": "4"}, [USER], None, {"fields": {"prompt": "question"}}),
        ({"question": [SYSTEM, USER]}, [SYSTEM, USER], None, {"fields": {"prompt": "question"}}),
        ({"q": "2 + 2?", "s": "Be brief."}, [SYSTEM, USER], None, {"fields": {"prompt": "q", "system": "s"}}),
    ],
)
def test_every_shape_of_record(record, messages, completion, keys):
    batch = render(record, **keys).batch
    assert batch.column("text").to_pylist() == [chatml(messages)]
    assert batch.column("prompt").to_pylist() == [messages]
    assert batch.column("completion").to_pylist() == [completion]


def test_records_without_a_prompt_are_dropped_or_quarantined():
    result = render(
        {"messages": [USER]},
        {"messages": [ANSWER]},
        {"messages": [{"role": "user", "content": " "}]},
        {"prompt": 5},
        {"messages": [USER, CALL, RESULT, ANSWER]},
        {"nothing": 1},
        {"prompt": "\ud800"},
    )
    assert result.batch.num_rows == 1
    assert result.dropped == {"no_prompt": 1, "empty_prompt": 1}
    assert [bad.reason for bad in result.quarantined] == [
        "not_a_chat",
        "prompt_not_plain",
        "not_a_chat",
        "invalid_json",
    ]


def test_kept_chats_may_call_tools():
    result = render({"messages": [USER, CALL, RESULT, ANSWER]}, keep="messages")
    [text] = result.batch.column("text").to_pylist()
    assert text.endswith("<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n")


def test_tokens_are_counted_and_limited(tmp_path):
    tokenizer = tmp_path / "tokenizer"
    trained(tokenizer, specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    records = [{"prompt": "a"}, {"prompt": "a b " * 200}]
    counted = render(*records, tokenizer=str(tokenizer)).batch.column("num_tokens").to_pylist()
    assert counted[0] < counted[1]
    limited = render(*records, tokenizer=str(tokenizer), max_tokens=counted[0])
    assert limited.batch.column("num_tokens").to_pylist() == counted[:1]
    assert limited.dropped == {"too_long": 1}


def test_keys_that_are_for_training_are_refused():
    for keys in ({"too_long": "windows"}, {"too_long": "cut"}, {"fields": {"response": "a"}}):
        with pytest.raises(UsageError):
            Render(template="chatml", until="prompt", **keys)
    with pytest.raises(UsageError, match="prompts are written as messages"):
        link_chat_steps([Render(until="prompt"), Tokenize(tokenizer="mine")], None)


def is_short(record):
    return len(record["text"]) < 60


def test_columns_of_the_record_are_kept(tmp_path):
    rows = [{"question": f"{n}?" * n, "answer": str(n), "level": n, "tools": [{"name": "add"}]} for n in range(1, 30)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = Recipe(
        sources={"sums": Read(read=str(tmp_path / "in.jsonl"))},
        steps=[
            Render(template="chatml", until="prompt", fields={"prompt": "question", "response": "answer"}),
            Filter(call=is_short),
            Write(format="jsonl"),
        ],
        output=str(tmp_path / "out"),
    )
    kept = list(run_recipe(recipe, RunOptions(backend="serial", progress=False)).dataset())
    assert 0 < len(kept) < 29
    for record, row in zip(kept, rows, strict=False):
        assert (record["level"], record["completion"], record["tools"]) == (row["level"], row["answer"], row["tools"])
        assert record["prompt"] == [{"role": "user", "content": row["question"]}]


def test_copies_and_benchmarks_are_found_in_the_prompt(tmp_path):
    """Whatever the answer is: two answers to one question are one prompt, and a benchmark's question is in it."""
    words = ["mill", "grist", "flour", "stone", "wheat", "rye", "oat"]
    questions = [" ".join(words[(n * step + n // 7) % 7] for step in range(1, 14)) + f" {n}" for n in range(30)]
    rows = [{"question": question, "answer": answer} for question in questions for answer in ("yes", "no")]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "bench.jsonl").write_text(json.dumps({"question": questions[3]}) + "\n")
    recipe = Recipe(
        sources={"asked": Read(read=str(tmp_path / "in.jsonl"))},
        steps=[
            Render(template="chatml", until="prompt", fields={"prompt": "question", "response": "answer"}),
            Deduplicate(kind="exact"),
            Decontaminate(benchmarks={"bench": str(tmp_path / "bench.jsonl")}, action="drop", ngram=8),
            Write(format="jsonl"),
        ],
        output=str(tmp_path / "out"),
    )
    records = list(run_recipe(recipe, RunOptions(backend="serial", progress=False)).dataset())
    assert [record["completion"] for record in records] == ["yes"] * len(records)
    left = [record["prompt"][0]["content"] for record in records]
    assert questions[3] not in left
    assert 0 < 30 - len(left) < 5


def test_the_key_is_read_from_a_recipe():
    recipe = parse_recipe(
        "output: out\nsources: {a: {read: a.jsonl}}\nsteps: [{render: {until: prompt}}]\n", folder="."
    )
    assert recipe.steps[0] == Render(until="prompt")
