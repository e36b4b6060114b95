"""A real Ray cluster of three nodes with one CPU each: the same bytes as everywhere, whatever dies.

All tests of the cluster are in this file, because it starts slowly and they share it.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from gristmill_testing.golden_inputs import write_tokenizer
from gristmill_testing.ray_nodes import RayNodes, find_actors, kill_worker
from gristmill_testing.watching import wait_for_file, wait_until

import gristmill as gm
from gristmill import Recipe, steps
from gristmill.core.errors import ClusterError
from gristmill.engine.backends import ray as ray_backend
from gristmill.engine.parallel_run import make_pool
from gristmill.engine.ray_workers import cluster
from gristmill.engine.tasks import Task, run_tasks
from gristmill.pipeline.jobs.job_pool import open_job_pool
from gristmill.pipeline.jobs.mix_datasets import write_mix
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.report.write import load_report

pytest.importorskip("ray")

DRIVER = """
import sys
import gristmill as gm
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions

layout = UnitLayout(unit_bytes=60_000, min_group_bytes=20_000)
options = RunOptions(backend="ray", progress=False, events=gm.EventLog(sys.argv[2]), layout=layout)
run_recipe(gm.load_recipe(sys.argv[1]), options)
"""
HOLDING = """
import os, pathlib, sys, threading
from gristmill.pipeline.stages import runner

folder, driver, run_measured = pathlib.Path(sys.argv[2]).parent, os.getpid(), runner.run_measured

def run_held(function, task, context):
    import ray

    kind = "barrier" if "barriers" in function.__module__ else "stage"
    if os.getpid() != driver:
        folder.joinpath(kind, f"{ray.get_runtime_context().get_node_id()}-{os.getpid()}").touch()
        while not folder.joinpath(f"go-{kind}").exists():
            threading.Event().wait(0.01)
    return run_measured(function, task, context)

runner.run_measured = run_held
"""
"""Put before a driver: its tasks on the cluster tell where they run, and wait there until they are let go."""


@pytest.fixture(scope="session")
def nodes(tmp_path_factory):
    nodes = RayNodes(tmp_path_factory.mktemp("nodes"))
    yield nodes
    nodes.close()
    wait_until(lambda: not find_actors(), "the end of all actors", 10)


@pytest.fixture
def ray(nodes, monkeypatch):
    """The cluster, to which the environment leads."""
    monkeypatch.setenv("RAY_ADDRESS", nodes.environment["RAY_ADDRESS"])
    return nodes


def run(recipe, **options):
    layout = UnitLayout(
        unit_bytes=60_000,
        min_group_bytes=20_000,
        feed_bytes=60_000,  # so that several tasks go in one message
        messages_per_worker=1,
    )
    return run_recipe(recipe, RunOptions(**{"backend": "ray", "progress": False, "layout": layout} | options))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    words = [f"word{number}" for number in range(300)]
    rng = random.Random(3)
    for number in range(4):
        texts = [" ".join(rng.choices(words, k=40)) for _ in range(200)]
        texts[50:60] = texts[:10]
        texts[60:65] = [f"{text} again" for text in texts[10:15]]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    write_tokenizer(folder / "tokenizer")
    return folder


def make_recipe(corpus, output, folder, more=""):
    """Write a recipe with every kind of step: local ones for one source and for all, and every barrier."""
    path = folder / "recipe.yaml"
    path.write_text(f"""
output: {output}
sources:
  web: {{read: "{corpus}/[01].jsonl", steps: [length: {{min_chars: 20}}]}}
  books: {{read: "{corpus}/[23].jsonl"}}
steps:
  - length: {{min_chars: 10}}
  - deduplicate: {{partition_bytes: 16384}}  # several tasks, which therefore run on the cluster
  - deduplicate: {{kind: lines}}
  - limit: {{max_records: 350}}
  - shuffle: {{}}
  - split: {{validation: 20}}
  - tokenize: {{tokenizer: {corpus}/tokenizer}}
  - mix: {{weights: {{web: 0.5, books: 0.5}}, size: 5000}}
  - pack: {{row_length: 64}}
{more}""")
    return path


@pytest.fixture(scope="session")
def expected(corpus, tmp_path_factory):
    """The dataset as one process makes it."""
    folder = tmp_path_factory.mktemp("serial")
    layout = UnitLayout(unit_bytes=60_000, min_group_bytes=20_000)
    run(gm.load_recipe(make_recipe(corpus, folder / "out", folder)), backend="serial", layout=layout)
    return folder / "out"


def read_data(output):
    """All files but those that hold times, or the output's own path."""
    folders = ("train", "validation", "index", "tokenizer", "dropped", "quarantine")
    files = (path for folder in folders for path in (output / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(output)): path.read_bytes() for path in files}


def describe_shards(output):
    dataset = gm.open_dataset(output)
    assert dataset.verify().problems == []
    return dataset.manifest.dataset_hash, [(split, shard.xxh3) for split, _, shard in dataset.manifest.shards()]


def read_events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_parallel_map(ray):
    """Order, state of workers, exceptions, arrays that can be written, and no object of Ray's in between."""

    def function(n, state):
        if n == 3:
            raise KeyError("three")
        state.append(n)
        return np.full(10_000, n)

    results = gm.parallel_map(
        function, range(8), backend="ray", workers=2, setup=list, on_error="return", chunk_size=1, progress=False
    )
    assert results[3].error_type == "KeyError"
    assert "function" in results[3].traceback
    for n in (0, 1, 2, 4, 5, 6, 7):
        results[n] += 1
        assert (results[n] == n + 1).all()
    assert list(gm.parallel_imap(str, range(50), backend="ray", workers=1, progress=False)) == list(map(str, range(50)))


@pytest.mark.full
def test_items_that_kill_and_items_that_never_end(ray, tmp_path):
    """Both are found, by name; nobody else's result is lost. The last runs are alone, and on other nodes."""

    def function(n):
        if n == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if n == 4:
            threading.Event().wait()
        return n

    log = tmp_path / "events.jsonl"
    results = gm.parallel_map(
        function, range(6), backend="ray", workers=2, timeout=3, on_error="return", progress=gm.EventLog(log)
    )
    assert [results[n] for n in (0, 1, 3, 5)] == [0, 1, 3, 5]
    assert (results[2].kind, results[2].attempts) == ("worker_died", 6)
    assert results[4].kind == "timeout"
    deaths = [event for event in read_events(log) if event["event"] == "worker_died" and event["item"] == 2]
    assert len({event["node"] for event in deaths[-3:]}) > 1


def test_every_kind_of_step_on_a_disk(ray, corpus, expected, tmp_path):
    """With an address that is named: single tasks of barriers run in the driver all the same."""
    recipe = gm.load_recipe(make_recipe(corpus, tmp_path / "out", tmp_path))
    run(recipe, ray_address="auto")
    assert read_data(tmp_path / "out") == read_data(expected)
    assert describe_shards(tmp_path / "out") == describe_shards(expected)


@pytest.mark.full
def test_an_export(ray, expected, tmp_path, monkeypatch):
    """The same files from a relative path. The layout goes to the nodes as a file, of which nothing stays."""
    gm.export(expected, to="numpy", path=tmp_path / "serial" / "rows", backend="serial", progress=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_backend, "_MAX_MESSAGE_BYTES", 0)
    exported = gm.export(expected, to="numpy", path="ray/rows", backend="ray", workers=2, progress=False)
    assert sorted(exported.files) == sorted((tmp_path / "ray").iterdir())
    written = {path.name: path.read_bytes() for path in (tmp_path / "ray").iterdir()}
    assert written == {path.name: path.read_bytes() for path in (tmp_path / "serial").iterdir()}


@pytest.mark.full
def test_a_mix(ray, expected, tmp_path, monkeypatch):
    """The same shards from relative paths; nothing of the description of the tasks stays."""
    monkeypatch.chdir(expected.parent)
    monkeypatch.setattr(ray_backend, "_MAX_MESSAGE_BYTES", 0)
    for backend in ("serial", "ray"):
        given = {"a": (expected.name, 1), "b": (expected, 2)}
        options = {"size": 30, "by": "rows", "max_epochs": 2, "layout": UnitLayout(unit_bytes=20_000)}
        with open_job_pool(workers=2, backend=backend, ray_address=None, progress=False) as pool:
            write_mix(given, tmp_path / backend, pool, **options)
    assert describe_shards(tmp_path / "ray") == describe_shards(tmp_path / "serial")
    assert read_data(tmp_path / "ray") == read_data(tmp_path / "serial")
    assert not (tmp_path / "ray" / ".gristmill").exists()


@pytest.mark.full
def test_every_kind_of_step_on_a_store(ray, s3, corpus, expected, tmp_path):
    options = f"storage_options: {{endpoint: {os.environ['AWS_ENDPOINT_URL']}}}"
    recipe = make_recipe(corpus, f"{s3.url}/out", tmp_path, options)
    run(gm.load_recipe(recipe))
    assert describe_shards(f"{s3.url}/out") == describe_shards(expected)


@pytest.mark.full
def test_a_running_task_is_seen_with_its_counts_and_its_use(ray, corpus, tmp_path):
    """Counts of a task come with its result; until then the agent of the node tells how far it is."""

    def hold(record):
        if record["text"] == late:  # not in the sample of the plan
            wait_for_file(tmp_path / "release")
        return record

    def read_busy():
        for event in read_events(tmp_path / "log") if (tmp_path / "log").exists() else []:
            for worker in event["status"]["workers"] if event["event"] == "progress" else []:
                if worker["records"] and worker["cpu_share"] is not None:
                    return event["status"], worker
        return None

    late = json.loads((corpus / "0.jsonl").read_text().splitlines()[150])["text"]
    recipe = Recipe(
        sources={"web": steps.Read(read=f"{corpus}/0.jsonl")},
        steps=[steps.Map(call=hold), steps.Write(format="jsonl")],
        output=str(tmp_path / "out"),
    )
    options = {"backend": "ray", "workers": 1, "progress": False, "events": tmp_path / "log"}
    run = threading.Thread(target=gm.run, args=(recipe,), kwargs=options)
    run.start()
    try:
        status, worker = wait_until(read_busy, "a task with counts")
        assert (status["done"], status["counts"]["records"], worker["records"]) == (0, 200, 200)
        assert worker["task"] == f"{corpus}/0.jsonl, byte 0"
        assert worker["memory_bytes"] > 10 << 20
        assert worker["node"]
    finally:
        (tmp_path / "release").touch()
        run.join()
    [told] = [told for job in load_report(tmp_path / "out").run.jobs for told in job.workers if told.node]
    assert (told.name, told.node, told.tasks) == (worker["name"], worker["node"], 1)
    assert told.host == socket.gethostname()
    assert told.cpu_seconds > 0
    assert told.peak_bytes >= worker["memory_bytes"]
    assert f"{told.host} ({told.node[:8]})" in (tmp_path / "out/report.html").read_text()


@pytest.mark.parametrize("kind", ["worker_died", pytest.param("timeout", marks=pytest.mark.soak)])
def test_a_poison_record_is_found_and_quarantined(ray, corpus, tmp_path, kind):
    """It ends its worker, or it never ends."""

    def stop_at(record):
        if record["text"] == poison:
            if kind == "worker_died":
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()
        return record

    poison = json.loads((corpus / "0.jsonl").read_text().splitlines()[177])["text"]  # not in the sample of the plan
    result = run(
        Recipe(
            sources={"web": steps.Read(read=f"{corpus}/0.jsonl")},
            steps=[steps.Map(call=stop_at), steps.Write(format="jsonl")],
            output=str(tmp_path / "out"),
        ),
        workers=2,
        timeout=5 if kind == "timeout" else None,
    )
    assert result.manifest.quarantine.counts == {"web": {kind: 1}}
    assert result.manifest.environment_dependent


@pytest.mark.full
def test_code_of_functions_travels(ray, corpus, tmp_path, monkeypatch):
    """The node's file of the same name has other code, and the module that the driver's imports is missing there."""
    (tmp_path / "functions.py").write_text("import travelling\n\ndef mark(record): return travelling.mark(record)\n")
    (tmp_path / "travelling.py").write_text("def mark(record): return {**record, 'from': 'driver'}\n")
    (ray.folder / "functions.py").write_text("def mark(record): return {**record, 'from': 'node'}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    run(
        Recipe(
            sources={"web": steps.Read(read=f"{corpus}/0.jsonl")},
            steps=[steps.Map(call="/proc/self/cwd/functions.py:mark"), steps.Write(format="jsonl")],
            output=str(tmp_path / "out"),
        ),
        workers=1,
    )
    [shard] = (tmp_path / "out" / "train").rglob("*.jsonl")
    assert [json.loads(line)["from"] for line in shard.read_text().splitlines()] == ["driver"] * 200


def start_driver(ray, corpus, folder, code=DRIVER):
    recipe = make_recipe(corpus, folder / "out", folder)
    return start([sys.executable, "-c", code, str(recipe), str(folder / "events.jsonl")], ray, folder)


def start(command, ray, folder):
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, env={**os.environ, **ray.environment}, stdout=log, stderr=log)


def wait_for_event(folder, word, process):
    events = folder / "events.jsonl"

    def has_happened():
        assert process.poll() is None, (folder / "log").read_text()
        return events.exists() and word in events.read_text()

    wait_until(has_happened, word, 120)


def wait_for_held(folder, nodes, process):
    """Wait until a task is held on one of the nodes; returns the node and the process that runs it."""

    def find():
        assert process.poll() is None, (folder.parent / "log").read_text()
        held = (path.name.rsplit("-", 1) for path in folder.iterdir())
        return next(((node, int(pid)) for node, pid in held if node in nodes), None)

    return wait_until(find, f"a task in {folder.name}")


def split_by_job(events):
    """List the deaths of each job in order: the name of the job, and its deaths."""
    jobs = []
    for event in events:
        if event["event"] == "job_started":
            jobs.append((event["job"], []))
        if event["event"] == "worker_died":
            jobs[-1][1].append(event)
    return jobs


@pytest.fixture
def same_handler():
    """Puts back the handler of SIGTERM, which Ray replaces when the test adds a node to its cluster."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.full
@pytest.mark.usefixtures("same_handler")
def test_a_worker_and_a_node_are_lost_in_the_middle_of_their_tasks(ray, corpus, expected, tmp_path):
    """A worker is killed in the first stage, and a node in the middle of dedup. Another node joins. Nobody is blamed.

    Tasks wait inside of their workers, so both are lost with a task.
    """
    for kind in ("stage", "barrier"):
        (tmp_path / kind).mkdir()
    driver = start_driver(ray, corpus, tmp_path, HOLDING + DRIVER)
    _, killed = wait_for_held(tmp_path / "stage", ray.all_nodes, driver)
    os.kill(killed, signal.SIGKILL)
    (tmp_path / "go-stage").touch()
    lost_node, lost = wait_for_held(tmp_path / "barrier", ray.removable, driver)
    ray.remove(lost_node)
    wait_for_event(tmp_path, "was lost with its node", driver)
    ray.add_one()
    (tmp_path / "go-barrier").touch()
    assert driver.wait(timeout=180) == 0, (tmp_path / "log").read_text()
    assert describe_shards(tmp_path / "out") == describe_shards(expected)
    events = read_events(tmp_path / "events.jsonl")
    [(first_job, [crash]), (second_job, [loss])] = [job for job in split_by_job(events) if job[1]]
    assert first_job == "stage 1 of 7"
    assert (crash["cause"], crash["item"] >= 0) == ("died", True)
    assert crash["worker"].endswith(f"process {killed})")
    assert second_job.startswith("deduplicate: ")
    assert (loss["cause"], loss["node"]) == ("was lost with its node", lost_node)
    assert loss["worker"].endswith(f"process {lost})")
    assert {event["event"] for event in events}.isdisjoint({"item_retried", "item_failed", "isolated_run"})
    assert gm.open_dataset(tmp_path / "out").manifest.quarantine.counts == {}


@pytest.mark.full
def test_a_driver_that_is_killed(ray, corpus, expected, tmp_path):
    """Its actors end within five seconds, and the same command finishes the job."""
    driver = start_driver(ray, corpus, tmp_path)
    wait_for_event(tmp_path, "worker_ready", driver)
    driver.kill()
    driver.wait()
    wait_until(lambda: not find_actors(), "the end of the actors", 5)
    (tmp_path / "events.jsonl").unlink()
    driver = start_driver(ray, corpus, tmp_path)
    assert driver.wait(timeout=180) == 0, (tmp_path / "log").read_text()
    assert describe_shards(tmp_path / "out") == describe_shards(expected)


@pytest.mark.full
def test_json_is_one_object_whatever_dies(ray, corpus, tmp_path):
    """Ray tells of a dead worker, and of what it printed, in a thread of the driver."""
    (tmp_path / "functions.py").write_text(f"""
import os, pathlib, signal

def die_once(record):
    print("a word of a worker", flush=True)
    died = pathlib.Path({str(tmp_path)!r}, "died")
    if os.environ.get("RAY_JOB_ID") and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return record
""")
    (tmp_path / "recipe.yaml").write_text(
        f"output: out\nsources: {{a: {{read: '{corpus}/0.jsonl'}}}}\n"
        "steps:\n  - map: {call: functions.py:die_once}\n  - write: {format: jsonl}\n"
    )
    command = [sys.executable, "-m", "gristmill", "run", "recipe.yaml", "--backend", "ray", "--json"]
    environment = {**os.environ, **ray.environment}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == {"train": 200}
    assert (tmp_path / "died").exists()


@pytest.mark.parametrize("signal_number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_driver_that_is_interrupted(ray, corpus, tmp_path, signal_number):
    """What was finished before has its receipt; the actors end."""
    recipe = make_recipe(corpus, tmp_path / "out", tmp_path)
    events = tmp_path / "events.jsonl"
    command = [sys.executable, "-m", "gristmill", "run", str(recipe), "--backend", "ray", "--events", str(events)]
    driver = start(command, ray, tmp_path)
    receipts = tmp_path / "out" / ".gristmill" / "receipts.jsonl"
    wait_until(lambda: (receipts.exists() and receipts.stat().st_size) or driver.poll() is not None, "a receipt", 120)
    driver.send_signal(signal_number)
    assert driver.wait(timeout=30) == 128 + signal_number, (tmp_path / "log").read_text()
    wait_until(lambda: not find_actors(), "the end of the actors", 5)
    assert "to resume" in (tmp_path / "log").read_text()
    assert all("fingerprint" in json.loads(line) for line in receipts.read_text().splitlines())


@pytest.mark.full
def test_other_versions_on_a_node_stop_the_run(ray, monkeypatch):
    own = cluster.describe_own_environment()
    monkeypatch.setattr(cluster, "describe_own_environment", lambda: {**own, "numpy": "0.1"})
    with pytest.raises(ClusterError, match=r"numpy is .* there and 0\.1 here"):
        gm.parallel_map(str, range(3), backend="ray", workers=1, progress=False)


def test_no_room_for_a_worker(ray):
    """The error says what a worker needs, and what is free."""
    pool = make_pool("ray", settings=ray_backend.RaySettings(worker_bytes=1 << 40, wait_seconds=2.0))
    tasks = run_tasks(lambda task, context: 1, [Task("one", 1)], backend="ray", workers=1, pool=pool, progress=False)
    with pytest.raises(ClusterError, match=r"a worker needs 1 CPU and 1,048,576 MiB of memory; free are"):
        list(tasks)


@pytest.mark.full
def test_jobs_of_fewer_and_fewer_workers_than_were_asked_for(ray):
    """There are three CPUs. Workers of the first job that were never placed do not stand in the way of later ones."""
    with make_pool("ray", keeps_workers=True, settings=ray_backend.RaySettings()) as pool:
        for num_workers, runs_user_code in ((8, False), (5, False), (7, True), (2, False), (1, True)):
            tasks = [Task(str(number), number) for number in range(num_workers)]
            results = run_tasks(
                lambda task, context: task.payload,
                tasks,
                backend="ray",
                workers=num_workers,
                pool=pool,
                runs_user_code=runs_user_code,
                progress=False,
            )
            assert sorted(result for _, result in results) == list(range(num_workers))


@pytest.mark.slow
def test_the_command_of_the_guide_submits_a_job(corpus, tmp_path):
    """To a cluster with a dashboard. A relative output would land in a folder of Ray's."""
    pytest.importorskip("aiohttp_cors", reason="ray[default] is not installed")
    with socket.socket() as first, socket.socket() as second:
        for held in (first, second):
            held.bind(("127.0.0.1", 0))
        port, dashboard_port = first.getsockname()[1], second.getsockname()[1]
    (tmp_path / "recipe.yaml").write_text(
        f"output: out\nsources: {{a: {{read: '{corpus}/0.jsonl'}}}}\nsteps: [write: {{format: jsonl}}]\n"
    )
    ray = os.path.join(os.path.dirname(sys.executable), "ray")
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "PATH": f"{os.path.dirname(ray)}:{os.environ['PATH']}"}
    environment.pop("RAY_ADDRESS", None)
    head = [ray, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=1"]
    head += ["--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}", f"--object-store-memory={80 << 20}"]
    submit = [ray, "job", "submit", "--address", f"http://127.0.0.1:{dashboard_port}", "--working-dir", str(tmp_path)]
    submit += ["--", "gristmill", "run", "recipe.yaml", "--backend", "ray"]

    def run(*words):
        return subprocess.run([*submit, *words], env=environment, capture_output=True, text=True, timeout=120)

    with (
        (tmp_path / "head.log").open("w") as log,
        subprocess.Popen(head, env=environment, stdout=log, stderr=log) as head,
    ):
        try:
            wait_until(lambda: "Ray runtime started" in (tmp_path / "head.log").read_text(), "the head", 60)
            assert "the copy of the working folder that Ray made" in run().stdout
            done = run("--set", f"output={tmp_path}/dataset")
            assert done.returncode == 0, done.stdout + done.stderr
        finally:
            head.terminate()
    assert len(gm.open_dataset(tmp_path / "dataset")) == 200


def test_ray_client_is_refused(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(gm.errors.UsageError, match="ray job submit"):
        gm.parallel_map(str, range(3), backend="ray", progress=False)


@pytest.mark.parametrize("address", ["RAY://head:10001", "antigravity://head", "http://head:8265", "head", "a b:1"])
def test_what_is_no_address_is_refused(monkeypatch, address):
    """Ray would import the module that an address with :// names."""
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(gm.errors.UsageError, match=r"Ray C|is no address of a Ray cluster"):
        gm.parallel_map(str, range(3), backend="ray", progress=False)


@pytest.mark.soak
def test_a_worker_is_killed_every_second_for_a_minute(ray, corpus, tmp_path):
    """One of those that are busy, those that are alone included."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02d}.jsonl").write_text((corpus / f"{number % 4}.jsonl").read_text())

    def make(output):
        return Recipe(
            sources={"web": steps.Read(read=f"{folder}/*.jsonl")},
            steps=[steps.Map(call=slow_down), steps.Write(format="jsonl")],
            output=str(output),
        )

    def slow_down(record, path=str(tmp_path / "slow")):
        if os.path.exists(path):
            threading.Event().wait(0.005)
        return record

    run(make(tmp_path / "whole"), backend="serial")
    (tmp_path / "slow").touch()
    stop = threading.Event()
    rng = random.Random(4)
    num_kills = 0

    def kill():
        nonlocal num_kills
        for _ in range(60):
            if stop.wait(1.0):
                return
            num_kills += kill_worker(rng)
        (tmp_path / "slow").unlink()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run(make(tmp_path / "out"))
    finally:
        stop.set()
        killer.join()
    assert num_kills > 5
    assert read_data(tmp_path / "whole") == read_data(tmp_path / "out")
    assert gm.open_dataset(tmp_path / "out").manifest.quarantine.counts == {}


@pytest.mark.soak
def test_a_driver_that_is_killed_at_ten_random_moments(ray, s3, corpus, expected, tmp_path):
    """On a store: the same shards, and no object left over."""
    options = f"storage_options: {{endpoint: {os.environ['AWS_ENDPOINT_URL']}}}"
    rng = random.Random(11)
    command = [sys.executable, "-c", DRIVER, "", str(tmp_path / "events.jsonl")]
    num_kills = num_finished = 0
    while num_kills < 10:
        output = f"{s3.url}/{num_finished}"
        command[3] = str(make_recipe(corpus, output, tmp_path, options))
        driver = start(command, ray, tmp_path)
        try:
            assert driver.wait(rng.uniform(3, 12)) == 0, (tmp_path / "log").read_text()
            num_finished += 1  # the next one begins another output
            assert describe_shards(output) == describe_shards(expected)
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()
            num_kills += 1
            wait_until(lambda: not find_actors(), "the end of the actors", 5)
    driver = start(command, ray, tmp_path)
    assert driver.wait(timeout=300) == 0, (tmp_path / "log").read_text()
    last = f"{s3.url}/{num_finished}"
    assert describe_shards(last) == describe_shards(expected)
    whole = make_recipe(corpus, f"{s3.url}/whole", tmp_path, options)
    run(gm.load_recipe(whole), backend="processes", workers=2)
    objects = [
        sorted(len(key.split("/")) for key in s3.list_keys(f"{name}/") if "/lease/" not in key)
        for name in (str(num_finished), "whole")
    ]
    assert objects[0] == objects[1]
    assert s3.unfinished_uploads() == []
