"""The same bytes for every number of workers, every backend, every size of tasks, and every time."""

import msgspec
import pytest

from gristmill.core.recipe import Source
from gristmill.pipeline.barriers import shuffle
from gristmill.steps import Filter, Length, Limit, Map, Read, Rename, Sample, Select, Shuffle, Split, Write

MIB = 1 << 20
FORMATS = [
    Write(format="jsonl"),
    Write(format="jsonl", compression="zstd"),
    Write(format="jsonl", compression="gzip", max_shard_bytes=2 * MIB),
    Write(format="parquet"),
    Write(format="parquet", max_shard_bytes=3 * MIB),
    Write(format="arrow"),
    Write(format="arrow", max_shard_bytes=1),
    Write(format="webdataset"),
]


def sources(corpus, **books):
    return {
        "web": Source(Read(read=f"{corpus}/web/*.jsonl"), [Sample(fraction=0.8)]),
        "books": Source(Read(read=f"{corpus}/books/*"), **books),
    }


def assert_same(mill, recipe_of, variants, **options):
    """`recipe_of` makes the recipe for a size of tasks; each variant is (slice_bytes, options)."""
    expected = mill.fresh_files(recipe_of(64 * MIB), **options)
    assert len(expected) > 2
    for slice_bytes, changed in variants:
        found = mill.fresh_files(recipe_of(slice_bytes), **(options | changed))
        assert found.keys() == expected.keys()
        differing = [path for path in expected if found[path] != expected[path]]
        assert not differing, (slice_bytes, changed)


THREADS = [(4 * MIB, {"backend": "threads", "workers": 2}), (1, {"backend": "threads", "workers": 5})]


@pytest.mark.every_case
@pytest.mark.parametrize("write", FORMATS, ids=lambda write: f"{write.suffix}-{write.max_shard_bytes}")
def test_each_format(mill, corpus, small_units, write):
    steps = [Length(min_chars=30), Split(validation=0.1, test=0.1), write]
    assert_same(mill, lambda size: mill.recipe(sources(corpus), steps, slice_bytes=size), THREADS[1:])


@pytest.mark.parametrize(
    "steps",
    [
        [Limit(max_records=4321), Write(format="jsonl")],
        [Shuffle(), Write(format="arrow")],
        [Split(validation=100, test=50), Write(format="parquet")],
        [Length(min_chars=30), Shuffle(), Limit(max_records=1000), Split(validation=100), Length(max_chars=900)],
        [Split(validation=0.2, by="origin"), Shuffle(), Write(format="webdataset")],
    ],
    ids=["limit", "shuffle", "split", "all", "shuffled splits"],
)
def test_barriers(mill, corpus, small_units, steps):
    mill.layout = msgspec.structs.replace(mill.layout, bucket_bytes=2 * MIB)
    assert_same(mill, lambda size: mill.recipe(sources(corpus), steps, slice_bytes=size, seed=3), THREADS)


def test_the_number_of_buckets_does_not_depend_on_the_number_of_files(mill, corpus, small_units, monkeypatch):
    """Just where one more bucket begins: heads and feet of more files must not count."""
    found = []
    real = shuffle.ShuffleBarrier.pass_sources

    def watched(barrier, sources, run):
        [source] = sources
        found.append(sum(sum(file.data_blocks) for result in source.results for file in result.split_files))
        return real(barrier, sources, run)

    monkeypatch.setattr(shuffle.ShuffleBarrier, "pass_sources", watched)
    one_source = {"web": Read(read=f"{corpus}/web/*.jsonl")}
    mill.fresh_files(mill.recipe(one_source, [Shuffle()]))
    mill.layout = msgspec.structs.replace(mill.layout, bucket_bytes=found[0])
    assert_same(mill, lambda size: mill.recipe(one_source, [Shuffle()], slice_bytes=size), THREADS)


def functions_recipe(mill, corpus):
    steps = [
        Map(call=f"{corpus}/functions.py:shout"),
        Filter(call=f"{corpus}/functions.py:is_even"),
        Select(columns=["text", "id"]),
        Rename(columns={"id": "name"}),
        Split(validation=0.1),
        Write(format="jsonl", compression="zstd"),
    ]
    both = {name: Read(read=f"{corpus}/{name}/*", columns=["id"]) for name in ("web", "books")}
    return lambda size: mill.recipe(both, steps, slice_bytes=size, max_quarantine=0.05)


def test_functions_and_what_they_fail_at(mill, corpus, small_units):
    assert_same(mill, functions_recipe(mill, corpus), THREADS)
    assert "quarantine/web.jsonl" in mill.files()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_processes(mill, corpus, small_units, workers):
    variants = [(4 * MIB, {"backend": "processes", "workers": workers})]
    assert_same(mill, functions_recipe(mill, corpus), variants)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["jsonl", "parquet", "arrow", "webdataset"])
def test_processes_with_barriers(mill, corpus, small_units, format):
    steps = [Length(min_chars=30), Shuffle(), Split(validation=100), Limit(max_records=3000), Write(format=format)]
    variants = [(4 * MIB, {"backend": "processes", "workers": 2})]
    assert_same(mill, lambda size: mill.recipe(sources(corpus), steps, slice_bytes=size), variants)


def test_a_quick_look(mill, corpus, small_units):
    steps = [Length(min_chars=30), Write(format="jsonl")]
    assert_same(mill, lambda size: mill.recipe(sources(corpus), steps, slice_bytes=size), THREADS, limit=700)
    counts = {name: books[1].records_in - books[1].dropped.total() for name, books in mill_books(mill).items()}
    assert counts == {"web": 700, "books": 700}


def mill_books(mill):
    from gristmill.shards.manifest_file import load_manifest

    return load_manifest(mill.output).books


def test_the_work_folder_is_the_same_too(mill, corpus, small_units):
    recipe = functions_recipe(mill, corpus)(4 * MIB)
    first = mill.fresh_files(recipe, work=True)
    assert mill.fresh_files(recipe, work=True, backend="threads", workers=3) == first


def test_another_seed_is_another_split_but_no_other_record_is_lost(mill, corpus):
    from gristmill.shards.dataset import open_dataset

    ids = {}
    for seed in (0, 1):
        recipe = mill.recipe({"web": Read(read=f"{corpus}/web/*")}, [Split(validation=0.1)], seed=seed)
        mill.fresh_files(recipe)
        dataset = open_dataset(mill.output)
        ids[seed] = [{record["text"] for record in dataset.split(name)} for name in ("train", "validation")]
    assert ids[0] != ids[1]
    assert ids[0][0] | ids[0][1] == ids[1][0] | ids[1][1]
