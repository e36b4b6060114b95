"""Outputs on a store whose driver is killed, and whose connections break: the same dataset, and no object left over."""

import json
import random
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest
from gristmill_testing.faulty_proxy import BROKEN, BUSY, CUT, LOST, RESET, SLOW, STALLED, FaultyProxy

import gristmill as gm
from gristmill import Recipe, steps
from gristmill.core.errors import RemoteStoreError, StoreRefusedError
from gristmill.storage.locations import StorePath
from gristmill.storage.stores import object_store, retries
from gristmill.storage.stores.open_store import forget_stores
from gristmill.storage.user_cache import choose_copies_folder

SCRIPT = """
import sys
from gristmill import Recipe, steps
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions

every_kind = [steps.Length(min_chars=10), steps.Deduplicate(), steps.Shuffle(), steps.Split(validation=0.1)]
recipe = Recipe(
    sources={"web": steps.Read(read=f"{sys.argv[1]}/*.jsonl")},
    steps=[*every_kind, steps.Write(format="jsonl")],
    output=sys.argv[2],
)
layout = UnitLayout(unit_bytes=200_000, min_group_bytes=50_000)
run_recipe(recipe, RunOptions(backend="processes", workers=2, progress=False, layout=layout))
"""


@pytest.fixture(autouse=True)
def copies(tmp_path):
    choose_copies_folder(tmp_path / "copies")
    yield
    choose_copies_folder(None)


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in range(6):
        records = [{"n": name * 250 + n, "text": f"text {n % 200} of {name} " * 15} for n in range(250)]
        (folder / f"{name:02d}.jsonl").write_text("\n".join(map(json.dumps, records)))
    return folder


def start(corpus, output, log):
    with log.open("wb") as errors:
        return subprocess.Popen([sys.executable, "-c", SCRIPT, str(corpus), output], stdout=errors, stderr=errors)


def list_objects(bucket, name):
    return {key for key in bucket.list_keys(f"{name}/") if "/.gristmill/lease/" not in key}


def describe(bucket, name):
    """What must not depend on kills: the shards, and how many objects there are of each kind."""
    dataset = gm.open_dataset(f"{bucket.url}/{name}")
    assert dataset.verify().problems == []
    hashes = [(split, shard.xxh3) for split, _, shard in dataset.manifest.shards()]
    return dataset.manifest.dataset_hash, hashes, len(list_objects(bucket, name))


@pytest.mark.parametrize("num_kills", [2, pytest.param(10, marks=pytest.mark.soak)])
def test_a_driver_that_is_killed_again_and_again(s3, corpus, tmp_path, num_kills):
    before = time.monotonic()
    assert start(corpus, f"{s3.url}/whole", tmp_path / "log").wait() == 0, (tmp_path / "log").read_text()
    seconds = time.monotonic() - before
    expected = describe(s3, "whole")
    rng = random.Random(7)
    for _ in range(num_kills):
        run = start(corpus, f"{s3.url}/killed", tmp_path / "log")
        time.sleep(seconds * rng.uniform(0.3, 0.95))
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert start(corpus, f"{s3.url}/killed", tmp_path / "log").wait() == 0, (tmp_path / "log").read_text()
    assert describe(s3, "killed") == expected
    assert s3.unfinished_uploads() == []


def make_recipe(corpus, output):
    read = steps.Read(read=f"{corpus}/*.jsonl")
    return Recipe(sources={"web": read}, steps=[steps.Length(min_chars=10), steps.Shuffle()], output=output)


@pytest.fixture
def proxy(seaweed, s3, monkeypatch):
    monkeypatch.setattr(retries.time, "sleep", lambda seconds: None)
    faulty = FaultyProxy(seaweed.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", faulty.endpoint)
    forget_stores()
    yield faulty
    faulty.close()


@pytest.mark.parametrize("fault", [RESET, CUT, BUSY, BROKEN, LOST, SLOW])
def test_every_third_request_fails(proxy, s3, corpus, tmp_path, fault):
    """`LOST` answers are the worst: the store has done what was asked, conditional writes included."""
    expected = gm.run(make_recipe(corpus, str(tmp_path / "local")), backend="serial", progress=False).manifest
    proxy.fault = lambda line, number: fault if number % 3 == 1 else None
    stored = gm.run(make_recipe(corpus, f"{s3.url}/out"), backend="serial", progress=False).manifest
    proxy.fault = lambda line, number: None
    assert stored.dataset_hash == expected.dataset_hash
    assert gm.open_dataset(f"{s3.url}/out").verify().problems == []
    named = {f"out/{file.path}" for file in stored.stored_files()}
    assert {key for key in list_objects(s3, "out") if "/shard-" in key} <= named


@pytest.mark.full
def test_an_answer_that_stops_in_the_middle_is_given_up(proxy, s3, monkeypatch):
    monkeypatch.setattr(object_store, "_SILENCE", timedelta(seconds=0.5))
    forget_stores()
    s3.put("x", b"0123456789" * 1000)
    stalled = []

    def stall_once(line, number):
        if line.startswith("GET") and not stalled:
            stalled.append(line)
            return STALLED
        return None

    proxy.fault = stall_once
    assert StorePath(f"{s3.url}/x").read_bytes() == b"0123456789" * 1000
    assert stalled


@pytest.mark.full
def test_a_store_that_goes_away_leaves_what_can_be_resumed(proxy, s3, corpus, tmp_path):
    proxy.fault = lambda line, number: BROKEN if line.startswith("PUT") and "/train/" in line else None
    with pytest.raises(RemoteStoreError, match="does not answer"):
        gm.run(make_recipe(corpus, f"{s3.url}/out"), backend="serial", progress=False)
    assert not [key for key in s3.list_keys() if key.endswith("manifest.json")]
    proxy.fault = lambda line, number: None
    stored = gm.run(make_recipe(corpus, f"{s3.url}/out"), backend="serial", progress=False).manifest
    local = gm.run(make_recipe(corpus, str(tmp_path / "local")), backend="serial", progress=False).manifest
    assert stored.dataset_hash == local.dataset_hash


def test_no_permission_to_write_is_said_at_once(proxy, s3, corpus):
    proxy.fault = lambda line, number: "denied" if line.startswith("PUT") else None
    with pytest.raises(StoreRefusedError, match=f"{s3.url}/out.*denied"):
        gm.run(make_recipe(corpus, f"{s3.url}/out"), backend="serial", progress=False)
    assert sum(line.startswith("PUT") for line in proxy.requests) == 1
