"""Kinds of tokens from chats to batches: as they are stored, and as masks and weights that are chosen in training."""

import json
import random
import shutil
from collections import Counter

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from gristmill_testing.small_tokenizers import trained
from gristmill_testing.token_datasets import write_tokens

from gristmill.core.errors import UsageError
from gristmill.core.token_kinds import ASSISTANT, CALL, CONTEXT, END, REASONING, RESULT, TOKEN_KINDS, USER, WRITTEN
from gristmill.pipeline.jobs.export import export
from gristmill.shards.dataset import open_dataset
from gristmill.shards.verify import verify
from gristmill.steps import Pack, Read, Render, Tokenize
from gristmill.stream import Collate, Stream

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<call>{{ call.function.name }}({{ call.function.arguments.place }})"
    "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>", "<think>", "</think>", "<call>")
LETTERS = {USER: "u", ASSISTANT: "a", REASONING: "r", CALL: "c", RESULT: "t"}
"""What each part is written in, so that the kind of a token can be read in its text."""
ROW = 96


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    trained(folder, specials=SPECIALS, chat_template=TEMPLATE)
    return str(folder)


def words(rng, kind, least=1):
    return " ".join(LETTERS[kind] * rng.randrange(1, 5) for _ in range(rng.randrange(least, 9)))


def conversation(rng, *, plain):
    messages = []
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": words(rng, USER)})
        answer = {"role": "assistant", "content": words(rng, ASSISTANT)}
        if not plain and rng.random() < 0.5:
            answer["reasoning_content"] = words(rng, REASONING)
        if not plain and rng.random() < 0.5:
            place = {"place": words(rng, CALL)}
            call = {"type": "function", "function": {"name": "ccc", "arguments": place}}
            messages.append({"role": "assistant", "content": words(rng, ASSISTANT), "tool_calls": [call]})
            messages.append({"role": "tool", "content": words(rng, RESULT)})
        messages.append(answer)
    return {"messages": messages}


@pytest.fixture
def data(tmp_path):
    rng = random.Random(1)
    lines = [json.dumps(conversation(rng, plain=number % 2 == 0)) for number in range(60)]
    (tmp_path / "chats.jsonl").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "chats.jsonl")


def run(mill, data, tokenizer, *steps, **render):
    mill.run(mill.recipe({"chats": Read(read=data)}, [Render(**render), Tokenize(tokenizer=tokenizer), *steps]))
    return open_dataset(mill.output)


def check_kinds(dataset):
    """Every token of words has the kind of its letters, and what is trained is what the model writes."""
    seen = Counter()
    for row in dataset:
        ids, kinds, mask = row["input_ids"], row["kinds"], row["loss_mask"]
        assert len(kinds) == row["lengths"].sum()
        assert np.array_equal(np.isin(kinds, WRITTEN), mask[: len(kinds)])
        for token, kind in zip(ids.tolist(), kinds.tolist(), strict=False):
            text = dataset.decode_ids([token]).strip()
            seen[kind] += 1
            if text in SPECIALS:
                expected = {"<|end|>": (0, END), "<call>": (CALL,), "<think>": (REASONING,), "</think>": (REASONING,)}
                assert kind in expected.get(text, (0,))
            elif text and text not in "()":
                [letter] = set(text) - {"(", ")", " "}
                assert LETTERS[kind] == letter
    return seen


def test_every_token_has_the_kind_of_who_wrote_it(mill, data, tokenizer, tmp_path):
    packed = run(mill, data, tokenizer, Pack(row_length=ROW, strategy="best_fit"))
    counts = check_kinds(packed)
    assert {USER, ASSISTANT, REASONING, CALL, RESULT, END} <= set(counts)
    assert not verify(mill.output).problems
    export(mill.output, to="parquet", path=tmp_path / "tables", backend="serial", columns="stored")
    stored = pq.read_table(sorted(tmp_path.glob("tables*.parquet"))).column("kinds").to_pylist()
    assert stored == [row["kinds"].tolist() for row in packed]


def test_rows_of_one_chat_and_datasets_of_datasets_keep_them(mill, data, tokenizer, tmp_path):
    single = run(mill, data, tokenizer)
    counts = check_kinds(single)
    mill.output.rename(tmp_path / "single")
    mill.run(mill.recipe({"chats": Read(read=str(tmp_path / "single"))}, [Pack(row_length=4 * ROW)]))
    assert check_kinds(open_dataset(mill.output)) == counts


def by_token(dataset, options, numbers):
    """The labels and weights of rows, token by token."""
    labels, weights = [], []
    for number in numbers:
        row = dataset[number]
        filled, width = int(row["lengths"].sum()), len(row["input_ids"])
        row_labels, row_weights = [-100] * width, [0.0] * width
        first = {0, *np.cumsum(row["lengths"]).tolist()} if not options.learn_first_token else set()
        for place in range(filled):
            kind = TOKEN_KINDS[row["kinds"][place]]
            weight = options.weights.get(kind)
            if weight is None and options.train is None:
                weight = float(row["loss_mask"][place])
            elif weight is None:
                weight = float(kind in options.train)
            position = place - (options.labels == "shifted")
            if weight and position >= 0 and place not in first:
                row_labels[position], row_weights[position] = int(row["input_ids"][place]), weight
        labels.append(row_labels)
        weights.append(row_weights)
    return labels, weights


CHOICES = (
    (None, {}),
    (("assistant", "call", "end"), {}),
    (("assistant", "end"), {"reasoning": 0.5, "call": 2}),
    (None, {"reasoning": 0, "user": 0.25}),
    (("user", "result", "template"), {}),
)


def test_batches_train_the_kinds_that_are_chosen(mill, data, tokenizer):
    dataset = run(mill, data, tokenizer, Pack(row_length=ROW, align=4))
    for train, weights in CHOICES:
        for labels in ("same", "shifted"):
            for learn_first_token in (True, False):
                options = Collate(
                    fields=("input_ids", "labels", "loss_weights"),
                    train=train,
                    weights=weights,
                    labels=labels,
                    learn_first_token=learn_first_token,
                )
                batch = Stream(mill.output, shuffle=False, collate=options).rows(0, len(dataset))
                expected_labels, expected_weights = by_token(dataset, options, range(len(dataset)))
                assert batch["labels"].tolist() == expected_labels
                assert batch["loss_weights"].dtype == np.float32
                assert batch["loss_weights"].tolist() == expected_weights
    counts = np.bincount(np.concatenate([row["kinds"] for row in dataset]), minlength=len(TOKEN_KINDS))
    assert batch.kinds.tolist() == counts.tolist()
    aligned = Collate(fields=("input_ids", "labels", "loss_weights"), weights={"call": 2.0}, align=4)
    spaced = Stream(mill.output, shuffle=False, collate=aligned).rows(0, len(dataset))
    assert np.array_equal(spaced["loss_weights"] > 0, spaced["labels"] != -100)
    assert np.count_nonzero(spaced["loss_weights"] == 2) == counts[CALL]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_tokens_are_counted_by_kind(mill, data, tokenizer, num_workers):
    torch_data = pytest.importorskip("torch.utils.data")
    from gristmill.stream.torch import TorchDataset

    dataset = run(mill, data, tokenizer, Pack(row_length=ROW))
    collate = Collate(fields=("input_ids", "labels", "loss_weights"), weights={"call": 2})
    stream = Stream(mill.output, epochs=1, collate=collate)
    loader = torch_data.DataLoader(TorchDataset(stream, batch_size=4), batch_size=None, num_workers=num_workers)
    weights = [batch["loss_weights"] for batch in loader]
    kinds = Counter(TOKEN_KINDS[kind] for row in dataset for kind in row["kinds"].tolist())
    assert stream.accounting.report().kinds == kinds
    assert stream.accounting.as_dict()["data/kinds/call"] == kinds["call"]
    assert sum(int((of_batch == 2).sum()) for of_batch in weights) == kinds["call"]


def test_an_answer_that_is_not_trained_is_trained_by_no_kind_of_answers(mill, tmp_path, tokenizer):
    said = [{"role": role, "content": text} for role, text in (("user", "u"), ("assistant", "aaa"))]
    record = {"messages": [*said, said[0], {**said[1], "content": "aa"}]}
    record["messages"][1]["train"] = False
    (tmp_path / "marked.jsonl").write_text(json.dumps(record) + "\n")
    dataset = run(mill, str(tmp_path / "marked.jsonl"), tokenizer, train_on="marked")
    assert CONTEXT in dataset[0]["kinds"]
    batch = Stream(mill.output, collate=Collate(train=("assistant", "reasoning", "call", "end"))).rows(0, 1)
    assert (batch["labels"][0] != -100).tolist() == dataset[0]["loss_mask"].tolist()


def weighted(rng, words=5):
    """A chat whose answers have weights, and the weight of each answer by its words."""
    messages, weights = [], {}
    for number in range(rng.randrange(1, 4)):
        weight = rng.choice([0.5, 2, 1, 0.25, None])
        answer = {
            "role": "assistant",
            "content": " ".join("abcdefgh"[number] * 3 for _ in range(rng.randrange(1, words))),
        }
        weights["abcdefgh"[number]] = 1.0 if weight is None else weight
        messages += [{"role": "user", "content": "u" * 3}, answer | ({} if weight is None else {"weight": weight})]
    return {"messages": messages}, weights


@pytest.mark.parametrize("steps", [(), (Pack(row_length=48),), (Pack(row_length=32, long_documents="truncate"),)])
def test_weights_of_messages_are_those_of_their_tokens(mill, tmp_path, tokenizer, steps):
    rng = random.Random(3)
    chats = [weighted(rng) for _ in range(40)]
    bad = [{"messages": [chats[0][0]["messages"][0], {"role": "assistant", "content": "a", "weight": -1}]}]
    (tmp_path / "weighted.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat, _ in chats) + json.dumps(bad[0]))
    dataset = run(mill, str(tmp_path / "weighted.jsonl"), tokenizer, *steps, weights=True)
    assert [record["reason"] for record in dataset.quarantine()] == ["invalid_weight"]
    collate = Collate(fields=("input_ids", "labels", "loss_weights"))
    batch = Stream(mill.output, shuffle=False, collate=collate).rows(0, len(dataset))
    seen = Counter()
    lines = (tmp_path / "weighted.jsonl").read_text().splitlines(keepends=True)
    weights_at = {sum(map(len, lines[:number])): weights for number, (_, weights) in enumerate(chats)}
    for number, row in enumerate(dataset):
        starts = [0, *np.cumsum(row["lengths"]).tolist()]
        for origin, start, end in zip(dataset.origins(number), starts, starts[1:], strict=False):
            current = 1.0
            for place in range(start, end):
                text = dataset.decode_ids([row["input_ids"][place].item()]).strip()
                if row["kinds"][place] == ASSISTANT and text:
                    current = weights_at[origin.position][text[0]]
                expected = current if row["loss_mask"][place] else 1.0
                assert row["weights"][place] == expected
                assert batch["loss_weights"][number, place] == (expected if row["loss_mask"][place] else 0)
                seen[expected] += 1
    assert set(seen) == {0.25, 0.5, 1.0, 2.0}
    with pytest.warns(UserWarning, match="weights"):
        Stream(mill.output)
    twice = Collate(fields=("input_ids", "labels", "loss_weights"), weights={"end": 2})
    both = Stream(mill.output, shuffle=False, collate=twice).rows(0, len(dataset))["loss_weights"]
    lines = export(mill.output, to="jsonl", path=tmp_path / "levanter", columns="levanter", backend="serial").files
    exported = [json.loads(line) for path in lines for line in path.read_text().splitlines()]
    shifted = Stream(mill.output, shuffle=False, collate=msgspec.structs.replace(collate, labels="shifted"))
    without_first = msgspec.structs.replace(shifted.collate, learn_first_token=False)
    expected = Stream(mill.output, shuffle=False, collate=without_first).rows(0, len(dataset))["loss_weights"]
    for line, row in zip(exported, expected, strict=True):
        assert line["loss_weights"] == row[: len(line["input_ids"])].tolist()
    with pytest.raises(UsageError, match="drop"):
        export(mill.output, to="jsonl", path=tmp_path / "training", backend="serial")
    export(mill.output, to="jsonl", path=tmp_path / "training", weights="drop", backend="serial")
    is_end = [[kind == END for kind in row["kinds"]] for row in dataset]
    for row, before, after in zip(is_end, batch["loss_weights"], both, strict=True):
        assert after[: len(row)][row].tolist() == (2 * before[: len(row)][row]).tolist()


def test_weights_are_kept_left_out_or_refused(mill, tmp_path, tokenizer):
    chat, plain = (
        {"messages": [{"role": "user", "content": "u"}, answer]}
        for answer in ({"role": "assistant", "content": "aaa", "weight": 0.5}, {"role": "assistant", "content": "aa"})
    )
    path = tmp_path / "weighted.jsonl"
    path.write_text(f"{json.dumps(chat)}\n{json.dumps(plain)}\n")
    dataset = run(mill, str(path), tokenizer, weights=False)
    assert "weights" not in dataset.schema.names
    assert len(dataset) == 2
    shutil.rmtree(mill.output)
    refused = run(mill, str(path), tokenizer)
    assert [record["reason"] for record in refused.quarantine()] == ["unplanned_weights"]
    assert len(refused) == 1


@pytest.mark.parametrize("kinds", [("assistant", "call"), ("end", "user"), ("template", "result", "reasoning")])
def test_a_recipe_can_name_the_kinds_that_are_trained(mill, data, tokenizer, kinds):
    dataset = run(mill, data, tokenizer, Pack(row_length=ROW, long_documents="truncate"), train_on=kinds)
    for row in dataset:
        is_trained = [TOKEN_KINDS[kind] in kinds for kind in row["kinds"]]
        assert row["loss_mask"][: len(is_trained)].tolist() == is_trained


def test_kinds_are_checked_in_recipes():
    for wrong in (("answers",), (), "assistnat"):
        with pytest.raises(UsageError, match="train_on"):
            Render(train_on=wrong)


def test_masks_without_kinds_refuse_a_choice(tmp_path):
    folder = write_tokens(tmp_path / "out", {("train", "web"): [[[[1, 2, 3]]]]}, row_length=8, loss_masks=True)
    assert Stream(folder).rows(0, 1).kinds[TOKEN_KINDS.index("pretokenized")] == 3
    with pytest.raises(UsageError, match="kind"):
        Stream(folder, collate=Collate(train=("assistant",)))
    plain = write_tokens(tmp_path / "plain", {("train", "web"): [[[[1, 2, 3]]]]}, row_length=8)
    assert (Stream(plain, collate=Collate(train=("assistant",))).rows(0, 1)["labels"] == -100).all()
    weighted = Collate(fields=("input_ids", "labels", "loss_weights"), weights={"document": 0.5})
    assert Stream(plain, collate=weighted).rows(0, 1)["loss_weights"][0].tolist() == [0.5] * 3 + [0] * 5


@pytest.mark.parametrize(
    "options",
    [
        *({"train": "assistant"}, {"train": ("answers",)}, {"weights": {"call": -1}}, {"weights": {"call": True}}),
        *({"weights": {"call": float("nan")}}, {"weights": {"call": 2}}, {"weights": [2]}),
        {"fields": ("input_ids", "loss_weights")},
    ],
)
def test_wrong_choices_are_refused(options):
    with pytest.raises(UsageError):
        Collate(**options)
