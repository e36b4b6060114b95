"""`render` with and without tracing: the same examples, places, counts, reasons and quarantined records."""

import json
import random
from itertools import product

import msgspec
import pyarrow as pa
import pytest
from gristmill_testing import chat_templates
from gristmill_testing.open_chats import OPEN_CHATS, made_chats, published_templates
from gristmill_testing.rendering import SPECIALS, batch, rendered
from gristmill_testing.shared_data import LARGE_CHATS, LARGE_TEMPLATES, chat_records, template_source
from gristmill_testing.small_tokenizers import trained
from hypothesis import given, settings
from hypothesis import strategies as st

import gristmill as gm
from gristmill.core.errors import ParityError
from gristmill.core.records import ORIGIN, make_origins
from gristmill.pipeline.planning.fingerprint import describe_steps
from gristmill.steps import Read, Render, Write
from gristmill.steps.render import render_kernel
from gristmill.text.chats import record_plan

MADE = (
    *("CHATML", "TAGGED", "FORGETFUL", "THINKING_PROMPT", "EMPTY_THOUGHT", "CLOSED_THOUGHT", "TAGGED_HEADER"),
    *("NESTED_ENDS", "LAST_END", "NEXT_HEADER", "LINE_BEFORE_HEADER", "ONE_CALL", "NO_END"),
)
PUBLISHED = ("qwen3", "qwen2_5_training", "llama3_1", "gemma", "gptoss")
OPTIONS = {
    "default": {},
    "last": {"train_on": "last_assistant", "train_end_of_turn": False},
    "all": {"train_on": "all", "last_not_assistant": "trim"},
    "prompted": {"prompt": "as_prompted"},
    "whole": {"split_turns": "never", "prompt": "refuse"},
    "short": {"max_tokens": 90, "too_long": "windows"},
    "appended": {"append_eos": True},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    trained(folder, specials=SPECIALS, chat_template=chat_templates.CHATML)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "<|endoftext|>"}))
    return str(folder)


def odd_chats(count):
    """Plain chats with what makes records special: space, tags, tokens, surrogates, other roles and keys."""
    rng = random.Random(count)
    for record in [*made_chats("made_questions", count), *made_chats("made_dialogues", count)]:
        message = rng.choice(record["messages"])
        content = message["content"]
        odd = ["\n" + content + " ", "<think>\nhm\n</think>\n\n" + content, content + "<|im_end|>", " ", "", "\ud800"]
        odd += ["[a] " + content, "</think>" + content, "\u3000" + content, "<think>\n" + content, content, content]
        message["content"] = rng.choice(odd)
        record.update(rng.choice([{}, {}, {"id": 7}, {"tools": []}, {"chat_template_kwargs": {}}, {"n": 1e300}]))
        if rng.random() < 0.1:
            message["role"] = rng.choice(["user", "assistant", "system", "tool", "critic", "function"])
        if rng.random() < 0.1:
            record["messages"] = [dict(reversed(message.items())) for message in record["messages"]]
        if rng.random() < 0.1:
            message["weight"] = 0
        if rng.random() < 0.1:
            turns = [{"from": m["role"], "value": m["content"]} for m in record.pop("messages")]
            record["conversations"] = turns
        is_ascii = rng.random() < 0.4 or "\ud800" in json.dumps(record, ensure_ascii=False)
        yield json.dumps(record, ensure_ascii=is_ascii).encode()


def describe(results):
    """Everything that a run keeps of a step's results, whatever the size of batches."""
    rows = [row for result in results for row in result.batch.to_pylist()]
    counts = {}
    for result in results:
        for name, count in (*result.counters.items(), *result.dropped.items(), ("created", result.created)):
            counts[name] = counts.get(name, 0) + count
    bad = [(bad.position, bad.reason, bad.message) for result in results for bad in result.quarantined]
    return rows, counts, bad


def render_in_batches(lines, size, **parameters):
    kernel_ = msgspec.structs.replace(Render(date="2026-01-31", **parameters).resolve("."), is_tokenized=True).load()
    given = batch(*lines)
    return describe([kernel_.apply(given.slice(start, size), seed=0) for start in range(0, len(lines), size)])


def write_template(folder, source):
    path = folder / "template.jinja"
    path.write_text(source, encoding="utf-8")
    return str(path)


def all_lines(count):
    chats = [json.dumps(record).encode() for name in OPEN_CHATS for record in made_chats(name, count)]
    lines = [*chats, *odd_chats(count)]
    random.Random(0).shuffle(lines)
    return lines


@pytest.mark.parametrize("name", ["CHATML", "TAGGED", "NESTED_ENDS", "gemma"])
def test_short_chats_of_all_roles_and_none_become_the_same(tmp_path, tokenizer, name):
    source = getattr(chat_templates, name, None) or published_templates()[name]
    template = write_template(tmp_path, source)
    sequences = [roles for size in range(4) for roles in product(["system", "user", "assistant", "tool"], repeat=size)]
    chats = [{"messages": [{"role": role, "content": "words"} for role in roles]} for roles in sequences]
    lines = [json.dumps(chat).encode() for chat in chats for _ in range(record_plan.MIN_OCCURRENCES + 1)]
    without = render_in_batches(lines, 1000, template=template, tokenizer=tokenizer, trace="off")
    assert render_in_batches(lines, 1000, template=template, tokenizer=tokenizer) == without


@pytest.mark.parametrize("name", [*MADE, *PUBLISHED])
def test_records_become_the_same_examples(tmp_path, tokenizer, monkeypatch, name):
    monkeypatch.setattr(render_kernel, "COMPARED_SHARE", 0.05)
    source = getattr(chat_templates, name) if name in MADE else published_templates()[name]
    template = write_template(tmp_path, source)
    lines = all_lines(24)
    without = render_in_batches(lines, 1000, template=template, tokenizer=tokenizer, trace="off")
    assert render_in_batches(lines, 1000, template=template, tokenizer=tokenizer) == without
    # Neither the cut of the work nor what the worker did before shapes anything.
    backwards = render_in_batches(lines[::-1], 7, template=template, tokenizer=tokenizer)
    assert sorted(map(len, backwards[0])) == sorted(map(len, without[0]))
    assert backwards[1] == without[1]
    assert sorted(row["text"] for row in backwards[0]) == sorted(row["text"] for row in without[0])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["TAGGED", "THINKING_PROMPT"])
def test_options_give_the_same_examples(tmp_path, tokenizer, name, options):
    template = write_template(tmp_path, getattr(chat_templates, name))
    parameters = {"template": template, "tokenizer": tokenizer, **OPTIONS[options]}
    lines = all_lines(16)
    assert render_in_batches(lines, 50, **parameters) == render_in_batches(lines, 50, trace="off", **parameters)


SAYINGS = ("2 + 2?", "4", "", " ", "<image>", "<|im_end|>", "<think>\nhm\n</think>\n\n4")
ROLE_NAMES = ("user", "assistant", "assistant", "system", "tool", "function", "developer", "critic")
VALUES = (None, None, True, False, False, 0, 1, 0.5, "", "no", [], {}, [{"text": "x"}], {"name": "f"})
MESSAGE_KEYS = (
    *("train", "weight", "loss", "loss_weight", "train_on_turn", "train_detail", "training", "mask", "refusal"),
    *("name", "id", "tool_calls", "tool_call_id", "function_call", "reasoning_content", "reasoning_details"),
)
RECORD_KEYS = (
    *("label", "kto_tag", "system", "system_prompt", "functions", "tools", "enable_thinking", "images", "image"),
    *("chat_template_kwargs", "messages", "conversations", "prompt", "completion", "instruction", "output"),
    *("id", "weight", "history", "input", "extra"),
)


def chat_of_any_shape(rng, shapes):
    """A chat, mostly plain, with any keys in it and beside it, in any order."""
    shape = rng.choice(shapes)
    turns = [("user", "2 + 2?"), ("assistant", "4")] * rng.choice((1, 1, 2))
    if rng.random() < 0.2:
        turns[rng.randrange(len(turns))] = rng.choice(ROLE_NAMES), rng.choice(SAYINGS)
    names = ("from", "value") if shape == "sharegpt" else ("role", "content")
    messages = [dict(zip(names, turn, strict=True)) for turn in turns]
    if rng.random() < 0.4:
        rng.choice(messages)[rng.choice(MESSAGE_KEYS)] = rng.choice(VALUES)
    record = {
        "messages": {"messages": messages},
        "sharegpt": {"conversations": messages},
        "roles": {"conversations": messages},
        "pair": {"prompt": turns[0][1], "completion": turns[-1][1]},
        "lists": {"prompt": messages[:-1], "completion": messages[-1:]},
        "alpaca": {"instruction": turns[0][1], "output": turns[-1][1]},
    }[shape]
    for _ in range(rng.choice((0, 0, 1, 2))):
        record.setdefault(rng.choice(RECORD_KEYS), rng.choice(VALUES))
    items = list(record.items())
    rng.shuffle(items)
    return dict(items)


@pytest.mark.parametrize("train_on", ["auto", "assistant", "marked", "last_assistant"])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_a_record_says_beside_its_texts_has_the_same_effect(train_on, seed):
    """Each record may be the one that shows how the others are read, so they come in any order."""
    rng = random.Random(seed)
    shapes = ["messages", "sharegpt", "roles", "pair", "lists", "alpaca"]
    shapes = rng.choice([shapes, *([shape] for shape in shapes)])
    lines = [json.dumps(chat_of_any_shape(rng, shapes)).encode() for _ in range(80)]
    without = render_in_batches(lines, 1000, template="chatml", train_on=train_on, trace="off")
    assert render_in_batches(lines, 1000, template="chatml", train_on=train_on) == without
    assert render_in_batches(lines, 7, template="chatml", train_on=train_on) == without


@pytest.mark.parametrize("mark", [{"train": False}, {"weight": 0}])
@pytest.mark.parametrize("shape", ["messages", "sharegpt", "conversations", "lists"])
def test_marks_of_every_record_are_used(shape, mark):
    question, answer = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
    unmarked, marked = [question, answer], [question, answer | mark]
    if shape == "sharegpt":
        names = {"role": "from", "content": "value"}
        unmarked, marked = (
            [{names.get(key, key): value for key, value in turn.items()} for turn in turns]
            for turns in (unmarked, marked)
        )
    key = "messages" if shape == "messages" else "conversations"
    chats = [
        {"prompt": turns[:1], "completion": turns[1:]} if shape == "lists" else {key: turns}
        for turns in [unmarked] * 10 + [marked] * 50
    ]
    result = rendered(batch(*chats), template="chatml", train_on="marked")
    assert result.batch.num_rows == 10
    assert result.dropped == {"nothing_to_train_on": 50}
    ignored = rendered(batch(*chats), template="chatml")
    assert ignored.batch.num_rows == 60
    assert ignored.counters["ignored_train_marks"] == 50


@pytest.mark.parametrize("chats", LARGE_CHATS)
def test_real_chats_become_the_same_examples(tmp_path, tokenizer, chats):
    lines = [json.dumps(record, ensure_ascii=False).encode() for record in chat_records(chats, 40)]
    for name in ("qwen3", "llama3_1", "qwen2_5_training"):
        parameters = {"template": write_template(tmp_path, published_templates()[name]), "tokenizer": tokenizer}
        assert render_in_batches(lines, 1000, **parameters) == render_in_batches(lines, 7, trace="off", **parameters)


@pytest.mark.parametrize("name", LARGE_TEMPLATES)
def test_real_templates_make_the_same_of_real_chats(tmp_path, tokenizer, monkeypatch, name):
    monkeypatch.setattr(render_kernel, "COMPARED_SHARE", 0.02)
    parameters = {"template": write_template(tmp_path, template_source(name)), "tokenizer": tokenizer}
    lines = [
        json.dumps(record, ensure_ascii=False).encode() for chats in LARGE_CHATS for record in chat_records(chats, 12)
    ]
    random.Random(0).shuffle(lines)
    traced = render_in_batches(lines, 60, **parameters)
    assert traced == render_in_batches(lines, 60, trace="off", **parameters)
    assert traced[0] or traced[2]


def test_most_plain_chats_are_filled_in(monkeypatch):
    calls = []
    make = record_plan.RecordPlan.fill
    monkeypatch.setattr(record_plan.RecordPlan, "fill", lambda *args: calls.append(1) or make(*args))
    lines = [json.dumps(record).encode() for record in made_chats("made_dialogues", 200)]
    assert rendered(batch(*lines), template="chatml").batch.num_rows == 200
    assert len(calls) > 150


def chats_of_many_lengths(head=()):
    rng = random.Random(7)
    for number in range(60):
        roles = [*head, *("user", "assistant") * rng.randint(1, 16)]
        messages = [{"role": role, "content": f" {number} ü {rng.random()}"} for role in roles]
        yield json.dumps({"messages": messages}, ensure_ascii=False).encode()


COUNTING = "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}<{{ m.role }} {{ ns.n }}>"
COUNTING += "{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<assistant {{ ns.n + 1 }}>{% endif %}"


@pytest.mark.parametrize("options", ["default", "last"])
@pytest.mark.parametrize(
    ("name", "num_traces"),
    [("TAGGED", 5), ("LINE_BEFORE_HEADER", 5), (COUNTING, 16)],
    ids=["tags", "guards", "counting"],
)
def test_chats_of_all_lengths_become_the_same_examples(tmp_path, tokenizer, monkeypatch, name, num_traces, options):
    traced = []
    trace = record_plan.RecordPlans._trace
    monkeypatch.setattr(record_plan.RecordPlans, "_trace", lambda *args: traced.append(args[1]) or trace(*args))
    source = COUNTING if name == COUNTING else getattr(chat_templates, name)
    parameters = {"template": write_template(tmp_path, source), "tokenizer": tokenizer, **OPTIONS[options]}
    for head in ((), ("system",)):
        lines = list(chats_of_many_lengths(head))
        assert render_in_batches(lines, 50, **parameters) == render_in_batches(lines, 50, trace="off", **parameters)
        assert len(set(traced)) <= num_traces
        if name == COUNTING:
            assert len(set(traced)) > 10, "each length is traced"
        traced.clear()


def test_a_wrongly_stretched_plan_ends_the_run(monkeypatch):
    stretch = record_plan.stretch

    def stretch_wrongly(example, roles, new_roles):
        stretched = stretch(example, roles, new_roles)
        if stretched is None or roles == new_roles:
            return stretched
        return stretched._replace(texts=[*stretched.texts[:-1], b"!"])

    monkeypatch.setattr(record_plan, "stretch", stretch_wrongly)
    with pytest.raises(ParityError, match=r"the traced template writes .* where Jinja writes") as caught:
        rendered(batch(*chats_of_many_lengths()), template="chatml")
    assert caught.value.context.keys() == {"file", "position", "part"}


def test_wrong_places_of_a_stretched_plan_end_the_run(monkeypatch):
    stretch = record_plan.stretch

    def stretch_wrongly(example, roles, new_roles):
        stretched = stretch(example, roles, new_roles)
        if stretched is None or roles == new_roles:
            return stretched
        return stretched._replace(changes=[(piece, offset + 1, code) for piece, offset, code in stretched.changes])

    monkeypatch.setattr(record_plan, "stretch", stretch_wrongly)
    with pytest.raises(ParityError, match="where Jinja makes"):
        rendered(batch(*chats_of_many_lengths()), template="chatml")


def test_columns_become_the_same_examples():
    chats = [[{"role": "user", "content": "a"}, {"role": "assistant", "content": f"b{n}", "x": None}] for n in range(9)]
    messages = pa.array(
        chats, pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("x", pa.string())]))
    )
    places = make_origins(7, pa.array(range(9), pa.uint64()))
    given = pa.RecordBatch.from_arrays([places, messages], [ORIGIN, "messages"])
    first, second = (rendered(given, template="chatml", trace=trace) for trace in ("auto", "off"))
    assert first.batch.equals(second.batch)
    assert first.counters == second.counters


def fill_wrongly(monkeypatch, beginning=""):
    """Let plans write something else for chats that begin so."""
    fill = record_plan.RecordPlan.fill

    def fill_other(plan, contents):
        return fill(plan, [contents[0] + "!" * contents[0].startswith(beginning), *contents[1:]])

    monkeypatch.setattr(record_plan.RecordPlan, "fill", fill_other)


def test_a_difference_to_jinja_ends_the_run(monkeypatch):
    lines = [json.dumps(record).encode() for record in made_chats("made_questions", 20)]
    fill_wrongly(monkeypatch)
    with pytest.raises(ParityError, match="where Jinja makes") as caught:
        rendered(batch(*lines), template="chatml")
    assert "trace: off" in caught.value.help
    assert caught.value.context == {"file": 7, "position": 2, "part": 0}
    assert "position 2, part 0" in caught.value.message
    assert made_chats("made_questions", 20)[2]["messages"][0]["content"][:20] in caught.value.message
    assert rendered(batch(*lines), template="chatml", trace="off").batch.num_rows == 20


def test_a_run_that_ends_with_a_difference_names_the_file(tmp_path, monkeypatch):
    records = made_chats("made_questions", 120)
    records[110]["messages"][0]["content"] = "Behind the sample of the plan"
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, records)))
    fill_wrongly(monkeypatch, "Behind")
    monkeypatch.setattr(render_kernel, "COMPARED_SHARE", 0.999_999)
    recipe = gm.Recipe(
        sources={"chats": Read(read=str(tmp_path / "chats.jsonl"))},
        steps=[Render(template="chatml"), Write(format="jsonl")],
        output=str(tmp_path / "out"),
    )
    with pytest.raises(ParityError, match=r"^chats\.jsonl: .*where Jinja makes.* position \d+, part 0"):
        gm.run(recipe, backend="serial")


def test_tracing_is_in_no_fingerprint():
    steps = [Render(template="chatml", trace=trace).resolve(".") for trace in ("auto", "off")]
    assert steps[0].trace != steps[1].trace
    assert describe_steps(steps[:1]) == describe_steps(steps[1:])
