"""`mix` in a recipe: shares of sources before they are written, whole epochs first, and books that balance."""

from collections import Counter

import numpy as np
import pytest
from gristmill_testing.small_tokenizers import trained
from hypothesis import given, settings
from hypothesis import strategies as st

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.order.mixture import SourceShare, plan_shares
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.recipe.load import load_recipe
from gristmill.shards.verify import verify
from gristmill.stream import Stream


@pytest.fixture
def folder(tmp_path):
    """60 documents of web in three files, 20 of code."""
    for name, files in (("web", 3), ("code", 1)):
        for file in range(files):
            lines = [f'{{"text": "{name} {file}-{n} {"word " * (n % 7)}"}}\n' for n in range(20)]
            (tmp_path / f"{name}-{file}.jsonl").write_text("".join(lines))
    return tmp_path


def build(folder, *chosen, output="out", seed=0, **options):
    sources = {name: steps.Read(read=f"{name}-*.jsonl") for name in ("web", "code")}
    recipe = gm.Recipe(sources=sources, steps=list(chosen), output=output, seed=seed, folder=str(folder))
    result = run_recipe(recipe, RunOptions(**{"backend": "serial", "progress": False, **options}))
    assert verify(folder / output)
    return result


def texts(result):
    found = {"web": Counter(), "code": Counter()}
    for record in result.dataset():
        found[record["text"].split()[0]][record["text"]] += 1
    return found


def account(result, source):
    [found] = [account for account in result.books[source] if account.step == "mix"]
    return found


def by_documents(**options):
    return steps.Mix(**{"weights": {"web": 0.75, "code": 0.25}, "by": "documents", **options})


def test_shares_of_documents(folder):
    result = build(folder, by_documents(size=40), steps.Write(format="jsonl"))
    found = texts(result)
    assert [found[name].total() for name in ("web", "code")] == [30, 10]
    assert max(found["web"].values()) == 1
    web = account(result, "web")
    assert (web.records_in, web.created, web.records_out, web.dropped) == (60, 0, 30, {"not_chosen": 30})


def test_a_larger_size_takes_the_same_and_more(folder):
    small, large = (
        texts(build(folder, by_documents(size=size), steps.Write(format="jsonl"), output=f"out-{size}"))
        for size in (20, 60)
    )
    assert small["web"].keys() < large["web"].keys()
    other = texts(build(folder, by_documents(size=20), steps.Write(format="jsonl"), output="other", seed=1))
    assert other["web"].keys() != small["web"].keys()


def test_whole_epochs_come_first(folder):
    mix = by_documents(size=110, weights={"web": 6, "code": 5}, max_epochs=2.5)
    result = build(folder, mix, steps.Write(format="arrow"))
    found = texts(result)
    assert set(found["web"].values()) == {1}
    assert sorted(found["code"].values()) == [2] * 10 + [3] * 10
    code = account(result, "code")
    assert (code.records_in, code.created, code.records_out) == (20, 30, 50)
    copies = [record["text"] for record in result.dataset() if record["text"].startswith("code")]
    assert sorted(copies[:20]) == sorted(copies[20:40]) == sorted(found["code"])


def sources_of(result, split="train"):
    """Of each record in the order of the files, by its origin."""
    dataset = result.dataset().split(split)
    return [dataset.origins(index)[0].source for index in range(len(dataset))]


def assert_each_share_in_every_beginning(sources, counts):
    for name, count in counts.items():
        drawn = np.cumsum(np.array(sources) == name)
        assert drawn[-1] == count
        assert np.abs(drawn - np.arange(1, len(sources) + 1) * count / len(sources)).max() < 1


@settings(max_examples=6, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=2, max_size=4),
    weights=st.lists(st.floats(0.2, 3), min_size=4, max_size=4),
    size=st.integers(10, 120),
    shuffles=st.booleans(),
)
def test_sources_are_interleaved_and_copies_come_after_the_whole_first_epoch(
    tmp_path_factory, sizes, weights, size, shuffles
):
    folder = tmp_path_factory.mktemp("mix")
    sources, share = {}, {}
    for number, count in enumerate(sizes):
        name = f"s{number}"
        (folder / f"{name}.jsonl").write_text("".join(f'{{"text": "{name} {n}"}}\n' for n in range(count)))
        sources[name], share[name] = steps.Read(read=f"{name}.jsonl"), weights[number]
    mix = steps.Mix(weights=share, size=max(size, 30 * len(sizes)), by="documents", max_epochs=1000)
    chosen = [mix, *([steps.Shuffle()] if shuffles else []), steps.Write(format="jsonl")]
    result = gm.run(
        gm.Recipe(sources=sources, steps=chosen, output="out", folder=str(folder)), backend="serial", progress=False
    )
    assert list(result.manifest.splits["train"]) == ["mixed"]
    records = list(result.dataset())
    found = sources_of(result)
    assert [record["source"] for record in records] == found
    assert_each_share_in_every_beginning(found, Counter(found))
    for number, count in enumerate(sizes):
        texts = [record["text"] for record in records if record["source"] == f"s{number}"]
        assert (
            account(result, f"s{number}").records_out == len(texts) == result.manifest.mixed["train"][f"s{number}"].rows
        )
        for first in range(0, len(texts), count):
            epoch = texts[first : first + count]
            assert len(set(epoch)) == len(epoch)
    assert verify(folder / "out")


@pytest.mark.parametrize("format", ["arrow", "parquet", "jsonl", "webdataset"])
def test_one_lane_in_every_format_in_many_units(folder, format):
    split = steps.Split(validation=0.2)
    mix = by_documents(size=60, weights={"web": 2, "code": 1}, max_epochs=2)
    write = steps.Write(format=format, max_shard_bytes=1200)
    result = build(folder, split, mix, write, layout=UnitLayout(unit_bytes=1500, cell_bytes=400))
    assert list(result.manifest.splits["train"]) == ["mixed"]
    assert list(result.manifest.splits["validation"]) == ["web", "code"]
    assert len(result.manifest.splits["train"]["mixed"]) > 3
    assert_each_share_in_every_beginning(sources_of(result), {"web": 40, "code": 20})
    if format in ("arrow", "parquet"):
        assert {record["source"] for record in result.dataset().split("validation")} == {"web", "code"}


@pytest.mark.parametrize("strategy", ["best_fit", "concat"])
def test_packed_rows_are_interleaved(folder, strategy):
    trained(folder / "tokenizer")
    mix = steps.Mix(weights={"web": 1, "code": 1}, size=3000, max_epochs=20)
    pack = steps.Pack(row_length=48, strategy=strategy)
    result = build(folder, steps.Tokenize(tokenizer="tokenizer"), mix, pack)
    dataset, sources = result.dataset(), sources_of(result)
    assert_each_share_in_every_beginning(sources, Counter(sources))
    assert {name: share.rows for name, share in result.manifest.mixed["train"].items()} == Counter(sources)
    if strategy == "best_fit":  # no document is cut
        documents = [
            (origin.path, origin.position)
            for index, source in enumerate(sources)
            if source == "code"
            for origin in dataset.origins(index)
        ]
        assert len(documents) > 50
        for first in range(0, len(documents), 20):
            epoch = documents[first : first + 20]
            assert len(set(epoch)) == len(epoch)


def test_sources_stay_apart_on_request(folder):
    result = build(folder, by_documents(size=40, interleave=False), steps.Write(format="arrow"))
    assert list(result.manifest.splits["train"]) == ["web", "code"]
    assert "source" not in result.manifest.schema.columns
    assert not result.manifest.mixed
    assert sources_of(result) == ["web"] * 30 + ["code"] * 10


def test_shuffle_within_sources_or_across_them(folder):
    write = steps.Write(format="jsonl")
    within = build(folder, steps.Shuffle(), write, output="within")
    assert sources_of(within) == ["web"] * 60 + ["code"] * 20
    across = build(folder, steps.Shuffle(across="sources"), write, output="across")
    assert list(across.manifest.splits["train"]) == ["mixed"]
    assert_each_share_in_every_beginning(sources_of(across), {"web": 60, "code": 20})
    order = {
        name: [
            [record["text"] for record in result.dataset() if record["text"].startswith(name)]
            for result in (within, across)
        ]
        for name in ("web", "code")
    }
    assert all(one == other for one, other in order.values())
    own = gm.Source(steps.Read(read="web-*.jsonl"), [steps.Shuffle(across="sources")])
    with pytest.raises(UsageError, match="concerns all sources"):
        gm.plan(gm.Recipe(sources={"web": own}, output="o", folder=str(folder)))


def test_a_source_column_of_the_records_own_stays(folder):
    (folder / "web-0.jsonl").write_text('{"text": "web 1", "source": {"name": 5}}\n{"text": "web 2", "x": "source"}\n')
    sources = {"web": steps.Read(read="web-0.jsonl"), "code": steps.Read(read="code-0.jsonl")}
    chosen = [by_documents(size=4, weights={"web": 1, "code": 1}), steps.Write(format="jsonl")]
    result = gm.run(gm.Recipe(sources=sources, steps=chosen, output="out", folder=str(folder)), backend="serial")
    lines = b"".join((folder / "out" / shard.path).read_bytes() for _, _, shard in result.manifest.shards())
    assert b'{"text": "web 1", "source": {"name": 5}}\n' in lines
    assert b'{"text": "web 2", "x": "source","source":"web"}\n' in lines


def test_what_contradicts_one_lane_is_refused_in_the_plan(folder):
    sources = {name: steps.Read(read=f"{name}-*.jsonl") for name in ("web", "code")}
    mix = by_documents(size=5)
    with pytest.raises(UsageError, match="interleaved when they are written"):
        gm.plan(gm.Recipe(sources=sources, steps=[mix], output="o", folder=str(folder), mixture={"web": 1, "code": 1}))
    weights = {"mixed": 1, "code": 1}
    with pytest.raises(UsageError, match="can be called"):
        gm.plan(
            gm.Recipe(
                sources={"mixed": sources["web"], "code": sources["code"]},
                steps=[by_documents(size=5, weights=weights)],
                output="o",
                folder=str(folder),
            )
        )


def test_the_plan_says_that_sources_follow_each_other(folder):
    sources = {name: steps.Read(read=f"{name}-*.jsonl") for name in ("web", "code")}
    for chosen, is_said in (([], True), ([by_documents(size=5)], False), ([steps.Shuffle(across="sources")], False)):
        plan = gm.plan(gm.Recipe(sources=sources, steps=chosen, output="o", folder=str(folder)))
        assert bool(plan.outline().notes) == is_said
        assert ("web, then code" in str(plan)) == is_said
    assert not gm.plan(gm.Recipe(sources={"web": sources["web"]}, output="o", folder=str(folder))).outline().notes


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "20 short"), ({"max_epochs": 1.5}, "10 short"), ({"weights": {"web": 2, "code": 1}, "size": 1}, "nothing")],
)
def test_what_is_not_there_is_refused(folder, options, message):
    with pytest.raises(UsageError, match=message):
        build(folder, by_documents(**{"size": 80, "weights": {"web": 1, "code": 1}, **options}))
    assert not (folder / "out/manifest.json").exists()


def test_shares_of_tokens_before_packing(folder):
    trained(folder / "tokenizer")
    tokenize = steps.Tokenize(tokenizer="tokenizer")
    mix = steps.Mix(weights={"web": 0.7, "code": 0.3}, size=500)
    plain = build(folder, tokenize, mix, output="plain")
    tokens = {source: amount.tokens for source, amount in plain.manifest.amounts().items()}
    assert tokens["web"] == pytest.approx(350, abs=15)
    assert tokens["code"] == pytest.approx(150, abs=15)
    packed = build(folder, tokenize, mix, steps.Pack(row_length=32), output="packed")
    for source in ("web", "code"):
        pack = packed.books[source][-1]
        assert pack.counters["tokens"] == tokens[source]
    twice = steps.Mix(weights={"web": 1, "code": 1}, size=1000, max_epochs=3)
    assert sum(shard.tokens for _, _, shard in build(folder, tokenize, twice, output="t").manifest.shards()) > 980


def test_only_what_is_for_training_is_mixed(folder):
    split = steps.Split(validation=0.3)
    mix = by_documents(size=60, weights={"web": 1, "code": 3}, max_epochs=9)
    before = build(folder, split, steps.Write(format="arrow"), output="before")
    after = build(folder, split, mix, steps.Write(format="arrow"), output="after")
    held = [Counter(record["text"] for record in result.dataset().split("validation")) for result in (before, after)]
    assert held[0] == held[1]
    train = Counter(record["text"].split()[0] for record in after.dataset().split("train"))
    assert train == {"web": 15, "code": 45}


def test_the_same_bytes_however_it_is_run(folder):
    hashes = set()
    runs = [{}, {"backend": "processes", "workers": 2}]
    for number, options in enumerate(runs):
        mix = by_documents(size=90, weights={"web": 2, "code": 1}, max_epochs=2)
        result = build(folder, mix, steps.Shuffle(), steps.Write(format="arrow"), output=f"out-{number}", **options)
        hashes.add(result.manifest.dataset_hash)
    assert len(hashes) == 1


def test_a_stopped_run_goes_on(folder, monkeypatch):
    import gristmill.pipeline.publishing.publish as publish

    mix = by_documents(size=40)
    with monkeypatch.context() as patched:
        patched.setattr(publish, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build(folder, mix)
    assert build(folder, mix).manifest.dataset_hash == build(folder, mix, output="fresh").manifest.dataset_hash


def test_wrong_recipes_are_refused_in_the_plan(folder):
    wrong = [
        ([steps.Mix(weights={"web": 1, "code": 1}, size=5)], "no tokens to count"),
        ([by_documents(size=5, weights={"web": 1})], "code has no weight"),
        ([by_documents(size=5, weights={"web": 1, "code": 1, "books": 1})], "books is not a source"),
        ([by_documents(size=5, by="rows"), steps.Pack(row_length=8)], "rows are made by pack"),
    ]
    sources = {name: steps.Read(read=f"{name}-*.jsonl") for name in ("web", "code")}
    for chosen, message in wrong:
        with pytest.raises(UsageError, match=message):
            gm.plan(gm.Recipe(sources=sources, steps=chosen, output="out", folder=str(folder)))
    own = {**sources, "web": gm.Source(sources["web"], [by_documents(size=5)])}
    with pytest.raises(UsageError, match="needs all sources"):
        gm.plan(gm.Recipe(sources=own, output="out", folder=str(folder)))
    for options in ({"size": 0}, {"by": "bytes"}, {"max_epochs": 0}, {"weights": {"web": -1}}, {"size": 2.5}):
        with pytest.raises(UsageError):
            by_documents(**{"size": 5, **options})


def test_from_a_recipe_file(folder):
    (folder / "recipe.yaml").write_text(
        "output: out\n"
        "sources: {web: {read: web-*.jsonl}, code: {read: code-*.jsonl}}\n"
        "steps:\n"
        "  - mix: {weights: {web: 0.7, code: 0.3}, by: documents, size: 10, max_epochs: 2}\n"
        "  - write: {format: jsonl}\n"
    )
    recipe = load_recipe(folder / "recipe.yaml")
    assert "mix" in str(gm.plan(recipe))
    found = texts(gm.run(recipe, backend="serial", progress=False))
    assert [found[name].total() for name in ("web", "code")] == [7, 3]


@settings(max_examples=200, deadline=None)
@given(
    weights=st.lists(st.floats(0.001, 10), min_size=1, max_size=8),
    size=st.integers(1, 10**12),
)
def test_shares_sum_to_the_size_and_are_less_than_one_away(weights, size):
    given_weights = {f"s{number}": weight for number, weight in enumerate(weights)}
    wanted = plan_shares(given_weights, dict.fromkeys(given_weights, 10**15), size=size, by="rows", max_epochs=1)
    assert sum(share.amount for share in wanted.values()) == size
    for name, weight in given_weights.items():
        assert abs(wanted[name].amount - size * weight / sum(weights)) < 1 + 1e-6 * size / 10**6


@settings(max_examples=200, deadline=None)
@given(amounts=st.lists(st.integers(0, 9), min_size=1, max_size=30), data=st.data())
def test_a_share_is_met_as_nearly_as_whole_records_allow(amounts, data):
    available = sum(amounts)
    amount = data.draw(st.integers(0, 3 * available)) if available else 0
    wanted = SourceShare(amount, available, 4 * available)
    reached = np.concatenate([[0], np.cumsum(amounts)])
    count = wanted.count_rows_to_take(reached)
    assert abs(reached[count] - wanted.rest) == np.abs(reached - wanted.rest).min()
    limited = SourceShare(amount, available, amount)
    assert reached[limited.count_rows_to_take(reached)] <= wanted.rest


def test_the_limit_on_epochs_is_the_number_that_was_written():
    assert plan_shares({"a": 1.0}, {"a": 100}, size=29, by="rows", max_epochs=0.29)["a"].limit == 29


def test_epochs_of_each_source(folder):
    result = build(folder, steps.Mix(epochs={"web": 1, "code": 2.5}, by="documents"), steps.Write(format="jsonl"))
    found = texts(result)
    assert [found[name].total() for name in ("web", "code")] == [60, 50]
    assert set(found["web"].values()) == {1}
    assert Counter(found["code"].values()) == {2: 10, 3: 10}


@pytest.mark.parametrize(
    "options", [{}, {"weights": {"web": 1}}, {"size": 3}, {"epochs": {"web": 1}, "weights": {"web": 1}, "size": 3}]
)
def test_weights_with_a_size_or_epochs(options):
    with pytest.raises(UsageError, match="mix needs weights and a size, or epochs"):
        steps.Mix(**options)


def test_sizes_with_a_unit_in_recipes(folder):
    (folder / "r.yaml").write_text(
        "output: out\nsources: {web: {read: 'web-*.jsonl'}}\n"
        "steps:\n- limit: {max_records: 1.5k}\n- mix: {weights: {web: 1}, size: 3M}\n- split: {validation: 2k}\n"
    )
    limit, mix, split = load_recipe(folder / "r.yaml").steps
    assert (limit.max_records, mix.size, split.validation) == (1500, 3_000_000, 2000)


def test_epochs_for_streams(folder):
    sources = {name: steps.Read(read=f"{name}-*.jsonl") for name in ("web", "code")}
    mixture = {"epochs": {"web": 1, "code": 2}}
    trained(folder / "tokenizer")
    chosen = [steps.Tokenize(tokenizer="tokenizer"), steps.Pack(row_length=32)]
    recipe = gm.Recipe(sources=sources, steps=chosen, output="out", folder=str(folder), mixture=mixture)
    result = run_recipe(recipe, RunOptions(backend="serial", progress=False))
    rows = {name: amount.rows for name, amount in result.manifest.amounts("train").items()}
    expected = {"web": rows["web"], "code": 2 * rows["code"]}
    assert result.manifest.mixture == expected
    for chosen_mixture in (None, mixture):
        stream = Stream(folder / "out", mixture=chosen_mixture)
        assert stream.order.mixture.draws_before(sum(expected.values())) == expected
    with pytest.raises(UsageError, match='mixture names "wob"'):
        gm.Recipe(sources=sources, output="out", mixture={"epochs": {"wob": 1}})
