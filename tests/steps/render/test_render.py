"""`render` as a step: what it refuses, what it gives, its books; and the chat form of `tokenize`."""

import json

import pyarrow as pa
import pytest
from gristmill_testing.chat_templates import CHATML
from gristmill_testing.rendering import SPECIALS, batch, rendered, tokens, words
from gristmill_testing.small_tokenizers import trained

import gristmill as gm
from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN, make_origins
from gristmill.steps import Read, Render, Write
from gristmill.text.tokenizers.engine import load_engine
from gristmill.text.tokenizers.files import find_tokenizer, read_facts

CHAT = {"messages": [{"role": "user", "content": "Grüße?"}, {"role": "assistant", "content": "Größe 粉 👩🏽"}]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    trained(folder, specials=SPECIALS, chat_template=CHATML)
    return str(folder)


def test_without_tokenize_there_are_prompts_and_completions():
    [row] = rendered(batch(CHAT), template="chatml").batch.drop_columns([ORIGIN]).to_pylist()
    assert row["completion"] == "Größe 粉 👩🏽<|im_end|>\n"
    assert row["prompt"].endswith("<|im_start|>assistant\n")
    assert row["prompt"] + row["completion"] == row["text"]


def test_every_record_is_somewhere_in_the_books():
    call = {"function": {"name": "f", "arguments": {}}}
    records = [
        CHAT,
        {"messages": []},
        {"text": "no chat"},
        {"messages": [{"role": "user", "content": "Hi"}]},
        {"messages": [*CHAT["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}]},
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": ',
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
    ]
    applied = rendered(batch(*records), template="chatml")
    assert applied.batch.column(ORIGIN).field("position").to_pylist() == [0, 7]
    assert applied.dropped == {"no_assistant": 1}
    reasons = {bad.position: bad.reason for bad in applied.quarantined}
    assert reasons == {
        1: "no_messages",
        2: "not_a_chat",
        4: "calls_left_out",
        5: "invalid_json",
        6: "invalid_json",
    }
    assert len(records) + applied.created == applied.batch.num_rows + 1 + len(applied.quarantined)


def test_split_turns_are_parts_of_their_record():
    messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"m{n}"} for n in range(6)]
    applied = rendered(batch(CHAT, {"messages": messages}), template="chatml", split_turns="always")
    origin = applied.batch.column(ORIGIN)
    assert origin.field("position").to_pylist() == [0, 1, 1, 1]
    assert origin.field("part").to_pylist() == [0, 0, 1, 2]
    assert applied.created == 2


def test_masks_are_the_answers_in_any_script(tokenizer):
    more = {
        "messages": [*CHAT["messages"], {"role": "user", "content": "🌾"}, {"role": "assistant", "content": "水车\n"}]
    }
    text, encoded = tokens(batch(CHAT, more), tokenizer)
    assert words(tokenizer, encoded, 0) == "Größe 粉 👩🏽<|im_end|>"
    assert words(tokenizer, encoded, 1) == "Größe 粉 👩🏽<|im_end|>水车\n<|im_end|>"
    assert encoded.counters["tokens"] == sum(len(ids) for ids in encoded.batch.column("input_ids").to_pylist())
    assert encoded.counters["placed_by_reference"] == 0
    assert text.batch.num_rows == encoded.batch.num_rows == 2


def test_a_token_that_begins_in_the_prompt_is_not_trained(tokenizer):
    """The line's end of the prompt and those of the answer are one token: nobody will ask a model to write it."""
    record = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "\n水车"}]}
    _, encoded = tokens(batch(record), tokenizer)
    assert words(tokenizer, encoded) == "水车<|im_end|>"


@pytest.mark.parametrize("policy", ["text", "token", "reject"])
def test_special_tokens_in_contents_follow_the_policy(tokenizer, policy):
    sly = {"messages": [{"role": "user", "content": "end it: <|im_end|>"}, {"role": "assistant", "content": "no"}]}
    hidden = json.dumps(sly).replace("<", "\\u003c").encode()
    # The first records are searched one by one, the others together.
    _, encoded = tokens(batch(*[CHAT, sly, hidden] * 6), tokenizer, tokenize={"special_tokens_in_text": policy})
    end = load_engine(find_tokenizer(tokenizer), "tokenizers").special_tokens["<|im_end|>"]
    ends = [ids.count(end) for ids in encoded.batch.column("input_ids").to_pylist()]
    assert ends == {"text": [2, 2, 2], "token": [2, 3, 3], "reject": [2]}[policy] * 6
    assert encoded.dropped == ({"special_token": 12} if policy == "reject" else {})


@pytest.mark.parametrize("policy", ["text", "reject"])
def test_a_special_token_that_is_a_word_is_not_found_inside_words(tmp_path, policy):
    trained(tmp_path, specials=(*SPECIALS, "sop", "eop"), chat_template="sop" + CHATML)
    wise = {
        "messages": [{"role": "user", "content": "people?"}, {"role": "assistant", "content": "They love philosophy."}]
    }
    sly = {"messages": [{"role": "user", "content": "sop people"}, {"role": "assistant", "content": "no"}]}
    text, encoded = tokens(batch(wise, sly), str(tmp_path), tokenize={"special_tokens_in_text": policy})
    engine = load_engine(find_tokenizer(str(tmp_path)), "tokenizers")
    specials = [
        [ids.count(engine.special_tokens[token]) for token in ("sop", "eop")]
        for ids in encoded.batch.column("input_ids").to_pylist()
    ]
    assert specials == [[1, 0]] * (2 if policy == "text" else 1)
    assert text.counters["special_literals"] == 1
    assert encoded.dropped == ({"special_token": 1} if policy == "reject" else {})
    assert words(str(tmp_path), encoded) == "They love philosophy.<|im_end|>"


def test_what_is_too_long_is_shortened_dropped_or_cut(tokenizer):
    messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"number {n} " * 10} for n in range(8)]
    long = {"messages": messages}
    _, whole = tokens(batch(long), tokenizer)
    [length] = [len(ids) for ids in whole.batch.column("input_ids").to_pylist()]
    text, shorter = tokens(batch(long), tokenizer, max_tokens=length - 1)
    assert words(tokenizer, shorter) == words(tokenizer, whole).split("<|im_end|>", 1)[1]
    assert (text.counters["shortened_chats"], text.counters["dropped_messages"]) == (1, 2)
    assert text.counters["shortened_tokens"] == length - len(shorter.batch.column("input_ids").to_pylist()[0])
    text, _ = tokens(batch(long), tokenizer, max_tokens=10)
    assert text.dropped == {"too_long": 1}
    _, cut = tokens(batch(long), tokenizer, max_tokens=length - 5, cuts=True)
    assert [len(ids) for ids in cut.batch.column("input_ids").to_pylist()] == [length - 5]
    assert (cut.counters["cut_chats"], cut.counters["cut_tokens"]) == (1, 5)
    _, nothing = tokens(batch(long, CHAT), tokenizer, max_tokens=5, cuts=True)
    assert nothing.dropped == {"no_trained_tokens": 2}
    assert "cut_chats" not in nothing.counters


def test_columns_of_tables_are_chats_too(tokenizer):
    calls = [{"function": {"name": "grind", "arguments": "{}"}}]
    table = pa.RecordBatch.from_pylist(
        [
            {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
            {"messages": [{"role": "user", "content": "?", "tool_calls": None}, {"role": "assistant", "content": "!"}]},
            {
                "messages": [
                    {"role": "user", "content": "?"},
                    {"role": "assistant", "content": "!", "tool_calls": calls},
                ]
            },
        ]
    )
    given = table.add_column(0, ORIGIN, make_origins(7, pa.array([0, 1, 2], pa.uint64())))
    applied = rendered(given, template="chatml")
    assert applied.batch.column("completion").to_pylist() == ["Hello<|im_end|>\n", "!<|im_end|>\n"]
    assert [bad.reason for bad in applied.quarantined] == ["calls_left_out"]


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({}, "no template is named"),
        ({"template": "chatm"}, 'did you mean "chatml"'),
        ({"template": "chatml", "train_on": "asistant"}, 'did you mean "assistant"'),
        ({"template": "chatml", "date": "yesterday"}, "2026-01-31"),
        ({"template": "chatml", "max_tokens": 0}, "at least 1"),
        ({"template": "chatml", "max_tokens": 10}, "tokenizer"),
        ({"template": "chatml", "shape": "alpacca"}, 'did you mean "alpaca"'),
    ],
)
def test_mistakes_are_told(parameters, told):
    with pytest.raises(UsageError) as caught:
        Render(**parameters).resolve(".")
    assert told in str(caught.value)


def test_a_tokenizer_without_a_template_is_told(tmp_path):
    trained(tmp_path)
    with pytest.raises(UsageError, match="no chat template"):
        Render(tokenizer=str(tmp_path)).resolve(".")


def test_a_template_that_asks_for_the_date_needs_one(tmp_path):
    (tmp_path / "dated.jinja").write_text("{{ strftime_now('%Y') }}" + CHATML)
    with pytest.raises(UsageError, match="today"):
        Render(template=str(tmp_path / "dated.jinja")).resolve(".")
    applied = rendered(batch(CHAT), template=str(tmp_path / "dated.jinja"), date="2026-01-31")
    assert applied.batch.column("text")[0].as_py().startswith("2026")


@pytest.mark.parametrize(
    ("source", "record", "told"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}", CHAT, "learn to stop"),
        (CHATML, {"messages": [{"role": "user", "content": "Hi"}]}, "anything to train on"),
        ("{{ raise_exception('no!') }}", CHAT, "no!"),
        (
            CHATML.replace("{{ m.content", "{{ (m.tool_calls or '') | tojson + m.content"),
            {
                "messages": [
                    {"role": "user", "content": "?"},
                    {
                        "role": "assistant",
                        "content": "x",
                        "tool_calls": [{"function": {"name": "f", "arguments": '{"a": "b"}'}}],
                    },
                ]
            },
            "quoted",
        ),
    ],
)
def test_templates_that_would_train_wrongly_stop_the_plan(tmp_path, source, record, told):
    (tmp_path / "chat.jinja").write_text(source)
    step = Render(template=str(tmp_path / "chat.jinja")).resolve(".")
    with pytest.raises(UsageError, match=told):
        step.adapt_to_sample(batch(record))


@pytest.mark.parametrize(("arguments", "reasons"), [(None, ["quoted_arguments"]), ("object", []), ("as_given", [])])
def test_calls_behind_the_sample_that_would_be_quoted_twice_are_quarantined(tmp_path, arguments, reasons):
    (tmp_path / "chat.jinja").write_text(CHATML.replace("{{ m.content", "{{ (m.tool_calls or '') | tojson + m.content"))
    step = Render(template=str(tmp_path / "chat.jinja"), tool_arguments=arguments).resolve(".")
    step = step.adapt_to_sample(batch(CHAT))
    call = {"function": {"name": "f", "arguments": '{"a": "b"}'}}
    calling = {
        "messages": [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "x", "tool_calls": [call]},
        ]
    }
    result = step.load().apply(batch(CHAT, calling), 0)
    assert [record.reason for record in result.quarantined] == reasons
    assert result.batch.num_rows == 2 - len(reasons)


def test_what_is_ignored_is_in_the_warnings_of_the_result(tmp_path):
    question, answer = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
    chats = [{"messages": [question, answer]}] * 200
    chats[10] = {"messages": [question, answer | {"mask": 1}]}
    chats[20] = {"messages": [question, answer], "prompt": "2 + 2?", "completion": "5"}
    chats[150:] = [{"messages": [question, answer | {"train": False}]}] * 50
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    recipe = gm.Recipe(
        sources={"chats": Read(read=str(tmp_path / "chats.jsonl"))},
        steps=[Render(template="chatml"), Write(format="jsonl")],
        output=str(tmp_path / "out"),
    )
    for _ in range(2):  # the second one finds the first one's dataset
        marks, unread, shapes = gm.run(recipe, backend="serial").warnings
        assert marks.startswith("source chats: 50 answers with `train: false`")
        assert unread.startswith("source chats: 1 field")
        assert shapes.startswith("source chats: 1 record")


def test_two_begin_tokens_stop_the_plan(tmp_path):
    trained(tmp_path, specials=SPECIALS, bos_token="<|endoftext|>", chat_template="{{ bos_token * 2 }}" + CHATML)
    step = Render(tokenizer=str(tmp_path)).resolve(".")
    with pytest.raises(UsageError, match="more than once"):
        step.adapt_to_sample(batch(CHAT))


def test_a_record_of_10_megabytes_and_one_of_10_000_turns(tokenizer):
    large = {
        "messages": [{"role": "user", "content": "corn " * 2**20}, {"role": "assistant", "content": "flour " * 2**20}]
    }
    many = {
        "messages": [{"role": "user" if n % 2 == 0 else "assistant", "content": f"turn {n}"} for n in range(20_000)]
    }
    text, encoded = tokens(batch(large, many), tokenizer, tokenize={"engine": "fastokens"})
    assert text.counters["found_by_sentinels"] == 2
    assert words(tokenizer, encoded, 0) == "flour " * 2**20 + "<|im_end|>"
    assert words(tokenizer, encoded, 1) == "".join(f"turn {n}<|im_end|>" for n in range(1, 20_000, 2))


@pytest.fixture(scope="module")
def with_unmarked(tmp_path_factory):
    """A tokenizer in which two control tokens are not marked as special, and two added tokens are no control tokens."""
    folder = tmp_path_factory.mktemp("unmarked")
    template = "{% set reasoning = ['<think>', '</think>'] %}" + CHATML
    trained(folder, specials=(*SPECIALS, "<think>", "</think>", "mill", "<td>"), chat_template=template)
    data = json.loads((folder / "tokenizer.json").read_text())
    for token in data["added_tokens"]:
        token["special"] = token["content"] in SPECIALS
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return str(folder)


@pytest.mark.parametrize("engine", ["tokenizers", "auto"])
def test_control_tokens_that_are_not_marked_stay_text_where_a_user_writes_them(with_unmarked, engine):
    question = "What does </think> mean in <think>, asks the mill <td> <|im_end|>?"
    record = {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "<think>\nEasy.\n</think>\nIt ends a thought."},
        ]
    }
    text, encoded = tokens(batch(record), with_unmarked, tokenize={"engine": engine})
    assert text.counters["special_literals"] == 3
    [ids] = encoded.batch.column("input_ids").to_pylist()
    files = find_tokenizer(with_unmarked)
    known = read_facts(files).added_tokens
    assert [ids.count(known[token]) for token in ("<think>", "</think>", "<|im_end|>")] == [1, 1, 2]
    assert ids.count(known["mill"]) == ids.count(known["<td>"]) == 1
    decoder = load_engine(files, "tokenizers", specials_as_text=False)
    assert decoder.decode(ids) == text.batch.column("text")[0].as_py()
    assert words(with_unmarked, encoded) == "<think>\nEasy.\n</think>\nIt ends a thought.<|im_end|>"


def test_rows_without_such_literals_are_encoded_as_before(with_unmarked):
    record = {"messages": [CHAT["messages"][0], {"role": "assistant", "content": "<think>a</think>b"}]}
    text, encoded = tokens(batch(record), with_unmarked)
    assert "special_literals" not in text.counters
    expected = load_engine(find_tokenizer(with_unmarked), "tokenizers", specials_as_text=False)
    assert encoded.batch.column("input_ids")[0].as_py() == expected.encode(text.batch.column("text"))[0].tolist()
