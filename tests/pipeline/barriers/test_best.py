"""`keep_best` and `cap`: what a sort of everything in memory would keep, whatever the partitions, units and workers."""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.pipeline.barriers.best import (
    RANKED,
    add_up_ends,
    choose_best,
    choose_cuts,
    count_ends,
    rank_unit,
    scatter_ranked,
)
from gristmill.pipeline.barriers.exchange import Part, Partition
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.shards.verify import verify

HOSTS = ("a.org", "b.org", "c.org")


@dataclass
class Arrays:
    """Records by partition, in memory."""

    partitions: list[Any]

    def gather(self, number, count):
        return np.concatenate(self.partitions[number : number + count])


def keep_in_memory(step, groups, keys, amounts):
    """Sort everything, and keep a beginning of each group."""
    kept = set()
    for group in set(groups):
        members = sorted((keys[n], n) for n in range(len(keys)) if groups[n] == group)
        total = 0
        for rank, (_, number) in enumerate(members):
            total += amounts[number]
            sizes = np.array([len(members)])
            if group == 0 or step.find_kept(np.array([rank]), np.array([total]), sizes)[0]:
                kept.add(number)
    return kept


@settings(max_examples=60, deadline=None)
@given(
    units=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(1, 5)), max_size=12),
        min_size=1,
        max_size=5,
    ),
    num_partitions=st.integers(1, 9),
    step=st.sampled_from(
        [
            steps.KeepBest(by="n", share=0.3),
            steps.KeepBest(by="n", count=3),
            steps.KeepBest(by="n", tokens=9),
            steps.Cap(by="url", max=2),
        ]
    ),
)
def test_any_partitions_keep_what_a_sort_of_everything_keeps(units, num_partitions, step):
    starts = np.cumsum([0, *map(len, units)])
    files, samples = [], []
    for unit in units:
        rows = [(group, key, number, amount) for number, (group, key, amount) in enumerate(unit)]
        ranked = np.sort(np.array(rows, RANKED), order=["group", "key", "number"])
        files.append(ranked)
        samples.append([value for name in ("group", "key", "number") for value in ranked[name].tolist()])
    cuts = choose_cuts(samples, starts, num_partitions)
    scattered = [np.empty(0, RANKED) for _ in range(len(cuts) + 1)]
    for number, ranked in enumerate(files):
        read = Partition(Part(number), {"ranked": Arrays([np.empty(0, RANKED)] * number + [ranked.copy()])})
        records, partitions = scatter_ranked(cuts, starts, read)["ranked"]
        for place in range(len(scattered)):
            scattered[place] = np.concatenate([scattered[place], records[partitions == place]])
    reads = {"ranked": Arrays(scattered)}
    ends = [count_ends(Partition(Part(number), reads))["ends"].tolist() for number in range(len(scattered))]
    before, sizes = add_up_ends(ends)
    removed = set()
    for number in range(len(scattered)):
        rows, owners = choose_best(step, starts, before, sizes, [], Partition(Part(number), reads))["removed"]
        removed |= {int(starts[owner]) + int(row) for row, owner in zip(rows["row"], owners, strict=True)}
    groups, keys, amounts = zip(*(each for unit in units for each in unit), strict=True) if starts[-1] else ((), (), ())
    assert set(range(int(starts[-1]))) - removed == keep_in_memory(step, groups, keys, amounts)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(3)
    for name, count in (("web", 90), ("code", 40)):
        for file in range(2):
            with (tmp_path / f"{name}-{file}.jsonl").open("w") as lines:
                for number in range(count):
                    record = {
                        "text": f"{name} {file} {number}",
                        "url": f"https://{HOSTS[number % 3]}/{number}",
                        "score": None if number % 10 == 9 else round(float(rng.random()), 1),
                    }
                    lines.write(json.dumps(record) + "\n")
    return tmp_path


def build(folder, *chosen, output="out", **options):
    sources = {name: steps.Read(read=f"{name}-*.jsonl") for name in ("web", "code")}
    recipe = gm.Recipe(sources=sources, steps=[*chosen, steps.Write(format="jsonl")], output=output, folder=str(folder))
    result = run_recipe(recipe, RunOptions(**{"backend": "serial", "progress": False, **options}))
    assert verify(folder / output)
    return result


def read_bytes(folder, output):
    paths = sorted((folder / output / "train").rglob("*.jsonl"))
    return {str(path.relative_to(folder / output)): path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    "step",
    [
        steps.KeepBest(by="score", share=0.1),
        steps.KeepBest(by="score", count=7, per="source", order="lowest"),
        steps.KeepBest(by="score", share=0.2, per="url"),
        steps.Cap(by="host", max=11),
        steps.Cap(by="host", max=5, keep="best", score="score"),
    ],
)
def test_the_same_bytes_in_any_cut_and_as_in_memory(folder, step):
    build(folder, step, output="whole")
    expected = read_bytes(folder, "whole")
    for number, options in enumerate(({"backend": "serial"}, {"backend": "threads", "workers": 2})):
        build(
            folder,
            step,
            output=f"cut{number}",
            **options,
            layout=UnitLayout(unit_bytes=2000, cell_bytes=500, min_group_bytes=1, bucket_bytes=1500),
        )
        found = b"".join(content for _, content in sorted(read_bytes(folder, f"cut{number}").items()))
        assert found == b"".join(content for _, content in sorted(expected.items()))
    assert sum(content.count(b"\n") for content in expected.values()) < 260


def test_share_of_each_source_and_ties_by_position(folder):
    result = build(folder, steps.KeepBest(by="score", share=0.1, per="source"))
    records = [record["text"].split() for record in result.dataset()]
    assert Counter(record[0] for record in records) == {"web": 18, "code": 8}
    [account] = [account for account in result.books["web"] if account.step == "keep_best"]
    assert account.dropped == {"not_best": 162}


def test_at_most_so_many_of_each_host_and_the_first_of_them(folder):
    result = build(folder, steps.Cap(by="host", max=4))
    records = [(record["text"].split(), record["url"].split("/")[2]) for record in result.dataset()]
    assert Counter(host for _, host in records) == dict.fromkeys(HOSTS, 4)
    assert {(words[0], words[1]) for words, _ in records} == {("code", "0")}, "the first by source, file and position"
    assert {int(words[2]) for words, _ in records} == set(range(12))


def test_held_out_records_stay(folder):
    result = build(folder, steps.Split(validation=20), steps.KeepBest(by="score", count=1))
    splits = {
        name: sum(shard.rows for lane in lanes.values() for shard in lane)
        for name, lanes in result.manifest.splits.items()
    }
    assert splits == {"train": 1, "validation": 20}


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: steps.KeepBest(by="score"), "needs one of share, count and tokens"),
        (lambda: steps.KeepBest(by="score", share=0.1, count=3), "share and count"),
        (lambda: steps.KeepBest(by="score", share=1.5), "at most 1"),
        (lambda: steps.Cap(by="host", max=0), "max"),
        (lambda: steps.Cap(by="host", max=3, keep="best"), "belong together"),
    ],
)
def test_what_is_not_clear_is_refused(make, problem):
    with pytest.raises(UsageError, match=problem):
        make()


def test_a_column_without_numbers_is_refused_by_the_plan(folder):
    with pytest.raises(UsageError, match='needs a column of numbers, and "url" is'):
        build(folder, steps.KeepBest(by="url", count=3))


def test_units_are_ranked_without_a_work_folder():
    assert rank_unit(steps.KeepBest(by="n", count=1), Partition(Part(0), {}, root="none"))["samples"] == []


@pytest.mark.parametrize(("order", "worst"), [("highest", min), ("lowest", max)])
def test_the_manifest_has_the_histogram_with_the_cut(folder, order, worst):
    result = build(folder, steps.KeepBest(by="score", share=0.25, order=order))
    [best] = result.manifest.best
    kept = [record["score"] for record in result.dataset()]
    files = [path.read_text().splitlines() for path in folder.glob("*.jsonl")]
    values = [value for lines in files for line in lines if (value := json.loads(line)["score"]) is not None]
    assert best.threshold == worst(kept)
    bars = [0, *np.searchsorted(best.borders, values, side="right"), len(best.borders)]
    assert (np.add(best.kept, best.dropped) == np.bincount(bars) - np.bincount([0, len(best.borders)])).all()
    assert sum(best.kept) == len(kept) == 65
    page = (folder / "out/report.html").read_text()
    assert "Best by score" in page
    assert f"The cut: {best.threshold:g}" in page
    build(folder, steps.Cap(by="host", max=2), output="capped")
    assert "Best by" not in (folder / "capped/report.html").read_text()


def test_the_histogram_is_the_same_for_any_units(folder):
    step = steps.KeepBest(by="score", share=0.25, per="source")
    whole = build(folder, step).manifest.best
    layout = UnitLayout(unit_bytes=3000, cell_bytes=500, bucket_bytes=500)
    assert build(folder, step, output="small", layout=layout).manifest.best[0].threshold == whole[0].threshold
