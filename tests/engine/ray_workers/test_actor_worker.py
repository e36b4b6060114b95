"""The parts of actors that need no cluster: what they describe, what the agent sees, and jobs in files."""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from gristmill_testing.watching import wait_until

from gristmill.core.errors import ClusterError, UsageError
from gristmill.engine.backend import WorkerSpec
from gristmill.engine.backends import ray
from gristmill.engine.ray_workers import actor_shell, cluster
from gristmill.engine.ray_workers.actor_worker import JobFile, NodeAgent
from gristmill.engine.worker import wire
from gristmill.engine.worker.job import Job
from gristmill.engine.worker.recorder import Recorder, create_recording
from gristmill.pipeline.planning.fingerprint import find_versions


def has_process(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def test_everything_that_shapes_bytes_is_compared():
    compared = actor_shell.describe_environment(cluster.COMPARED_PACKAGES)
    own = find_versions()
    assert {name: compared.get(name) for name in own if name != "gristmill"} == {
        name: version for name, version in own.items() if name != "gristmill"
    }
    assert len(compared["the code of gristmill"]) == 16


def test_the_shell_needs_only_the_standard_library():
    code = f"""
import sys
sys.modules["gristmill"] = None
exec(compile(open({actor_shell.__file__!r}).read(), "shell", "exec"))
assert describe_environment(["no-such-package"])["no-such-package"] == "not installed"
"""
    subprocess.run([sys.executable, "-I", "-c", code], check=True)


def test_the_code_of_the_package_decides_the_hash(tmp_path, monkeypatch):
    package = tmp_path / "fake_package_for_hashes"
    package.mkdir()
    (package / "__init__.py").write_text("a = 1")
    monkeypatch.syspath_prepend(tmp_path)
    before = actor_shell._hash_package(package.name)
    (package / "__init__.py").write_text("a = 2")
    assert actor_shell._hash_package(package.name) != before
    assert actor_shell._hash_package("no_such_package_at_all") == "not installed"


def test_a_call_that_is_asked_again_is_answered_once():
    class Server:
        def __init__(self):
            self.num_calls = 0

        def answer(self, message):
            self.num_calls += 1
            return message * self.num_calls

    shell = actor_shell.ActorShell()
    shell._server = Server()
    calls = [number.to_bytes(8) + b"ab" for number in range(20)]
    assert [shell.call(calls[0]), shell.call(calls[0]), shell.call(calls[1])] == [b"ab", b"ab", b"abab"]
    assert shell.call(calls[0]) == b"ab", "two chunks may be under way"
    for call in calls:
        shell.call(call)
    assert len(shell._answers) == actor_shell.KEPT_ANSWERS


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="recordings are opened through /proc")
def test_the_agent_tells_what_a_dead_worker_did_and_ends_its_children():
    recording = create_recording()
    Recorder(recording).note(1.0, 17, 4)
    Recorder(recording).note_counts(7, 512)
    agent = NodeAgent()

    def ask(verb, **request):
        return json.loads(agent.answer(json.dumps({"verb": verb, **request}).encode()))

    worker = subprocess.Popen(
        [sys.executable, "-c", "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        pass_fds=[recording],
    )
    with worker:
        child = int(worker.stdout.readline())
        assert ask("watch", pid=worker.pid, recording=recording)
        seen = ask("look", pids=[worker.pid, 999])[str(worker.pid)]
        assert seen["note"][1:] == [17, 4]
        assert seen["counts"] == {"records": 7, "bytes": 512}
        assert seen["memory_bytes"] > 0
        worker.kill()
    report = ask("end", pid=worker.pid)
    assert (report["item"], report["position"], report["out_of_memory"]) == (17, 4, False)
    os.close(recording)
    wait_until(lambda: not has_process(child), "the end of the worker's child", 10)
    assert not ask("watch", pid=worker.pid, recording=recording)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="recordings are opened through /proc")
def test_the_agent_ends_a_worker_that_is_stopped():
    """Ray's own kill is a message, which a stopped process does not read."""
    recording = create_recording()
    agent = NodeAgent()
    with subprocess.Popen(["sleep", "600"], start_new_session=True, pass_fds=[recording]) as worker:
        agent._watch(worker.pid, recording)
        worker.send_signal(signal.SIGSTOP)
        agent._end(worker.pid)
        assert worker.wait() == -signal.SIGKILL
    os.close(recording)


def test_a_job_in_a_file_is_checked(tmp_path):
    (tmp_path / "job").write_bytes(b"abc")
    sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert JobFile(tmp_path / "job", sha256).read() == b"abc"
    (tmp_path / "job").write_bytes(b"abd")
    with pytest.raises(ClusterError, match="not what the driver wrote"):
        JobFile(tmp_path / "job", sha256).read()


def test_messages_hold_whole_frames():
    frames = [wire.pack(wire.RESULTS, bytearray(50_000), chunk=3, last=False), wire.pack(wire.READY)]
    first, second = wire.unpack(b"".join(b"".join(segments) for segments in frames))
    assert (first.kind, first.chunk, first.last, len(first.load())) == (wire.RESULTS, 3, False, 50_000)
    assert second.kind == wire.READY


def test_modules_of_the_project_travel_with_the_job(tmp_path, monkeypatch):
    """A node's own copy is never imported."""
    (tmp_path / "project_module_of_this_test.py").write_text("FACTOR = 5\ndef multiply(n): return n * FACTOR\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("project_module_of_this_test")
    spec = WorkerSpec(Job(module.multiply), returns_unstarted=False)
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).function(3))"
    command = [sys.executable, "-c", code]
    try:
        found = subprocess.run(command, input=spec.pickled_job_with_modules, capture_output=True, check=True)
    finally:
        del sys.modules["project_module_of_this_test"]
    assert found.stdout.split() == [b"15"]


@pytest.mark.parametrize("named_by", ["argument", "environment", "auto"])
@pytest.mark.parametrize(
    ("answers", "reason"), [("refused", "refused"), ("never", "timed out"), ("silent", "timed out")]
)
def test_a_head_that_does_not_answer_is_an_error(monkeypatch, named_by, answers, reason):
    """Ray itself would try for minutes. A host that is gone and a queue that is full look the same: no answer.

    A head that hangs takes the connection and says nothing.
    """
    monkeypatch.setattr(cluster, "_import_ray", lambda: SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.socket() as head, socket.socket() as first, socket.socket() as second:
        head.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{head.getsockname()[1]}"
        if answers != "refused":
            head.listen(0 if answers == "never" else 8)
        for waiting in (first, second) if answers == "never" else ():
            waiting.setblocking(False)
            waiting.connect_ex(head.getsockname())
        if named_by != "argument":
            monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ClusterError, match=f"no Ray cluster answers at {address}: .*{reason}"):
            cluster.connect({"argument": address, "environment": None, "auto": "auto"}[named_by], connect_seconds=0.1)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_what_is_no_head_is_an_error(monkeypatch, answer):
    """The port of the dashboard, for example."""
    monkeypatch.setattr(cluster, "_import_ray", lambda: SimpleNamespace(is_initialized=lambda: False))

    def serve():
        connection, _ = server.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ClusterError, match="what answers there is not the head of a cluster"):
            cluster.connect(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


def test_settings_of_the_driver_leave_those_of_the_user(monkeypatch):
    """At the exit Ray would wait to tell what nobody asked for."""
    seen = []
    ray = SimpleNamespace(is_initialized=lambda: False, init=lambda **options: seen.append(dict(os.environ)))
    monkeypatch.setattr(cluster, "_import_ray", lambda: ray)
    monkeypatch.setattr(os, "environ", {"RAY_metrics_report_interval_ms": "500"})
    cluster.connect()
    assert seen == [
        {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_metrics_report_interval_ms": "500",
            "RAY_task_events_report_interval_ms": "0",
        }
    ]


def test_the_first_node_of_a_cluster_that_grows_is_waited_for(monkeypatch):
    """The autoscaler is asked for as many CPUs as there will be workers; the request ends with the wait."""
    asked, nodes = [], [{}, {}, {}, {"node": "address"}]
    sdk = pytest.importorskip("ray.autoscaler.sdk")
    monkeypatch.setattr(sdk, "request_resources", lambda *, num_cpus: asked.append(num_cpus))
    monkeypatch.setattr(cluster, "list_nodes", lambda: nodes.pop(0) if len(nodes) > 1 else nodes[0])
    monkeypatch.setattr(cluster, "sleep", lambda seconds: None)
    assert cluster.wait_for_first_node(None, 8) == 600, "workers wait as long: nodes may leave and come back"
    assert asked == [8, 0]
    assert cluster.wait_for_first_node(None, 8) == 60
    assert cluster.wait_for_first_node(900.0, 8) == 900
    assert asked == [8, 0]
    nodes[0] = {}
    with pytest.raises(ClusterError, match="was asked for 8 CPUs, and none has joined in 0 s"):
        cluster.wait_for_first_node(0.0, 8)
    assert asked == [8, 0, 8, 0]


def test_a_head_that_is_gone_is_told_once_with_how_to_resume(monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        context = SimpleNamespace(gcs_address=address)
        monkeypatch.setattr(cluster, "_import_ray", lambda: SimpleNamespace(get_runtime_context=lambda: context))
        monkeypatch.setattr(cluster, "connect", lambda address: None)
        backend = ray.RayBackend(ray.RaySettings())
        backend._look_for_head()
    assert caplog.messages == []
    for _ in range(3):
        backend._look_for_head()
    assert len(caplog.messages) == 1
    assert "the same command resumes" in caplog.messages[0]


def test_no_place_on_a_cluster_without_a_node_is_told_as_such(monkeypatch):
    resources = {"CPU": 2.0, "memory": 4 << 30}
    fake_ray = SimpleNamespace(cluster_resources=lambda: resources, available_resources=dict)
    monkeypatch.setattr(cluster, "_import_ray", lambda: fake_ray)
    for nodes, message in (
        ({}, "no node of the cluster is left, for 1 min 0 s"),
        ({"node": "address"}, "a worker needs 1 CPU and 5 MiB of memory; free are 0 of 2 CPUs and 0 of 4,096 MiB"),
    ):
        monkeypatch.setattr(cluster, "list_nodes", lambda nodes=nodes: nodes)
        error = cluster.make_placement_error(60, 1, 5 << 20)
        assert message in error.message
        assert "the same command resumes" in error.help


@pytest.mark.parametrize(
    ("working_dir", "path", "is_refused"),
    [
        ("gcs://_ray_pkg_12ab.zip", "/tmp/ray/session_1/working_dir_files/_ray_pkg_12ab/out/.gristmill/job-", True),
        ("gcs://_ray_pkg_12ab.zip", "/data/out/.gristmill/job-", False),
        ("gcs://_ray_pkg_12ab.zip", "s3://bucket/out/.gristmill/job-", False),
        ("/data", "/data/out/.gristmill/job-", False),
        (None, "/data/out/.gristmill/job-", False),
    ],
)
def test_an_output_in_the_copy_of_a_working_folder_is_refused(monkeypatch, working_dir, path, is_refused):
    context = SimpleNamespace(runtime_env={"working_dir": working_dir} if working_dir else {})
    monkeypatch.setattr(cluster, "_import_ray", lambda: SimpleNamespace(get_runtime_context=lambda: context))
    with pytest.raises(UsageError, match="the output would be in") if is_refused else nullcontext():
        cluster.check_output(path)
