"""`render: {keep: messages}`: chats filtered and deduplicated by their text, and written as the chats they were."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gristmill_testing.record_forms import without_nulls, written_records

from gristmill.core.errors import UsageError
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.shards.verify import verify
from gristmill.steps import Deduplicate, Filter, Language, Length, Map, Read, Render, Select, Shuffle, Tokenize, Write
from gristmill.text.tokenizers.train import save_tokenizer, train_bpe

LINES = [
    b'{"messages": [{"role": "user", "content": "What is %d + %d, tell me in words?"}, '
    b'{"role":"assistant","content":"It is %d."}],  "id": %d, "source": {"n": 1e400}, "text": "own %d"}'
    % (n, n, 2 * n, n, n)
    for n in range(10)
]
COPY = LINES[3].replace(b'"id": 3', b'"id": 99')
BAD = b'{"messages": [{"role": "user", "content": "no answer"}], "id": 50}'


@pytest.fixture
def chats(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_bytes(b"\n".join([*LINES, COPY, BAD]) + b"\n")
    return Read(read=str(path))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer") / "trained"
    words = [line.decode() for line in LINES]
    save_tokenizer(train_bpe(words, vocab_size=300, special_tokens=["<|im_end|>", "<|im_start|>"]), str(folder))
    return str(folder)


def run(mill, read, steps):
    result = run_recipe(mill.recipe({"chats": read}, steps), RunOptions(backend="serial", progress=False))
    assert verify(mill.output)
    return result


def written_lines(mill):
    [path] = mill.output.glob("train/chats/*.jsonl")
    return path.read_bytes().splitlines()


def test_each_chat_that_passed_is_given_back_byte_for_byte(mill, chats):
    between = [Length(min_chars=10), Language(), Deduplicate()]
    result = run(mill, chats, [Render(template="chatml", keep="messages"), *between, Write(format="jsonl")])
    assert written_lines(mill) == LINES
    dropped = {account.step: dict(account.dropped) for account in result.manifest.books["chats"]}
    assert dropped["render"] == {"no_assistant": 1}
    assert sum(dropped["deduplicate"].values()) == 1


def test_text_and_tokens_are_columns_in_between(mill, chats, tokenizer):
    seen = []

    def look(record):
        seen.append(record)
        return record["num_tokens"] > 0 and record["id"] % 2 == 0

    render = Render(template="chatml", tokenizer=tokenizer, keep="messages")
    run(mill, chats, [render, Length(min_chars=1), Filter(call=look), Write(format="jsonl")])
    assert written_lines(mill) == LINES[::2]
    assert all(record["num_tokens"] > 10 for record in seen)
    assert seen[0]["text"] == "own 0"  # the chat's own field; the steps saw the rendered text


@pytest.mark.parametrize("to", ["arrow", "parquet", "jsonl", "webdataset"])
@pytest.mark.parametrize("barrier", [[], [Shuffle()]], ids=["local", "shuffle"])
def test_other_formats_get_the_fields_of_the_chat(mill, chats, to, barrier):
    run(mill, chats, [Render(template="chatml", keep="messages"), *barrier, Write(format=to)])
    found = sorted(written_records(mill.output, to), key=lambda record: record["id"])
    expected = [json.loads(line) for line in [*LINES, COPY]]
    assert found == expected


@pytest.mark.parametrize("to", ["jsonl", "parquet"])
def test_chats_of_tables(mill, tmp_path, to):
    records = [
        {"messages": [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": "a"}], "n": n, "text": "x"}
        for n in range(5)
    ]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "in.parquet")
    steps = [Render(template="chatml", keep="messages"), Deduplicate(), Write(format=to)]
    run(mill, Read(read=str(tmp_path / "in.parquet")), steps)
    assert written_records(mill.output, to) == without_nulls(records)


def test_rendered_chats_keep_their_other_fields(mill, chats):
    run(mill, chats, [Render(template="chatml"), Write(format="jsonl")])
    [first, *_] = written_records(mill.output, "jsonl")
    assert first.keys() == {"text", "prompt", "completion", "id", "source"}
    assert first["text"].startswith("<|im_start|>")


@pytest.mark.parametrize(
    "steps",
    [
        [Tokenize(tokenizer="x")],
        [Map(call=lambda record: record)],
        [Select(columns=["text"])],
    ],
)
def test_what_would_change_the_chat_is_refused(mill, chats, steps):
    with pytest.raises(UsageError):
        run(mill, chats, [Render(template="chatml", keep="messages"), *steps])


def test_chats_that_are_too_long_can_only_be_dropped(mill, chats, tokenizer):
    with pytest.raises(UsageError, match="too_long"):
        Render(template="chatml", keep="messages", max_tokens=10)
    with pytest.raises(UsageError, match="messages"):
        Render(template="chatml", keep="message")
    lines = [*LINES[:2], LINES[2].replace(b"tell me", b"tell me " * 200)]
    (mill.output.parent / "long.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    render = Render(template="chatml", tokenizer=tokenizer, keep="messages", max_tokens=500, too_long="drop")
    run(mill, Read(read=str(mill.output.parent / "long.jsonl")), [render, Write(format="jsonl")])
    assert written_lines(mill) == LINES[:2]
