"""Chats from files to rows by recipe: the same bytes however it runs, books that close, mistakes told by the plan."""

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gristmill_testing.chat_templates import CHATML, FORGETFUL
from gristmill_testing.small_tokenizers import trained
from tokenizers import Tokenizer

import gristmill as gm
from gristmill.core.errors import UsageError
from gristmill.core.recipe import Source
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Length, Map, Pack, Read, Render, Shuffle, Split, Tokenize, Write

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = ["mill", "grist", "flour", "stone", "wheat", "größe", "粉", "<|im_end|>"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    trained(folder, specials=SPECIALS, chat_template=CHATML)
    return str(folder)


def record(rng, number):
    said = [" ".join(rng.choices(WORDS, k=rng.randrange(1, 60))) for _ in range(2 * rng.randrange(1, 4))]
    if number % 17 == 3:
        said.pop()  # ends with a question
    if number % 3 == 0:
        turns = [{"from": "gpt" if n % 2 else "human", "value": words} for n, words in enumerate(said)]
        return {"id": number, "conversations": turns}
    if number % 50 == 7:
        return {"id": number, "messages": "nothing"}
    return {
        "id": number,
        "messages": [{"role": "assistant" if n % 2 else "user", "content": words} for n, words in enumerate(said)],
    }


@pytest.fixture
def data(tmp_path):
    rng = random.Random(1)
    for part in range(4):
        lines = [json.dumps(record(rng, number), ensure_ascii=False) for number in range(100)]
        (tmp_path / f"part-{part}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def said_by_assistants(folder):
    """What must be trained on: of every chat that ends with an answer, all answers."""
    said = []
    for path in sorted(folder.glob("part-*.jsonl")):
        for line in path.read_text().splitlines():
            given = json.loads(line)
            turns = given.get("messages") or given.get("conversations")
            if isinstance(turns, list) and len(turns) % 2 == 0:
                said.append([turn.get("content", turn.get("value")) for turn in turns[1::2]])
    return said


def trained_ids(dataset):
    """The trained ids of each conversation in the rows."""
    texts = []
    for number in range(len(dataset)):
        row = dataset[number]
        start = 0
        for length in row["lengths"]:
            ids, mask = (row[name][start : start + length] for name in ("input_ids", "loss_mask"))
            texts.append(ids[mask].tolist())
            start += length
    return texts


def test_the_same_bytes_and_exactly_the_answers_are_trained(mill, data, tokenizer):
    mill.layout = UnitLayout(unit_bytes=20_000, min_group_bytes=10_000)
    encode = Tokenize(tokenizer=tokenizer, engine="tokenizers")
    steps = [Render(), Length(max_chars=10_000), Split(validation=0.1), Shuffle(), encode, Pack(row_length=2048)]

    def recipe(slice_bytes):
        return mill.recipe(
            {"chats": Read(read=f"{data}/part-*.jsonl")}, steps, slice_bytes=slice_bytes, max_quarantine=0.1
        )

    expected = mill.fresh_files(recipe(1 << 20))
    for slice_bytes, options in ((1 << 12, {"backend": "threads", "workers": 3}), (1, {})):
        assert mill.fresh_files(recipe(slice_bytes), **options) == expected
    dataset = open_dataset(mill.output)
    assert dataset.manifest.kind == "chats"
    decoder = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
    found = sorted(decoder.decode(ids, skip_special_tokens=False) for ids in trained_ids(dataset))
    wanted = ["".join(words + "<|im_end|>" for words in answers) for answers in said_by_assistants(data)]
    assert found == sorted(wanted)
    books = {account.step: account for account in dataset.manifest.books["chats"]}
    assert books["render"].dropped["last_not_assistant"] > 0
    assert books["render"].quarantined == {"invalid_messages": 8 - sum(n % 3 == 0 for n in (7, 57)) * 4}
    assert books["render"].counters["special_literals"] > 0


def test_text_prompt_and_completion_can_be_written(mill, data):
    render = Render(template="chatml", last_not_assistant="trim")
    source = Read(read=f"{data}/part-0.jsonl", columns=["id"])
    mill.run(mill.recipe({"chats": source}, [render, Write(format="jsonl")], max_quarantine=0.1))
    [shard] = (mill.output / "train").rglob("*.jsonl")
    rows = [json.loads(line) for line in shard.read_text().splitlines()]
    assert list(rows[0]) == ["id", "text", "prompt", "completion"]
    assert all(row["prompt"] + row["completion"] == row["text"] for row in rows)
    assert all(row["completion"].endswith("<|im_end|>\n") for row in rows)


def test_parquet_and_python_records_are_chats_as_well(mill, data, tokenizer):
    records = [json.loads(line) for line in (data / "part-1.jsonl").read_text().splitlines()]
    chats = [{"messages": given["messages"]} for given in records if isinstance(given.get("messages"), list)]
    pq.write_table(pa.Table.from_pylist(chats), data / "chats.parquet")
    steps = [Render(), Tokenize(tokenizer=tokenizer, engine="tokenizers")]
    counts = []
    for read in (f"{data}/chats.parquet", chats):
        result = gm.run(
            mill.recipe({"chats": Read(read=read)}, steps), backend="serial", progress=False, overwrite=True
        )
        counts.append((result.tokens, len(result.dataset())))
    assert counts[0] == counts[1]
    assert counts[0][1] > 40


def test_history_that_is_rewritten_becomes_one_row_a_turn(mill, data, tokenizer):
    (data / "forgetful.jinja").write_text(FORGETFUL)
    render = Render(template=f"{data}/forgetful.jinja", train_end_of_turn=False)
    steps = [render, Tokenize(tokenizer=tokenizer, engine="tokenizers")]
    mill.run(mill.recipe({"chats": Read(read=f"{data}/part-*.jsonl")}, steps, max_quarantine=0.1))
    wanted = said_by_assistants(data)
    assert len(open_dataset(mill.output)) == sum(map(len, wanted))
    account = open_dataset(mill.output).manifest.books["chats"][1]
    assert account.created == sum(map(len, wanted)) - len(wanted)


@pytest.mark.timeout(300)
def test_a_template_without_an_end_costs_one_record(mill, tmp_path):
    """Not the plan, whose sample it is not in, nor the run."""
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    (tmp_path / "endless.jinja").write_text(
        "{% for m in messages %}{% if m.content == 'loop' %}" + endless + "{% endif %}{% endfor %}" + CHATML
    )
    chats = [
        {
            "messages": [
                {"role": "user", "content": "loop" if n == 110 else f"n{n}"},
                {"role": "assistant", "content": "a"},
            ]
        }
        for n in range(120)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    steps = [Render(template=f"{tmp_path}/endless.jinja"), Write(format="jsonl")]
    recipe = mill.recipe({"chats": Read(read=f"{tmp_path}/chats.jsonl")}, steps)
    mill.run(recipe, backend="processes", workers=1, timeout=3)
    dataset = open_dataset(mill.output)
    assert len(dataset) == 119
    [bad] = dataset.quarantine()
    assert bad["reason"] == "timeout"


def refused(mill, sources, steps, told, **settings):
    with pytest.raises(UsageError) as caught:
        gm.plan(mill.recipe(sources, steps, **settings))
    assert told in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))


def test_mistakes_are_told_by_the_plan(mill, data, tokenizer):
    chats = {"chats": Read(read=f"{data}/part-*.jsonl")}
    tokenize = Tokenize(tokenizer=tokenizer)
    changes = Map(call=lambda record: record)
    refused(mill, chats, [Render(template="chatml"), changes, tokenize], "map cannot be between them")
    refused(mill, chats, [tokenize, Render(template="chatml")], "put tokenize after render")
    refused(mill, chats, [Render(template="chatml"), Render(template="chatml")], "only once")
    refused(mill, chats, [Length(), Render(), tokenize], 'no column "text"')
    refused(mill, chats, [Render(), Tokenize(tokenizer=tokenizer, add_bos=True)], "add_bos")
    refused(mill, chats, [Render()], "no template is named")
    (data / "wrong.jinja").write_text("{% for m in messages %}\n{{ m.content }\n{% endfor %}")
    refused(mill, chats, [Render(template=f"{data}/wrong.jinja")], "line 2")
    (data / "documents.txt").write_text("hello")
    refused(
        mill, {"d": Read(read=f"{data}/documents.txt")}, [Render(template="chatml")], "JSON lines, Parquet or Arrow"
    )
    documents = {"d": Source(Read(read=f"{data}/part-0.jsonl"), [Render(template="chatml")])}
    refused(mill, documents | {"e": Read(read=f"{data}/part-1.jsonl")}, [tokenize], "text")
