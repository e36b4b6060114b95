"""The cluster: how it is found or started, and how actors are made in it. The one door to Ray."""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
from functools import cache
from pathlib import Path, PurePath
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import ClusterError, UsageError, install_command
from gristmill.core.quantities import format_duration
from gristmill.engine.ray_workers import actor_shell
from gristmill.engine.worker.recorder import EMPTY_NOTE

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("gristmill")

COMPARED_PACKAGES = (
    "ray",
    "fastokens",
    "jinja2",
    "lz4",
    "msgspec",
    "numba",
    "numpy",
    "pyarrow",
    "tokenizers",
    "xxhash",
    "zstandard",
)
"""Packages that must have the same version on every node: they shape bytes, or carry them."""
PLACE_SECONDS = 60.0
"""How long workers wait for a place in a cluster that has nodes."""
_GROW_SECONDS = 600.0
"""How long a cluster without a node is waited for: it starts machines on demand."""
_LOOK_SECONDS = 1.0
_QUIET_END = {"RAY_task_events_report_interval_ms": "0", "RAY_metrics_report_interval_ms": "86400000"}
"""What a driver tells the cluster of itself: nothing of its tasks, and its metrics once a day. At the exit Ray would
wait up to five seconds to tell them, and often crash meanwhile, in a thread that still counts (seen with Ray 2.60)."""
_HTTP2_SETTINGS = b"\4"
_HTTP2_HEADER_BYTES = 9
"""A frame begins with its length (3 bytes), its type, its flags and its stream (4 bytes)."""
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + _HTTP2_SETTINGS + bytes(5)
_GRACE_HELP = "run the driver on the cluster: ray job submit --address http://HEAD:8265 -- gristmill run ..."


def connect(address: str | None = None, connect_seconds: float = 30.0) -> None:
    """Connect to the cluster at an address, to that of `RAY_ADDRESS`, or to a running one; else start one here.

    A cluster that was running before is never shut down. One that is started here ends with this process.
    """
    ray = _import_ray()
    for candidate in (address, os.environ.get("RAY_ADDRESS") or None):
        if candidate is not None:
            _check_address(candidate)
    if ray.is_initialized():
        return
    _check_head(address if address not in (None, "auto") else os.environ.get("RAY_ADDRESS", ""), connect_seconds)
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if is_main else None
    try:
        # A dashboard, and whether Ray reports its use to its makers, matter only to a cluster that is started here.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.update(_QUIET_END | os.environ)
        # What workers print stays in Ray's log on their node: here it would get between the lines of this process.
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, ValueError) as error:
        raise _make_silence_error(address or os.environ.get("RAY_ADDRESS", "the address found here"), error) from error
    finally:
        # Ray ends the process on SIGTERM without a chance to keep what is finished.
        if is_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _check_address(address: str) -> None:
    """Refuse anything that is not a cluster address. For other `scheme://` Ray imports a module of that name."""
    if address.lower().startswith("ray://"):
        raise UsageError(f"{address}: Ray Client ends its work when the connection breaks", help=_GRACE_HELP)
    if re.fullmatch(r"auto|local|[^\s/@]+:\d{1,5}", address) is None:
        raise UsageError(
            f'"{address}" is no address of a Ray cluster',
            help="write auto, local, or the host and port of its head, such as HOST:6379",
        )


def _check_head(address: str, seconds: float) -> None:
    """Refuse the address of a head that does not answer within some seconds: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host:
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds) as head:
            if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
                _greet_head(head)
    except (OSError, OverflowError) as error:
        raise _make_silence_error(address, error) from error


def _greet_head(head: socket.socket) -> None:
    """Begin a connection of HTTP/2, which Ray speaks, and raise `ConnectionError` unless the head does the same.

    A head that hangs takes connections and says nothing. The dashboard, whose port is often taken for the head's,
    answers in another protocol.
    """
    head.sendall(_HTTP2_GREETING)
    answer = b""
    while len(answer) < _HTTP2_HEADER_BYTES and (more := head.recv(_HTTP2_HEADER_BYTES - len(answer))):
        answer += more
    if answer[3:4] != _HTTP2_SETTINGS:
        raise ConnectionError("what answers there is not the head of a cluster")


def _make_silence_error(address: str, error: Exception) -> ClusterError:
    return ClusterError(
        f"no Ray cluster answers at {address}: {error}",
        help="ray status shows whether it runs; without an address a cluster is started on this machine",
    )


def check_output(path: object) -> None:
    """Refuse an output in the copy of a job's working folder: `ray job submit` makes it, and Ray removes it later."""
    working_dir = _import_ray().get_runtime_context().runtime_env.get("working_dir") or ""
    if "://" in working_dir and PurePath(working_dir).stem in PurePath(str(path)).parts:
        raise UsageError(
            f"the output would be in {Path.cwd()}, the copy of the working folder that Ray made for this job",
            help="name a folder that all nodes see, or a URL: --set output=s3://bucket/corpus",
        )


def wait_for_first_node(seconds: float | None, num_cpus: int) -> float:
    """Wait until a node has CPUs, and ask the autoscaler for some; return how long workers may wait for a place."""
    if list_nodes():
        return PLACE_SECONDS if seconds is None else seconds
    seconds = _GROW_SECONDS if seconds is None else seconds
    _log.warning("the cluster has no node with CPUs: waiting up to %s for the first one", format_duration(seconds))
    request_resources = importlib.import_module("ray.autoscaler.sdk").request_resources
    request_resources(num_cpus=num_cpus)
    try:
        deadline = monotonic() + seconds
        while not list_nodes():
            if monotonic() > deadline:
                raise ClusterError(
                    f"the cluster was asked for {num_cpus} CPUs, and none has joined in {format_duration(seconds)}",
                    help="ray status shows what its autoscaler does; run: {wait_for_nodes: 900} waits longer",
                )
            sleep(_LOOK_SECONDS)
    finally:
        request_resources(
            num_cpus=0
        )  # else it holds after this run; workers that wait for a place are asked for anyway
    return seconds


def count_cpus() -> int:
    """Count the CPUs of the cluster, at least one. Connects if that was not done, and waits for the first node."""
    connect()
    wait_for_first_node(None, 1)
    return max(1, int(_import_ray().cluster_resources().get("CPU", 0)))


def list_nodes() -> dict[str, str]:
    """List the nodes that are alive and have CPUs: their ids and addresses."""
    nodes = _import_ray().nodes()
    return {
        node["NodeID"]: node["NodeManagerAddress"] for node in nodes if node["Alive"] and node["Resources"].get("CPU")
    }


def has_head() -> bool:
    """Whether the head of the cluster can be reached. Ray's own calls would wait for it until they end all."""
    host, _, port = _import_ray().get_runtime_context().gcs_address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_LOOK_SECONDS).close()
    except OSError:
        return False
    return True


def find_most_memory() -> int:
    """Find the memory of the node that has most of it, as Ray counts it: no worker can be given more."""
    nodes = _import_ray().nodes()
    return max((int(node["Resources"].get("memory", 0)) for node in nodes if node["Alive"]), default=0)


def make_placement_error(seconds: float, num_cpus: float, num_bytes: int) -> ClusterError:
    """Make the error for workers that have found no place: it says what one needs and what the cluster has."""
    if not list_nodes():
        return ClusterError(
            f"no node of the cluster is left, for {format_duration(seconds)}: its head has ended, or Ray on all nodes",
            help="start the cluster again; then the same command resumes, finished work is kept",
        )
    ray = _import_ray()
    total, free = ray.cluster_resources(), ray.available_resources()
    needed = f"{num_cpus:g} CPU" + (f" and {num_bytes >> 20:,} MiB of memory" if num_bytes else "")
    parts = [
        f"{free.get('CPU', 0):g} of {total.get('CPU', 0):g} CPUs",
        f"{int(free.get('memory', 0)) >> 20:,} of {int(total.get('memory', 0)) >> 20:,} MiB of memory",
    ]
    return ClusterError(
        f"no worker could be placed for {format_duration(seconds)}: a worker needs {needed}; free are "
        f"{' and '.join(parts)}",
        help="ray status shows what the cluster is busy with; the same command resumes, and waits longer with "
        "run: {wait_for_nodes: 900} in the recipe",
    )


def start_actor(
    *, num_cpus: float, num_bytes: int, environment: Mapping[str, str], node: str | None, is_bound: bool
) -> Any:
    """Start an actor: anywhere, preferably on a node, or (bound) only there. Returns at once."""
    ray = _import_ray()
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    placed = strategies.NodeAffinitySchedulingStrategy(node, soft=not is_bound) if node is not None else "SPREAD"
    return (
        _make_actor_class()
        .options(
            num_cpus=num_cpus,
            memory=num_bytes or None,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=1,
            scheduling_strategy=placed,
            enable_task_events=False,
            runtime_env=ray.runtime_env.RuntimeEnv(env_vars=dict(environment)),
        )
        .remote()
    )


def make_description_request(serves: str) -> bytes:
    """Make the first message to an actor, which then answers with what is installed there."""
    request = {
        "serves": serves,
        "path": [os.path.abspath(entry) for entry in sys.path],  # noqa: PTH100
        "packages": COMPARED_PACKAGES,
        "recording": EMPTY_NOTE.hex(),
    }
    return json.dumps(request).encode()


@cache
def describe_own_environment() -> dict[str, str]:
    """Describe what is installed here, as actors do for their nodes."""
    return actor_shell.describe_environment(COMPARED_PACKAGES)


def check_environment(environment: Mapping[str, str], host: str) -> None:
    """Raise `ClusterError` for a node on which something else is installed."""
    own = describe_own_environment()
    differences = [
        f"{name} is {environment.get(name, 'unknown')} there and {version} here"
        for name, version in own.items()
        if environment.get(name) != version
    ]
    if differences:
        raise ClusterError(
            f"node {host} has another environment than the driver: {'; '.join(differences)}",
            help="install the same on all nodes: one image, `uv run` with a lock file, or a runtime_env",
        )


def kill_actor(actor: Any) -> None:
    """End an actor now, even if it is busy."""
    _import_ray().kill(actor, no_restart=True)


@cache
def list_errors() -> Any:
    """Return Ray's module of exceptions."""
    return importlib.import_module("ray.exceptions")


@cache
def _import_ray() -> Any:
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # else lines are held back, and printed after the end of a command
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # actors without GPUs keep their environment
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError('the backend "ray" needs Ray', help=install_command("ray")) from error


@cache
def _make_actor_class() -> Any:
    ray = _import_ray()
    ray.cloudpickle.register_pickle_by_value(actor_shell)  # nodes may have another Gristmill, or none
    return ray.remote(actor_shell.ActorShell)
