"""`deduplicate` in a recipe: who stays, what is said of those that go, and that nothing but the recipe decides it."""

import json
import random
import shutil
from unittest import mock

import msgspec
import pyarrow.parquet as pq
import pytest
from gristmill_testing import duplicates
from gristmill_testing.duplicates import column
from gristmill_testing.in_memory_duplicates import find_duplicates

from gristmill.core.errors import TooManyDuplicatesError, UsageError
from gristmill.core.recipe import Source
from gristmill.pipeline.barriers import exchange
from gristmill.pipeline.barriers.deduplicate import sign
from gristmill.pipeline.barriers.deduplicate.documents import Documents
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.publishing import publish
from gristmill.shards.dataset import open_dataset
from gristmill.shards.manifest_file import load_manifest
from gristmill.shards.verify import verify
from gristmill.steps import Deduplicate, Length, Read, Select, Shuffle, Split, Write

MIB = 1 << 20
WORDS = [f"w{n}" for n in range(3000)]


def new_text(rng, length=60):
    return " ".join(rng.choices(WORDS, k=length))


def edited(text, rng, share=0.02):
    return " ".join(f"x{rng.getrandbits(30)}" if rng.random() < share else word for word in text.split(" "))


def some_texts(count, seed):
    """New texts, copies and near copies of them, short and empty ones."""
    rng = random.Random(seed)
    texts = []
    while len(texts) < count:
        kind = rng.random()
        if not texts or kind < 0.6:
            texts.append(new_text(rng, rng.randrange(5, 120)))
        elif kind < 0.75:
            texts.append(rng.choice(texts))
        elif kind < 0.95:
            texts.append(edited(rng.choice(texts), rng))
        else:
            texts.append(rng.choice(["", "short", "two words"]))
    return texts


def write_source(folder, texts, per_file=100):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(0, len(texts), per_file):
        lines = [
            json.dumps({"text": text, "n": number + n}) for n, text in enumerate(texts[number : number + per_file])
        ]
        (folder / f"part-{number:06d}.jsonl").write_text("\n".join(lines))
    return Read(read=f"{folder}/*.jsonl")


@pytest.fixture(scope="module")
def texts():
    return some_texts(900, 1)


@pytest.fixture
def two_sources(tmp_path, texts):
    return {
        "web": write_source(tmp_path / "in/web", texts[:600]),
        "books": write_source(tmp_path / "in/books", texts[600:]),
    }


@pytest.fixture
def tiny_units(mill):
    mill.layout = UnitLayout(unit_bytes=40_000, min_group_bytes=20_000)


def kept_texts(mill):
    return [record["text"] for record in open_dataset(mill.output)]


def table_of(mill):
    [step] = load_manifest(mill.output).deduplicated
    table = pq.read_table(mill.output / step.file.path)
    assert table.num_rows == step.rows
    return table.to_pylist()


def dropped_by(result, source):
    return next(account for account in result.books[source] if account.step == "deduplicate").dropped


def test_samples_of_the_largest_clusters_are_read_together(mill, two_sources):
    with mock.patch.object(Documents, "texts", autospec=True, side_effect=Documents.texts) as read:
        mill.run(mill.recipe(two_sources, [Deduplicate(), Write(format="jsonl")]), backend="serial")
    assert read.call_count == 1
    [step] = load_manifest(mill.output).deduplicated
    assert [len(cluster.samples) for cluster in step.largest] == [min(cluster.size, 3) for cluster in step.largest]


@pytest.mark.parametrize("step", [Deduplicate(), Deduplicate(verify="signature")])
def test_the_same_as_in_memory(mill, two_sources, texts, tiny_units, step):
    """The order of documents is that of the sources' names."""
    ordered = [*texts[600:], *texts[:600]]
    expected, is_exact = find_duplicates(step, column(ordered))
    assert 100 < len(expected.documents) < 450
    result = mill.run(mill.recipe(two_sources, [step, Write(format="jsonl")]))
    gone = set(expected.documents.tolist())
    assert sorted(kept_texts(mill)) == sorted(text for n, text in enumerate(ordered) if n not in gone)
    counts = [dropped_by(result, source) for source in ("web", "books")]
    assert sum(count["duplicate"] for count in counts) == is_exact.sum()
    assert sum(sum(count.values()) for count in counts) == len(gone)
    found = table_of(mill)
    assert sorted(row["similarity"] for row in found) == sorted(expected.similarities.tolist())
    assert {row["reason"] for row in found} == {"duplicate", "near_duplicate"}
    is_estimate = step.verify == "signature"
    assert all(row["is_estimate"] == (is_estimate and row["reason"] == "near_duplicate") for row in found)
    assert result.manifest.deduplicated[0].verify == step.verify


def test_survivors_are_named_by_origin(mill, two_sources, texts, tiny_units):
    mill.run(mill.recipe(two_sources, [Deduplicate(), Write(format="arrow")]))
    dataset = open_dataset(mill.output)
    kept = {}
    for number in range(len(dataset)):
        [origin] = dataset.origins(number)
        kept[origin.source, origin.path, origin.position] = dataset[number]["text"]
    files = {int(key, 16): file for key, file in dataset.manifest.files.items()}
    for row in table_of(mill):
        survivor, removed = row["survivor"], row["removed"]
        file = files[survivor["file"]]
        assert file.source == row["survivor_source"]
        text = kept[file.source, file.path, survivor["position"]]
        file = files[removed["file"]]
        assert file.source == row["source"]
        assert (file.source, file.path, removed["position"]) not in kept
        with open(file.path, "rb") as lines:
            lines.seek(removed["position"])
            gone = json.loads(lines.readline())["text"]
        if row["reason"] == "duplicate":
            assert gone == text
            assert row["similarity"] == 1.0
        else:
            assert gone != text
            assert row["similarity"] == duplicates.jaccard(duplicates.shingles(gone), duplicates.shingles(text)) >= 0.8


VARIANTS = [
    {"backend": "serial", "slice_bytes": 1},
    {"backend": "threads", "workers": 1, "slice_bytes": 5_000},
    {"backend": "threads", "workers": 2, "partition_bytes": 4_000},
    {"backend": "threads", "workers": 5, "partition_bytes": 30_000, "slice_bytes": 1},
]
PROCESSES = [
    pytest.param({"backend": "processes", "workers": workers, "partition_bytes": 20_000}, marks=pytest.mark.slow)
    for workers in (1, 2, 5)
]


@pytest.mark.parametrize("variant", [*VARIANTS, *PROCESSES], ids=str)
def test_the_same_bytes_whatever_the_tasks(mill, two_sources, tiny_units, variant):
    def files_with(backend="serial", workers="auto", slice_bytes=64 * MIB, partition_bytes=32 * MIB):
        steps = [Deduplicate(partition_bytes=partition_bytes, prefer=["web"]), Split(validation=0.2)]
        recipe = mill.recipe(two_sources, [*steps, Write(format="jsonl")], slice_bytes=slice_bytes)
        files = mill.fresh_files(recipe, backend=backend, workers=workers)
        files["manifest.json"] = without_partitions(files["manifest.json"])
        return {path: content for path, content in files.items() if path not in ("report.json", "report.html")}

    assert files_with(**variant) == files_with()


def test_the_same_bytes_however_streams_are_merged(mill, two_sources, tiny_units, monkeypatch):
    recipe = mill.recipe(two_sources, [Deduplicate(partition_bytes=8_000, prefer=["web"]), Write(format="jsonl")])

    def run_anew():
        files = mill.fresh_files(recipe, backend="threads", workers=2)
        return {path: content for path, content in files.items() if path not in ("report.json", "report.html")}

    expected, plans, real = run_anew(), [], exchange.plan_merge

    def plan_merge(*args, **kwargs):
        plans.append(real(*args, **kwargs))
        return plans[-1]

    monkeypatch.setattr(exchange, "plan_merge", plan_merge)
    for piece_bytes in (3_000, 8_000):
        mill.layout = msgspec.structs.replace(mill.layout, max_pieces=0, min_piece_bytes=piece_bytes)
        assert run_anew() == expected
    assert len({len(plan.groups) for plan in plans}) > 3
    assert len({plan.num_partitions for plan in plans}) > 3


def without_partitions(manifest):
    """The recipe is in it, and the checksum of all; a key that two partitions share is in each of them a group."""
    data = json.loads(manifest)
    data["recipe"]["steps"][0]["deduplicate"].pop("partition_bytes", None)
    data["checksum"] = ""
    return data


def test_the_order_of_sources_and_files_does_not_count(mill, tmp_path, texts):
    folder = tmp_path / "in"
    write_source(folder / "a", texts[:300])
    write_source(folder / "b", texts[300:600])
    found = []
    for names in (["a", "b"], ["b", "a"]):
        sources = {
            name: Read(
                read=[f"{folder}/{name}/part-{n:06d}.jsonl" for n in sorted([0, 100, 200], reverse=name < names[-1])]
            )
            for name in names
        }
        mill.fresh_files(mill.recipe(sources, [Deduplicate(), Write(format="jsonl")]))
        found.append(sorted(kept_texts(mill)))
    assert found[0] == found[1]


def sources_of(tmp_path, **texts):
    return {name: write_source(tmp_path / "in" / name, given) for name, given in texts.items()}


def test_who_stays(mill, tmp_path):
    rng = random.Random(4)
    text = new_text(rng, 100)
    sources = sources_of(tmp_path, archive=[text], books=[text + " end"], web=[text + " the end"])
    for step, expected in [
        (Deduplicate(), "web"),
        (Deduplicate(prefer_longest=False), "archive"),
        (Deduplicate(prefer=["books"]), "books"),
        (Deduplicate(prefer=["books", "web"]), "books"),
        (Deduplicate(prefer=["web", "books"], prefer_longest=False), "web"),
    ]:
        mill.fresh_files(mill.recipe(sources, [step, Write(format="jsonl")]))
        manifest = load_manifest(mill.output)
        assert [source for _, source, shard in manifest.shards() if shard.rows] == [expected], step
        assert {row["survivor_source"] for row in table_of(mill)} == {expected}


def test_prefer_must_name_sources(mill, tmp_path):
    sources = sources_of(tmp_path, books=["a"], web=["b"])
    with pytest.raises(UsageError, match="boks") as caught:
        mill.run(mill.recipe(sources, [Deduplicate(prefer=["boks"])]))
    assert "books" in caught.value.help


def test_first_in_file_and_path_stays_among_equals(mill, tmp_path):
    sources = sources_of(tmp_path, web=["one", "same", "two", "same"] * 60)
    mill.run(mill.recipe(sources, [Deduplicate(kind="exact", max_source_loss=1.0), Write(format="jsonl")]))
    assert kept_texts(mill) == ["one", "same", "two"]


def test_count(mill, tmp_path):
    text = new_text(random.Random(1), 100)
    sources = sources_of(tmp_path, web=["x", text, "x", text + " more", "y", "x"])
    steps = [Deduplicate(count=True), Length(min_chars=1)]
    for more in ([Write(format="jsonl")], [Select(columns=["text", "duplicate_count"]), Write(format="parquet")]):
        mill.fresh_files(mill.recipe(sources, [*steps, *more]))
        check_counts(mill)


def check_counts(mill):
    found = {record["text"][:1]: record["duplicate_count"] for record in open_dataset(mill.output)}
    assert found == {"x": 3, "w": 2, "y": 1}


def test_with_other_barriers_and_a_step_of_one_source(mill, two_sources, tiny_units):
    sources = {"web": Source(two_sources["web"], [Deduplicate(kind="exact")]), "books": two_sources["books"]}
    steps = [Length(min_chars=3), Shuffle(), Deduplicate(threshold=0.9), Split(validation=20), Write(format="parquet")]
    result = mill.run(mill.recipe(sources, steps))
    names = [account.step for account in result.books["web"]]
    assert names.count("deduplicate") == 2
    assert len(result.manifest.deduplicated) == 2
    paths = {step.file.path for step in result.manifest.deduplicated}
    assert paths == {"dropped/duplicates.parquet", "dropped/duplicates-1.parquet"}
    assert result.manifest.deduplicated[0].loss.keys() == {"web"}


def test_a_copy_that_goes_is_not_counted_though_its_survivor_is_reused(mill, tmp_path, monkeypatch):
    """Which documents stand for others is no byte of their unit: the receipt of a reused unit must not tell it."""
    rng = random.Random(3)
    texts = [new_text(rng) for _ in range(20)]
    sources = {"a": write_source(tmp_path / "in/a", texts), "b": write_source(tmp_path / "in/b", texts[:5])}
    recipe = mill.recipe(sources, [Deduplicate(max_source_loss=1.0, prefer=["a", "b"]), Write(format="jsonl")])
    with monkeypatch.context() as patched:
        patched.setattr(publish, "publish", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            mill.run(recipe)
    write_source(tmp_path / "in/b", [new_text(rng), *texts[:2]])
    assert count_clusters(mill.run(recipe).manifest) == {"a": 2, "b": 0}


def count_clusters(manifest):
    return {
        source: account.counters["clusters"]
        for source, accounts in manifest.books.items()
        for account in accounts
        if account.step == "deduplicate"
    }


def test_the_table_is_guarded_and_goes_with_the_dataset(mill, two_sources):
    recipe = mill.recipe(two_sources, [Deduplicate(), Write(format="jsonl")])
    content = mill.fresh_files(recipe)["dropped/duplicates.parquet"]
    assert mill.run(recipe).was_up_to_date
    table = mill.output / "dropped/duplicates.parquet"
    table.write_bytes(table.read_bytes()[:-1] + b"?")
    assert [problem.path for problem in verify(mill.output).problems] == ["dropped/duplicates.parquet"]
    table.unlink()
    mill.run(recipe, update=True)
    assert table.read_bytes() == content
    mill.run(mill.recipe(two_sources, [Write(format="jsonl")]), update=True)
    assert not (mill.output / "dropped").exists()


def test_limits_stop_the_run_and_show_why(mill, tmp_path):
    rng = random.Random(1)
    text = new_text(rng, 100)
    sources = sources_of(
        tmp_path, good=[new_text(rng) for _ in range(50)], bad=[edited(text, rng, 0.002) for _ in range(40)]
    )
    with pytest.raises(TooManyDuplicatesError, match="source bad would lose") as caught:
        mill.run(mill.recipe(sources, [Deduplicate()]))
    assert text[:20] in "".join(caught.value.__notes__)
    path = caught.value.help.partition(" in ")[2].partition(";")[0]
    assert len(pq.read_table(path)) > 20
    with pytest.raises(TooManyDuplicatesError, match="said to be copies of one"):
        mill.run(mill.recipe(sources, [Deduplicate(max_source_loss=1.0, max_cluster=20)]))
    result = mill.run(mill.recipe(sources, [Deduplicate(max_source_loss=1.0)]))
    [step] = result.manifest.deduplicated
    assert step.largest[0].size == 1 + step.loss["bad"]["near_duplicate"] + step.loss["bad"].get("duplicate", 0)
    assert step.largest[0].samples[0].startswith(text[:10])
    assert step.cluster_sizes == {"33-64": 1}


def test_streams_signed_for_another_step_are_signed_again(mill, two_sources, tiny_units, monkeypatch):
    """What a run that stopped has stored is used by one with other signatures, and gives what a fresh run gives."""
    opened = []
    open_writer = sign.DocumentSigner.open
    monkeypatch.setattr(
        sign.DocumentSigner, "open", lambda signer, stem: (opened.append(stem.stem), open_writer(signer, stem))[1]
    )
    steps = [Deduplicate(ngram=3), Write(format="jsonl")]
    mill.run(mill.recipe(two_sources, steps))
    expected = load_manifest(mill.output)
    streams = set(opened)
    assert len(streams) == len(opened) > 3
    shutil.rmtree(mill.output)
    opened.clear()
    with pytest.raises(TooManyDuplicatesError):
        mill.run(mill.recipe(two_sources, [Deduplicate(ngram=4, max_cluster=2), Write(format="jsonl")]))
    assert set(opened) == streams
    opened.clear()
    mill.run(mill.recipe(two_sources, steps))
    assert load_manifest(mill.output) == expected
    # Once each, by tasks of the barrier: no record was read from its source again.
    assert len(opened) == len(streams)
    assert not streams & set(opened)


def test_few_documents_are_never_too_many(mill, tmp_path):
    result = mill.run(mill.recipe(sources_of(tmp_path, web=["same"] * 10), [Deduplicate()]))
    assert dropped_by(result, "web") == {"duplicate": 9}


def test_nothing_at_all(mill, tmp_path):
    sources = sources_of(tmp_path, web=["a", "b"], books=["c"])
    for step in (Deduplicate(), Deduplicate(kind="exact")):
        result = mill.run(mill.recipe(sources, [Length(min_chars=50), step], allow_empty=True), overwrite=True)
        assert all(books[-1].records_out == 0 for books in result.books.values())
        assert result.manifest.deduplicated[0].rows == 0
    result = mill.run(mill.recipe(sources, [Deduplicate()]), overwrite=True)
    assert result.books["web"][1].records_out == 2


def test_against_a_file_and_a_dataset(mill, tmp_path):
    rng = random.Random(9)
    known, alone, copied = new_text(rng), new_text(rng), new_text(rng)
    bench = tmp_path / "bench.jsonl"
    lines = [
        {"question": known},
        {"question": known},
        {"question": "short one"},
        {"question": known + " or not"},
    ]
    bench.write_text("".join(json.dumps(line) + "\n" for line in lines) + "{broken\n")
    sources = sources_of(
        tmp_path,
        web=[known + " and more of it", alone, "short one", copied, known],
        books=[copied, known + " again"],
    )
    step = Deduplicate(against={"read": str(bench), "text": "question"})
    before = bench.read_bytes()
    result = mill.run(mill.recipe(sources, [step, Write(format="jsonl")]))
    assert bench.read_bytes() == before
    assert sorted(kept_texts(mill)) == sorted([alone, copied])
    assert {row["survivor_source"] for row in table_of(mill)} == {"against", "books"}
    [entry] = result.manifest.deduplicated
    assert [file.path for file in entry.against.values()] == [str(bench)]
    assert entry.loss == {
        "books": {"in": 2, "near_duplicate": 1},
        "web": {"in": 5, "duplicate": 3, "near_duplicate": 1},
    }
    # What was made is itself something that others can be compared with.
    other = tmp_path / "other"
    again = mill.recipe(sources, [Deduplicate(against=str(mill.output)), Write(format="jsonl")])
    again = type(again)(sources=again.sources, steps=again.steps, output=str(other))
    from gristmill.pipeline.run import run_recipe
    from gristmill.pipeline.stages.stage_context import RunOptions

    run_recipe(again, RunOptions(backend="serial", progress=False))
    assert verify(other)
    left = [record["text"] for record in open_dataset(other)]
    assert alone not in left
    assert copied not in left
    with pytest.raises(UsageError, match="output of this recipe"):
        mill.run(mill.recipe(sources, [Deduplicate(against=str(mill.output)), Write(format="jsonl")]), update=True)
    bench.write_text(json.dumps({"question": "other"}) + "\n")
    assert not mill.run(mill.recipe(sources, [step, Write(format="jsonl")]), update=True).was_up_to_date


@pytest.mark.parametrize("text", ["", new_text(random.Random(2), 40)], ids=["empty", "identical"])
def test_all_documents_are_the_same(mill, tmp_path, text):
    sources = {"web": write_source(tmp_path / "in/web", [text] * 3000, per_file=3000)}
    result = mill.run(mill.recipe(sources, [Deduplicate(max_source_loss=1.0), Write(format="jsonl")]))
    assert dropped_by(result, "web") == {"duplicate": 2999}
    assert result.manifest.deduplicated[0].counts["pairs"] == 0


def test_many_that_share_a_band_and_nothing_else(mill, tmp_path, tiny_units):
    """With shingles of one word and bands of one row, a common word is a common band, of documents in all ranges."""
    rng = random.Random(3)
    texts = ["the " + " ".join(f"{rng.getrandbits(40):x}" for _ in range(9)) for _ in range(1500)]
    texts += [text.rpartition(" ")[0] for text in texts[::50]]  # 0.9 alike, in other units
    sources = {"web": write_source(tmp_path / "in/web", texts)}
    entries = []
    for partition_bytes in (50_000, 32 * MIB):
        step = Deduplicate(ngram=1, rows=1, bands=8, partition_bytes=partition_bytes)
        entries += mill.run(mill.recipe(sources, [step, Write(format="jsonl")]), overwrite=True).manifest.deduplicated
        gone = set(find_duplicates(step, column(texts))[0].documents.tolist())
        assert sorted(kept_texts(mill)) == sorted(text for n, text in enumerate(texts) if n not in gone)
    in_parts, at_once = entries
    assert 20 < in_parts.rows == at_once.rows <= 30
    assert in_parts.counts["largest_band_group"] > 100
    assert in_parts.counts["capped_band_groups"] >= 3
    assert in_parts.counts["pairs"] == at_once.counts["pairs"] < 12 * 8 * len(texts)
