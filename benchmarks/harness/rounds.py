"""A contest held: all sides in turn, round after round, so that what disturbs the machine disturbs every side."""

from __future__ import annotations

import os
import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.harness.contest import OURS, Contest, Limit, Ratio, Setting, Side
from benchmarks.harness.environments import find_interpreter, variables_of
from benchmarks.harness.processes import SideError, run_side

if TYPE_CHECKING:
    from collections.abc import Callable


def hold(contest: Contest, setting: Setting, rounds: int | None, show: Callable[[str], None]) -> dict:
    """Run a contest and return its result as it is stored. A side that fails is noted, and the others go on."""
    load_before, outside = os.getloadavg()[0], psutil.cpu_percent(0.5) / 100
    sides = [side for side in contest.make_sides(setting) if setting.with_peers or side.environment == OURS]
    runs: dict[str, list[dict]] = {side.name: [] for side in sides}
    failures: dict[str, str] = {}
    for number in range(rounds or contest.rounds):
        for side in sides:
            if side.name in failures or number >= (side.max_rounds or number + 1):
                continue
            try:
                runs[side.name].append(_run(side, setting))
            except (SideError, OSError) as error:
                failures[side.name] = _without_folders(str(error), setting)
                show(f"  {side.name} failed: {error}")
            else:
                last = runs[side.name][-1]
                show(f"  {side.name}: {last['wall']:.2f} s, CPU {last['cpu']:.2f} s, {last['peak_mib']:.0f} MiB")
    return {
        "name": contest.name,
        "work": contest.work,
        "unit": contest.unit,
        "data": contest.data(setting),
        "load": {"start": round(load_before, 2), "end": round(os.getloadavg()[0], 2), "others": round(outside, 2)},
        "environments": sorted({side.environment for side in sides}),
        "runs": runs,
        "failures": failures,
        "claims": [
            judged if setting.scale == 1 else judged | {"outcome": ""}  # targets are for the sizes of the claims
            for claim in contest.claims
            if (judged := judge(claim, runs)) is not None
        ],
    }


def _run(side: Side, setting: Setting) -> dict:
    interpreter = find_interpreter(side.environment, setting.folder)
    shutil.rmtree(setting.output, ignore_errors=True)
    setting.output.mkdir(parents=True)
    if side.prepare:
        side.prepare()
    variables = {**variables_of(side.environment), **side.variables}
    run = run_side([interpreter, *side.command], variables).as_dict()
    return {"units": side.units} | {name: _round(value) for name, value in run.items()}


def judge(claim: Ratio | Limit, runs: dict[str, list[dict]]) -> dict | None:
    """Return what the runs say about a claim, or None where a side has not run.

    The value is that of the best runs: others on the machine only make a run slower. Low and high are the extremes of
    single rounds.
    """
    ours = runs.get(claim.side, [])
    if isinstance(claim, Limit):
        if not ours:
            return None
        values = [claim.value(run) for run in ours]
        met = None if claim.at_most is None else min(values) <= claim.at_most
        target = None if claim.at_most is None else f"at most {claim.at_most:g}"
        judged = {"what": claim.what, "side": claim.side, "unit": claim.unit, "value": min(values)}
    else:
        theirs = runs.get(claim.peer, [])
        if not ours or not theirs:
            return None
        costs, peer_costs = ([cost(run, claim.metric) for run in side_runs] for side_runs in (ours, theirs))
        values = [peer / own for own, peer in zip(costs, _repeated(peer_costs, len(costs)), strict=True)]
        met = None if claim.at_least is None else min(peer_costs) / min(costs) >= claim.at_least
        target = None if claim.at_least is None else f"at least {claim.at_least:g}"
        judged = {"peer": claim.peer, "side": claim.side, "metric": claim.metric}
        judged |= {"value": min(peer_costs) / min(costs), "ours": min(costs), "theirs": min(peer_costs)}
    judged |= {"median": statistics.median(values), "low": min(values), "high": max(values)}
    rounded = {name: _round(value) for name, value in judged.items()}
    return rounded | {"target": target, "outcome": {None: "", True: "met", False: "missed"}[met]}


def cost(run: dict, metric: str) -> float:
    """Return the seconds for one unit of work.

    >>> cost({"wall": 3.0, "cpu": 5.0, "units": 2.0}, "cpu")
    2.5
    """
    return run[metric] / run["units"]


def _without_folders(words: str, setting: Setting) -> str:
    """Result files are published: they name no folder of the machine that they were made on."""
    for folder in (setting.folder, Path.cwd(), Path.home()):
        words = words.replace(f"{folder}/", "")
    return words


def _repeated(values: list[float], count: int) -> list[float]:
    """A slow peer ran in fewer rounds: its last run stands for the missing ones."""
    return (values + [values[-1]] * count)[:count]


def _round(value: object) -> object:
    """Round to 5 digits. Not to a number of decimals: microseconds must not become 0, by which nothing can be divided.

    >>> _round(0.0000123456), _round(12.345678), _round("text")
    (1.2346e-05, 12.346, 'text')
    """
    return float(f"{value:.5g}") if isinstance(value, float) else value
