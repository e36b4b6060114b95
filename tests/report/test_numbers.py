"""The numbers of a page, counted again from the inputs and the shards by code that knows nothing of the books."""

import json
import re
from collections import Counter

import pytest
from gristmill_testing.small_tokenizers import trained

import gristmill as gm
from gristmill import steps
from gristmill.shards.dataset import open_dataset


def write_source(folder, name, num_documents):
    """Write documents of 1 to 40 words; every tenth is a copy of the one before, every 25th line is broken."""
    lines, text = [], ""
    for number in range(num_documents):
        if number % 10:
            text = f"{name} document {number} " + "some more words " * (number * 7 % 13)
        lines.append("{broken" if number % 25 == 24 else json.dumps({"text": text}))
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return lines


def count_source(lines):
    """Count what becomes of the lines of a source, before `mix`."""
    counts, seen = Counter({"in": len(lines)}), set()
    for line in lines:
        if line == "{broken":
            counts["quarantined"] += 1
            continue
        text = json.loads(line)["text"]
        counts["bytes"] += len(text.encode())
        if len(text) < 30:
            counts["too_short"] += 1
        elif text in seen:
            counts["duplicate"] += 1
        else:
            seen.add(text)
            counts["distinct"] += 1
            counts["distinct bytes"] += len(text.encode())
    return counts


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    counts = {name: count_source(write_source(folder, name, size)) for name, size in (("web", 300), ("books", 120))}
    trained(folder / "tokenizer")
    recipe = gm.Recipe(
        sources={name: steps.Read(read=str(folder / f"{name}.jsonl")) for name in counts},
        steps=[
            steps.Length(min_chars=30),
            steps.Deduplicate(kind="exact"),
            steps.Split(validation=0.2),
            steps.Tokenize(tokenizer=str(folder / "tokenizer")),
            steps.Mix(weights={"web": 0.6, "books": 0.4}, size=1500),
            steps.Pack(row_length=64),
        ],
        output=str(folder / "out"),
        max_quarantine=0.2,
    )
    gm.run(recipe, backend="serial", progress=False)
    return folder / "out", counts


@pytest.fixture(scope="module")
def shown(browser, made):
    opened = browser.open(f"file://{made[0]}/report.html")
    yield opened
    opened.close()


def read_table(page, place):
    """Read a table by the names of its lines and columns."""
    heads, rows = page.run(
        f"(() => {{ const t = document.querySelector('{place}'), read = r => [...r.cells].map(c => c.textContent); "
        "return [read(t.tHead.rows[0]), [...t.tBodies[0].rows].map(read)]; })()"
    )
    return {row[0]: dict(zip(heads[1:], row[1:], strict=True)) for row in rows}


def number(text):
    return int(text.replace(",", "")) if text else 0


def count_tokens(out, split):
    """Count the tokens of each source in a split by the origins of its rows."""
    tokens, dataset = Counter(), open_dataset(out).split(split)
    for row in range(len(dataset)):
        for origin, length in zip(dataset.origins(row), dataset[row]["lengths"].tolist(), strict=True):
            tokens[origin.source] += length
    return tokens


def test_records_by_source_and_step(shown, made):
    out, counts = made
    table = read_table(shown, "#panel-records table")
    for name, count in counts.items():
        line = table[name]
        assert number(line["records in"]) == count["in"]
        assert -number(line["read"]) == count["quarantined"]
        assert -number(line["length"]) == count["too_short"]
        assert -number(line["deduplicate"]) == count["duplicate"]
        kept = {
            (origin.path, origin.position)
            for row in range(len(open_dataset(out)))
            for origin in open_dataset(out).origins(row)
            if origin.source == name
        }
        assert number(line["left"]) == len(kept)
        assert -number(line["mix"]) == count["distinct"] - len(kept)
        assert float(line["share"].rstrip("%")) == pytest.approx(100 * len(kept) / count["in"], abs=0.06)
    total = table["all 2"]
    assert number(total["records in"]) == sum(count["in"] for count in counts.values())
    for column in ("length", "mix", "left"):
        assert number(total[column]) == sum(number(table[name][column]) for name in counts)


def test_tokens_and_shares_are_those_of_training(shown, made):
    out, _ = made
    train, validation = count_tokens(out, "train"), count_tokens(out, "validation")
    mix = read_table(shown, "#mix table")
    for name in ("web", "books"):
        share = 100 * train[name] / train.total()
        assert float(mix[name]["share of tokens of train"].rstrip("%")) == pytest.approx(share, abs=0.006)
        assert float(mix[name]["wanted"].rstrip("%")) == {"web": 60, "books": 40}[name]
        assert number(mix[name]["tokens of all splits"]) == train[name] + validation[name]
        packing = read_table(shown, "#lengths > .scroll table")[name]
        assert number(packing["tokens"]) == train[name] + validation[name]
        filled = 100 * number(packing["tokens"]) / (64 * number(packing["rows"]))
        assert float(packing["filled"].rstrip("%")) == pytest.approx(filled, abs=0.006)
    splits = read_table(shown, "#mix .scroll:last-of-type table")
    assert {name: number(splits[name]["tokens"]) for name in splits} == {
        "train": train.total(),
        "validation": validation.total(),
    }
    assert shown.run("document.querySelector('.lead').textContent").startswith(
        f"{train.total():,} tokens for training; "
    )
    tokens = read_table(shown, "#panel-tokens table")
    assert number(tokens["all 2"]["left"]) == train.total() + validation.total()


def test_cards_and_rules(shown, made):
    _, counts = made
    cards = dict(
        shown.run(
            "[...document.querySelectorAll('.cards > div')].map(d => [...d.children].map(c => c.firstChild.data))"
        )
    )
    assert number(cards["records in"]) == sum(count["in"] for count in counts.values())
    assert number(cards["quarantined"]) == sum(count["quarantined"] for count in counts.values())
    rules = read_table(shown, "#rules table")
    came = sum(count["in"] - count["quarantined"] for count in counts.values())
    for rule, reached in (
        ("too_short", came),
        ("duplicate", came - sum(count["too_short"] for count in counts.values())),
    ):
        [line] = [line for name, line in rules.items() if name.startswith(f"{rule} ")]
        removed = sum(count[rule] for count in counts.values())
        assert number(line["records"]) == removed
        assert float(line["share"].rstrip("%")) == pytest.approx(100 * removed / reached, abs=0.06)
    sentence = shown.run("document.querySelector('#overview .note').textContent")
    parts = [number(part) for part in re.findall(r"\d[\d,]*", sentence)]
    assert parts[0] == sum(parts[1:]) == sum(count["in"] for count in counts.values())
