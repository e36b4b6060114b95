"""`deduplicate` for lines, paragraphs, substrings and columns: against a slow second implementation in memory."""

import json
import random
import re

import pytest
from gristmill_testing.quality_reference import words_of

from gristmill.core.errors import TooManyDuplicatesError, UsageError
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Deduplicate, Read, Split, Write

WORDS = [f"w{n}" for n in range(60)]


def some_texts(count, seed):
    """Documents of paragraphs of lines, many of which come again with other space around them."""
    rng = random.Random(seed)
    lines = [" ".join(rng.choices(WORDS, k=rng.randrange(1, 14))) for _ in range(count)]
    lines += [
        "界 世 你 好 吗 我 很 好",
        "界世你好吗我很好",
        "ภาษาไทยไม่มีช่องว่าง",
        "မြန်မာဘာသာစကား",
        "ភាសាខ្មែរ",
        "ພາສາລາວ",
        "",
    ]
    lines += ["한국어는 띄어쓰기를", "한국어는 띄어쓰기를 하는 언어 가운데", "👍👍👍👍👍 ok"]
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 8)):
            line = rng.choice(lines) if rng.random() < 0.5 else " ".join(rng.choices(WORDS, k=rng.randrange(1, 14)))
            parts.append(rng.choice(["", " ", "\t"]) + line + rng.choice(["", "  "]))
            parts.append(rng.choice(["\n", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", "\n \t\n"]))
        texts.append("".join(parts[: rng.choice([None, -1])]))
    return texts


def remove_slowly(texts, pattern, min_words):
    """The first of equal pieces stays; a piece goes with the break behind it, the last one with the break before it."""
    known, results = set(), []
    for text in texts:
        parts = re.split(f"({pattern})", text)
        pieces = list(zip(parts[::2], [*parts[1::2], ""], strict=True))
        kept, last_is_removed = [], False
        for piece, separator in pieces:
            key = piece.strip()
            last_is_removed = len(words_of(key)) >= min_words and key in known
            if not last_is_removed:
                kept.append(piece + separator)
            if len(words_of(key)) >= min_words:
                known.add(key)
        result = "".join(kept)
        results.append(re.split(r"(?:\r?\n\s*)?\Z", result, maxsplit=1)[0] if last_is_removed else result)
    return [result for result in results if result.strip()]


def write_texts(folder, texts, per_file=40, **columns):
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(texts), per_file):
        rows = range(start, min(start + per_file, len(texts)))
        lines = [json.dumps({"text": texts[n], "n": n, **{k: v[n] for k, v in columns.items()}}) for n in rows]
        (folder / f"{start:05}.jsonl").write_text("\n".join(lines))
    return Read(read=str(folder / "*.jsonl"))


@pytest.fixture
def tiny_units(mill):
    mill.layout = UnitLayout(unit_bytes=12_000, min_group_bytes=6_000)


@pytest.mark.parametrize(("kind", "pattern"), [("lines", "\n"), ("paragraphs", "\n\\s*\n")])
def test_equals_the_slow_implementation(mill, tmp_path, tiny_units, kind, pattern):
    texts = some_texts(240, 1)
    sources = {"web": write_texts(tmp_path / "web", texts)}
    for min_words, partition_bytes in ((None, 32 << 20), (2, 2000)):
        step = Deduplicate(kind=kind, min_words=min_words, partition_bytes=partition_bytes)
        result = mill.run(mill.recipe(sources, [step, Write(format="jsonl")]), overwrite=True)
        kept = [record["text"] for record in open_dataset(mill.output)]
        assert kept == remove_slowly(texts, pattern, min_words or 5)
        account = result.books["web"][-1]
        assert account.dropped["duplicate"] == len(texts) - len(kept)
        assert account.counters[f"removed_{kind}"] > 0


def test_the_same_bytes_for_any_workers(mill, tmp_path, tiny_units):
    sources = {name: write_texts(tmp_path / name, some_texts(80, seed)) for seed, name in enumerate(["web", "books"])}
    recipe = mill.recipe(
        sources, [Deduplicate(kind="lines", prefer=["web"], partition_bytes=3000), Write(format="jsonl")]
    )
    expected = mill.fresh_files(recipe)
    assert mill.fresh_files(recipe, backend="processes", workers=2) == expected
    other = mill.recipe(sources, [Deduplicate(kind="lines", prefer=["web"]), Write(format="jsonl")])
    changed = {name for name, content in mill.fresh_files(other).items() if expected.get(name) != content}
    assert not {name for name in changed if name.startswith("train/")}


def test_a_preferred_source_keeps_its_lines(mill, tmp_path):
    line = "this line is in both of the sources"
    sources = {
        "books": write_texts(tmp_path / "books", [f"{line}\nbooks only has this line here"]),
        "web": write_texts(tmp_path / "web", [line, "web has one more line than books"]),
    }
    mill.run(mill.recipe(sources, [Deduplicate(kind="lines", prefer=["web"]), Write(format="jsonl")]))
    assert sorted(record["text"] for record in open_dataset(mill.output)) == sorted(
        ["books only has this line here", line, "web has one more line than books"]
    )


def test_held_out_lines_stay_and_count(mill, tmp_path):
    texts = [f"common line number one of this test\nown line {n} of this document here" for n in range(50)]
    steps = [Split(validation=0.2), Deduplicate(kind="lines"), Write(format="jsonl")]
    mill.run(mill.recipe({"web": write_texts(tmp_path / "web", texts)}, steps))
    dataset = open_dataset(mill.output)
    assert all(record["text"].startswith("common") for record in dataset.split("validation"))
    assert not any(record["text"].startswith("common") for record in dataset.split("train"))


def remove_runs_slowly(texts, length):
    known, results = set(), []
    for text in texts:
        words = text.split()
        runs = [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]
        gone = set()
        for start, run in enumerate(runs):
            if run in known:
                gone.update(range(start, start + length))
            known.add(run)
        results.append([word for number, word in enumerate(words) if number not in gone])
    return [words for words in results if words]


def test_substrings_equal_the_slow_implementation(mill, tmp_path, tiny_units):
    rng = random.Random(4)
    texts = [" ".join(rng.choices([f"v{n}" for n in range(5000)], k=rng.randrange(5, 120))) for _ in range(120)]
    for _ in range(60):
        source, target = rng.sample(range(120), 2)
        words = texts[source].split()
        start = rng.randrange(len(words))
        run = words[start : start + rng.randrange(8, 60)]
        texts[target] += " ".join(["", *run, "tail"])
    step = Deduplicate(kind="substring", min_words=10, partition_bytes=20_000)
    mill.run(mill.recipe({"web": write_texts(tmp_path / "web", texts)}, [step, Write(format="jsonl")]))
    assert [record["text"].split() for record in open_dataset(mill.output)] == remove_runs_slowly(texts, 10)


def test_long_documents_are_hashed_over_the_borders_of_blocks(mill, tmp_path):
    run = " ".join(f"r{n}" for n in range(12))
    texts = [" ".join(f"a{n}" for n in range(8185)) + f" {run} end", f"start {run} end of it"]
    step = Deduplicate(kind="substring", min_words=12)
    mill.run(mill.recipe({"web": write_texts(tmp_path / "web", texts)}, [step, Write(format="jsonl")]))
    assert open_dataset(mill.output)[1]["text"] == "start  of it"


def test_copies_of_a_column(mill, tmp_path):
    urls = [None if n % 10 == 0 else f"https://a.org/{n % 30}" for n in range(60)]
    sources = {"web": write_texts(tmp_path / "web", [f"text {n}" for n in range(60)], url=urls)}
    step = Deduplicate(kind="exact", by="url", max_source_loss=0.9)
    mill.run(mill.recipe(sources, [step, Write(format="jsonl")]))
    kept = [record["n"] for record in open_dataset(mill.output)]
    assert kept == [n for n in range(60) if urls[n] is None or urls.index(urls[n]) == n]
    strict = mill.recipe(sources, [Deduplicate(kind="exact", by="url", max_source_loss=0.1), Write(format="jsonl")])
    with pytest.raises(TooManyDuplicatesError):
        mill.run(strict, overwrite=True)


@pytest.mark.parametrize(
    "keys",
    [
        {"kind": "lines", "count": True},
        {"kind": "lines", "against": "a.jsonl"},
        {"kind": "near", "min_words": 3},
        {"kind": "lines", "min_words": 0},
        {"kind": "near", "by": "url"},
        {"kind": "sentences"},
    ],
)
def test_wrong_keys_are_refused(keys):
    with pytest.raises(UsageError):
        Deduplicate(**keys)
