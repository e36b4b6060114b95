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
from gristmill.pipeline.shares import Wanted, wanted_amounts
from gristmill.recipe.load import load_recipe
from gristmill.shards.verify import verify


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
    result = gm.run(recipe, **{"backend": "serial", "progress": False, **options})
    assert verify(folder / output)
    return result


def texts(result):
    found = {"web": Counter(), "code": Counter()}
    for record in result.dataset():
        found[record["text"].split()[0]][record["text"]] += 1
    return found


def account(result, source):
    [found] = [account for account in result.books[source] if account["step"] == "mix"]
    return found


def by_documents(**options):
    return steps.Mix(**{"weights": {"web": 0.75, "code": 0.25}, "by": "documents", **options})


def test_shares_of_documents(folder):
    result = build(folder, by_documents(size=40), steps.Write(format="jsonl"))
    found = texts(result)
    assert [found[name].total() for name in ("web", "code")] == [30, 10]
    assert max(found["web"].values()) == 1
    web = account(result, "web")
    assert (web["in"], web["created"], web["out"], web["dropped"]) == (60, 0, 30, {"not_chosen": 30})


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
    assert (code["in"], code["created"], code["out"]) == (20, 30, 50)
    copies = [record["text"] for record in result.dataset() if record["text"].startswith("code")]
    assert sorted(copies[:20]) == sorted(copies[20:40]) == sorted(found["code"])


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
    tokens = Counter()
    for _, source, shard in plain.manifest.shards():
        tokens[source] += shard.tokens
    assert tokens["web"] == pytest.approx(350, abs=15)
    assert tokens["code"] == pytest.approx(150, abs=15)
    packed = build(folder, tokenize, mix, steps.Pack(row_length=32), output="packed")
    for source in ("web", "code"):
        pack = packed.books[source][-1]
        assert pack["measures"]["tokens"] == tokens[source]
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
    import gristmill.pipeline.publish as publish

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
    with pytest.raises(UsageError, match="weighs all sources"):
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
    wanted = wanted_amounts(given_weights, dict.fromkeys(given_weights, 10**15), size=size, by="rows", max_epochs=1)
    assert sum(share.amount for share in wanted.values()) == size
    for name, weight in given_weights.items():
        assert abs(wanted[name].amount - size * weight / sum(weights)) < 1 + 1e-6 * size / 10**6


@settings(max_examples=200, deadline=None)
@given(amounts=st.lists(st.integers(0, 9), min_size=1, max_size=30), data=st.data())
def test_a_share_is_met_as_nearly_as_whole_records_allow(amounts, data):
    available = sum(amounts)
    amount = data.draw(st.integers(0, 3 * available)) if available else 0
    wanted = Wanted(amount, available, 4 * available)
    reached = np.concatenate([[0], np.cumsum(amounts)])
    count = wanted.cut(reached)
    assert abs(reached[count] - wanted.rest) == np.abs(reached - wanted.rest).min()
    limited = Wanted(amount, available, amount)
    assert reached[limited.cut(reached)] <= wanted.rest


def test_the_limit_on_epochs_is_the_number_that_was_written():
    assert wanted_amounts({"a": 1.0}, {"a": 100}, size=29, by="rows", max_epochs=0.29)["a"].limit == 29
