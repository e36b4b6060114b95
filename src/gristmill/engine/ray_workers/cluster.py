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
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import ClusterError, UsageError
from gristmill.engine.ray_workers import actor_shell
from gristmill.engine.worker.recorder import EMPTY_NOTE

if TYPE_CHECKING:
    from collections.abc import Mapping

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
_CONNECT_SECONDS = 30.0
_QUIET_END = {"RAY_task_events_report_interval_ms": "0", "RAY_metrics_report_interval_ms": "86400000"}
"""What a driver tells the cluster of itself: nothing of its tasks, and its metrics once a day. At the exit Ray would
wait up to five seconds to tell them, and often crash meanwhile, in a thread that still counts (seen with Ray 2.60)."""
_HTTP2_SETTINGS = b"\4"
_HTTP2_HEADER_BYTES = 9
"""A frame begins with its length (3 bytes), its type, its flags and its stream (4 bytes)."""
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + _HTTP2_SETTINGS + bytes(5)
_GRACE_HELP = "run the driver on the cluster: ray job submit --address http://HEAD:8265 -- gristmill run ..."


def connect(address: str | None = None) -> None:
    """Connect to the cluster at an address, to that of `RAY_ADDRESS`, or to a running one; else start one here.

    A cluster that was running before is never shut down. One that is started here ends with this process.
    """
    ray = _import_ray()
    for candidate in (address, os.environ.get("RAY_ADDRESS") or None):
        if candidate is not None:
            _check_address(candidate)
    if ray.is_initialized():
        return
    _check_head(address if address not in (None, "auto") else os.environ.get("RAY_ADDRESS", ""))
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if is_main else None
    try:
        # A dashboard, and whether Ray reports its use to its makers, matter only to a cluster that is started here.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.update(_QUIET_END | os.environ)
        ray.init(address=address, include_dashboard=False, logging_level=logging.WARNING)
    except (ConnectionError, ValueError) as error:
        raise _make_silence_error(address or os.environ.get("RAY_ADDRESS", "the address found here"), error) from error
    finally:
        # Ray ends the process on SIGTERM without a chance to keep what is finished.
        if is_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _check_address(address: str) -> None:
    """Refuse what is no address of a cluster. Of others with `://` Ray would import the module that they name."""
    if address.lower().startswith("ray://"):
        raise UsageError(f"{address}: Ray Client ends its work when the connection breaks", help=_GRACE_HELP)
    if re.fullmatch(r"auto|local|[^\s/@]+:\d{1,5}", address) is None:
        raise UsageError(
            f'"{address}" is no address of a Ray cluster',
            help="write auto, local, or the host and port of its head, such as HOST:6379",
        )


def _check_head(address: str) -> None:
    """Refuse the address of a head that does not answer within `_CONNECT_SECONDS`: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host:
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS) as head:
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


def count_cpus() -> int:
    """Count the CPUs of the cluster, at least one. Connects if nobody has."""
    connect()
    return max(1, int(_import_ray().cluster_resources().get("CPU", 0)))


def list_nodes() -> dict[str, str]:
    """List the nodes that are alive and have CPUs: their ids and addresses."""
    nodes = _import_ray().nodes()
    return {
        node["NodeID"]: node["NodeManagerAddress"] for node in nodes if node["Alive"] and node["Resources"].get("CPU")
    }


def find_most_memory() -> int:
    """Find the memory of the node that has most of it, as Ray counts it: no worker can be given more."""
    nodes = _import_ray().nodes()
    return max((int(node["Resources"].get("memory", 0)) for node in nodes if node["Alive"]), default=0)


def describe_demand(num_cpus: float, num_bytes: int) -> str:
    """Describe what a worker needs and what the cluster has, for an error."""
    ray = _import_ray()
    total, free = ray.cluster_resources(), ray.available_resources()
    needed = f"{num_cpus:g} CPU" + (f" and {num_bytes >> 20:,} MiB of memory" if num_bytes else "")
    parts = [
        f"{free.get('CPU', 0):g} of {total.get('CPU', 0):g} CPUs",
        f"{int(free.get('memory', 0)) >> 20:,} of {int(total.get('memory', 0)) >> 20:,} MiB of memory",
    ]
    return f"a worker needs {needed}; free are {' and '.join(parts)}"


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
    """End an actor now, whatever it does."""
    _import_ray().kill(actor, no_restart=True)


@cache
def list_errors() -> Any:
    """Return Ray's module of exceptions."""
    return importlib.import_module("ray.exceptions")


@cache
def _import_ray() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # actors without GPUs keep their environment
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError('the backend "ray" needs Ray', help="pip install 'gristmill[ray]'") from error


@cache
def _make_actor_class() -> Any:
    ray = _import_ray()
    ray.cloudpickle.register_pickle_by_value(actor_shell)  # nodes may have another Gristmill, or none
    return ray.remote(actor_shell.ActorShell)
