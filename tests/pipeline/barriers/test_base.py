"""A new global step is a step file, a barrier file and one line in the table: nothing else has heard of this one."""

import json
from importlib import import_module

import pytest
from gristmill_testing.every_nth_barrier import EveryNthBarrier
from gristmill_testing.every_nth_step import EveryNth

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.core.step import GlobalStep
from gristmill.pipeline.barriers.base import BARRIERS, make_barrier
from gristmill.steps.sampling import FirstRecords

COUNTS = {"web-0": 120, "web-1": 80, "code-0": 50}


@pytest.fixture
def sources(tmp_path):
    for name, count in COUNTS.items():
        lines = [json.dumps({"text": f"{name} record {n}"}) for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return {name: steps.Read(read=str(tmp_path / f"{name}-*.jsonl")) for name in ("web", "code")}


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(BARRIERS, _name_class(EveryNth), _name_class(EveryNthBarrier))


def _name_class(kind):
    return f"{kind.__module__}.{kind.__qualname__}"


def expected_texts(n):
    return [f"{name} record {number}" for name, count in COUNTS.items() for number in range(count)][::n]


def texts(result):
    return [record["text"] for record in result.dataset()]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_toy_step_runs_from_recipe_to_shards(mill, sources, backend):
    recipe = mill.recipe(sources, [EveryNth(n=7), steps.Length(min_chars=3), steps.Write(format="jsonl")])
    result = mill.run(recipe, backend=backend, workers=2)
    assert sorted(texts(result)) == sorted(expected_texts(7))
    account = next(account for account in result.books["web"] if account.step == "every_nth")
    assert (account.records_in, account.records_out, account.dropped) == (200, 29, {"between": 171})


@pytest.mark.usefixtures("registered")
def test_toy_step_is_fingerprinted(mill, sources):
    assert not mill.run(mill.recipe(sources, [EveryNth(n=7), steps.Write(format="jsonl")])).was_up_to_date
    assert mill.run(mill.recipe(sources, [EveryNth(n=7), steps.Write(format="jsonl")])).was_up_to_date
    result = mill.run(mill.recipe(sources, [EveryNth(n=5), steps.Write(format="jsonl")]), update=True)
    assert sorted(texts(result)) == sorted(expected_texts(5))


def test_toy_step_is_planned_like_any_other(mill, sources):
    plan = str(gm.plan(mill.recipe(sources, [EveryNth(n=7), steps.Write(format="jsonl")])))
    assert "stage 1: read → every_nth" in plan
    assert "on disk until stage 2" in plan


def test_step_without_a_barrier_is_refused_before_any_work(mill, sources):
    with pytest.raises(UsageError, match="every_nth"):
        mill.run(mill.recipe(sources, [EveryNth(n=7), steps.Write(format="jsonl")]))
    assert not list(mill.output.glob(".gristmill/work/*"))


def test_a_subclass_has_the_barrier_of_its_base():
    assert _name_class(type(make_barrier(FirstRecords(max_records=3)))) == BARRIERS[_name_class(steps.Limit)]


def test_every_global_step_has_a_barrier():
    for home in BARRIERS:
        import_module(home.rpartition(".")[0])
    kinds = list(GlobalStep.__subclasses__())
    for kind in kinds:
        kinds += kind.__subclasses__()
    ours = [kind for kind in kinds if kind.__module__.startswith("gristmill.")]
    assert len(ours) >= len(BARRIERS)
    assert [kind for kind in ours if not BARRIERS.keys() & set(map(_name_class, kind.__mro__))] == []
