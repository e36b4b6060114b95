"""What two datasets differ in: against changes that are known because the test made them."""

import json
import random

import pytest
from gristmill_testing.small_tokenizers import trained

import gristmill as gm
from gristmill import steps
from gristmill.cli.main import main
from gristmill.core.errors import DamagedDatasetError
from gristmill.report.differences import find_differences
from gristmill.shards.dataset import open_dataset


def build(folder, name, texts, *chain, seed=0, **settings):
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(folder / "a.jsonl"))}, steps=chain, output=str(folder / name), seed=seed,
        **settings,
    )  # fmt: skip
    gm.run(recipe, backend="serial", progress=False)
    return open_dataset(folder / name)


TEXTS = [f"text number {n:04d}" for n in range(300)]


@pytest.mark.parametrize("format", ["arrow", "jsonl", "parquet"])
def test_documents(tmp_path, format):
    write = steps.Write(format=format)
    a = build(tmp_path, "a", TEXTS, write)
    assert find_differences(a, build(tmp_path, "same", TEXTS, write)).equal
    changed = [*TEXTS]
    changed[17] = "text xumber 0017"
    b = build(tmp_path, "b", changed, write)
    differences = find_differences(a, b)
    assert not differences.equal
    [lane] = differences.lanes
    assert (lane.only_in_a, lane.only_in_b, lane.changed) == (0, 0, 1)
    [record] = lane.records
    assert (record.row_a, record.row_b, record.part, record.position) == (17, 17, "text", 5)
    assert record.a.startswith("text number")
    assert record.place.endswith(f"a.jsonl@{17 * len(json.dumps({'text': TEXTS[0]}) + chr(10))}")
    assert [change.key for change in differences.inputs] == ["web:a.jsonl"]


def test_more_and_fewer_documents(tmp_path):
    a = build(tmp_path, "a", TEXTS, steps.Length(min_chars=5))
    b = build(tmp_path, "b", TEXTS, steps.Filter(call=keep_some))
    differences = find_differences(a, b, max_records=2)
    [lane] = differences.lanes
    assert (lane.only_in_a, lane.only_in_b, lane.changed) == (150, 0, 0)
    assert len(lane.examples_a) == 2
    assert {change.key for change in differences.recipe} >= {"steps.0.length.min_chars"}


def keep_some(record):
    return int(record["text"][-1]) % 2 == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("packs", [False, True])
def test_edits_of_other_lengths_change_no_other_document(tmp_path, seed, packs):
    """Lines that move in their file are the same documents, duplicates too."""
    rng = random.Random(seed)
    texts = [f"text {n if n % 50 else 'again'} " * rng.randint(1, 5) for n in range(400)]
    edited, removed, added = (sorted(places) for places in chunk_evenly(rng.sample(range(1, 399, 2), 9), 3))
    lines = [[f"edited {n} {text}"] if n in edited else [text] for n, text in enumerate(texts)]
    for place in removed:
        lines[place] = []
    for place in added:
        lines[place].append(f"new {place}")
    texts_b = [text for place in lines for text in place]
    chain = []
    if packs:
        trained(tmp_path / "t")
        chain = [steps.Tokenize(tokenizer=str(tmp_path / "t")), steps.Pack(row_length=64)]
    a, b = build(tmp_path, "a", texts, *chain), build(tmp_path, "b", texts_b, *chain)
    [lane] = find_differences(a, b).lanes
    if packs:  # rows have another order: not every edited document is recognised as one
        assert lane.only_in_a == lane.only_in_b == 6 - lane.changed
    else:
        assert (lane.only_in_a, lane.only_in_b, lane.changed) == (3, 3, 3)


def test_positions_that_moved_name_other_documents(tmp_path):
    texts = [f"line {n:03d} of a file" for n in range(40)]
    edited = [*texts[1:30], *(text.replace("file", "FILE") for text in texts[30:])]
    [lane] = find_differences(build(tmp_path, "a", texts), build(tmp_path, "b", edited), max_records=10).lanes
    assert (lane.only_in_a, lane.only_in_b, lane.changed) == (1, 0, 10)
    assert [record.b for record in lane.records] == edited[29:]
    assert [record.a for record in lane.records] == texts[30:]


def chunk_evenly(values, num_chunks):
    return [values[first::num_chunks] for first in range(num_chunks)]


def test_tokens_and_order(tmp_path):
    trained(tmp_path / "t")
    chain = [steps.Tokenize(tokenizer=str(tmp_path / "t")), steps.Pack(row_length=64)]
    a = build(tmp_path, "a", TEXTS, *chain)
    changed = [*TEXTS]
    changed[5] = TEXTS[5].replace("number", "xxxxxx")
    [lane] = find_differences(a, build(tmp_path, "b", changed, *chain)).lanes
    assert lane.changed == 1
    assert (lane.only_in_a, lane.only_in_b) == (0, 0)
    [record] = lane.records
    assert record.part == "tokens"
    tokenizer_ids = [a.decode_ids(a[record.row_a]["input_ids"])]
    assert TEXTS[5] in tokenizer_ids[0]
    assert record.id_a != record.id_b
    [lane] = find_differences(a, build(tmp_path, "c", TEXTS, steps.Shuffle(), *chain)).lanes
    assert lane.is_reordered


def test_documents_longer_than_rows_are_compared_whole(tmp_path):
    texts = [f"text number {n:04d} " * (n % 13 + 1) for n in range(120)]
    trained(tmp_path / "t")
    tokenize = steps.Tokenize(tokenizer=str(tmp_path / "t"))
    a = build(tmp_path, "a", texts, tokenize, steps.Pack(row_length=32))
    assert a.manifest.books["web"][-1].counters["split_documents"] > 20
    [lane] = find_differences(
        a, build(tmp_path, "b", texts, tokenize, steps.Pack(row_length=16, strategy="concat"))
    ).lanes
    assert lane.is_reordered
    changed = [*texts]
    changed[38] = texts[38].rstrip()[:-1] + "9 "  # the last word of thirteen times four
    c = build(tmp_path, "c", changed, tokenize, steps.Pack(row_length=32))
    [lane] = find_differences(a, c).lanes
    assert (lane.only_in_a, lane.only_in_b, lane.changed) == (0, 0, 1)
    [record] = lane.records
    assert record.position > 32  # counted from the beginning of the document, not of a row
    assert record.a != record.b


def test_at_the_command_line(tmp_path, capsys):
    build(tmp_path, "a", TEXTS, steps.Length(min_chars=5))
    build(tmp_path, "b", TEXTS[:299], steps.Length(min_chars=6))
    codes = []
    for words in (["diff", "a", "a"], ["diff", "a", "b"], ["diff", "a", "b", "--json"], ["diff", "a", "no"]):
        with pytest.raises(SystemExit) as ended:
            main([word if word in ("diff", "--json") else str(tmp_path / word) for word in words])
        codes.append(ended.value.code)
        if words[-1] == "b":
            printed = capsys.readouterr().out
            assert "removed (only in A)" in printed
            assert "steps.0.length.min_chars: 5 in A, 6 in B" in printed
        elif words[-1] == "--json":
            assert json.loads(capsys.readouterr().out)["lanes"][0]["only_in_a"] == 1
    assert codes == [0, 1, 1, 2]


def test_unlike_kinds_are_not_called_the_same_documents(web, rows, capsys):
    with pytest.raises(SystemExit) as error:
        main(["diff", str(web), str(rows)])
    assert error.value.code == 1
    shown = capsys.readouterr().out
    assert "not compared" in shown
    assert "same documents" not in shown


def test_damage_is_named(tmp_path, capsys):
    a = build(tmp_path, "a", TEXTS[:9], steps.Write(format="jsonl"))
    same = build(tmp_path, "same", TEXTS[:9], steps.Write(format="jsonl"))
    b = build(tmp_path, "b", TEXTS[:8], steps.Write(format="jsonl"))
    shard = tmp_path / "a/train/web/shard-00000.jsonl"
    shard.write_bytes(b"\xff" * shard.stat().st_size)
    with pytest.raises(DamagedDatasetError, match=r"shard-00000\.jsonl cannot be read"):
        find_differences(a, b)
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path / "a")])
    assert "shard-00000.jsonl cannot be read" in capsys.readouterr().err
    shard.write_bytes(b"")
    with pytest.raises(DamagedDatasetError, match="has 0 bytes"):
        find_differences(same, a)
    shard.unlink()
    with pytest.raises(DamagedDatasetError, match="is missing"):
        find_differences(a, same)
    for options in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["diff", str(tmp_path / "a"), str(tmp_path / "same"), *options])
        assert ended.value.code == 2  # 1 would say that they differ
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2


def test_a_mixed_dataset_is_compared_by_documents(tmp_path):
    """The lane `mixed` of one is all sources of the other."""
    sources = {}
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"text": "{name} {number}"}}\n' for number in range(20)))
        sources[name] = steps.Read(read=str(tmp_path / f"{name}.jsonl"))
    write = steps.Write(format="jsonl")
    runs = {"plain": [write], "mixed": [steps.Shuffle(across="sources"), write]}
    for name, chain in runs.items():
        gm.run(gm.Recipe(sources=sources, steps=chain, output=str(tmp_path / name)), backend="serial")
    [lane] = find_differences(*(open_dataset(tmp_path / name) for name in runs)).lanes
    assert (lane.split, lane.source) == ("train", "mixed")
    assert lane.is_reordered
