"""Nodes of a Ray cluster on this machine, each with a memory of its own that Ray's memory monitor watches."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid

import pytest

from gristmill_testing import memory_groups
from gristmill_testing.ray_nodes import NODE_BYTES

_ENTER = """
echo $$ > "$0/cgroup.procs" && exec unshare --cgroup --mount sh -c '
    mount --bind "$0" "$1" && shift && exec "$@"
' "$0" "$@"
"""
"""Join the group, then see it as the root of all groups: the monitor reads the memory of the root."""


class LimitedNodes:
    """A cluster whose nodes start one by one. Drivers in other processes find it by `environment`."""

    def __init__(self, folder, stack):
        self._folder = folder
        self._stack = stack
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self._port = found.getsockname()[1]
        self._address = f"127.0.0.1:{self._port}"
        self.environment = {
            "RAY_ADDRESS": self._address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": uuid.uuid4().hex,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self._num_nodes = 0

    def add(self, num_bytes, threshold, num_cpus=2):
        """Start a node. Its workers are killed above this share of its memory."""
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            pytest.skip("only root may give a node a memory of its own")
        group = self._stack.enter_context(memory_groups.limited(num_bytes))
        self._stack.callback(end_members, group)
        words = ["--head", f"--port={self._port}", f"--temp-dir={self._folder}", "--include-dashboard=false"]
        if self._num_nodes:
            words = [f"--address={self._address}"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *words, "--node-ip-address=127.0.0.1"]
        root = "/sys/fs/cgroup/memory" if (group / "memory.limit_in_bytes").exists() else "/sys/fs/cgroup"
        options = [f"--num-cpus={num_cpus}", f"--object-store-memory={NODE_BYTES}"]
        started = subprocess.run(
            ["/bin/sh", "-c", _ENTER, group, root, *command, *options],
            env={
                **os.environ,
                **self.environment,
                "RAY_memory_monitor_refresh_ms": "50",
                "RAY_memory_usage_threshold": str(threshold),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert started.returncode == 0, started.stdout + started.stderr
        self._num_nodes += 1


def end_members(group):
    """Kill what runs in a group."""
    while pids := (group / "cgroup.procs").read_text().split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
