"""A Ray cluster of three nodes with one CPU each, on this machine."""

import contextlib
import os
import signal
import uuid
from pathlib import Path

from gristmill_testing.buckets import CREDENTIALS

NODE_BYTES = 80 << 20
_MARK = "GRISTMILL_TEST_CLUSTER"


class RayNodes:
    """Starts and ends nodes. Drivers in other processes find the cluster by `environment`.

    `folder` is the working folder of the nodes: where `/proc/self/cwd` leads to there, and not here.
    """

    def __init__(self, folder):
        self.folder = folder
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ[_MARK] = uuid.uuid4().hex  # all processes of the nodes inherit it
        os.environ |= {**CREDENTIALS, "AWS_DEFAULT_REGION": "us-east-1"}  # nodes have credentials of their own
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "object_store_memory": NODE_BYTES, "include_dashboard": False}
        with contextlib.chdir(folder):
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._others = [self._add() for _ in range(2)]
        self.environment = {"RAY_ADDRESS": self._cluster.address}

    def _add(self):
        with contextlib.chdir(self.folder):
            return self._cluster.add_node(num_cpus=1, object_store_memory=NODE_BYTES)

    @property
    def removable(self):
        """The ids of all nodes but the head."""
        return [node.node_id for node in self._others]

    @property
    def all_nodes(self):
        """The ids of all nodes."""
        return [self._cluster.head_node.node_id, *self.removable]

    def remove(self, node_id):
        """End a node without a warning, as when a machine is lost."""
        node = self._others.pop(self.removable.index(node_id))
        self._cluster.remove_node(node, allow_graceful=False)

    def add_one(self):
        self._others.append(self._add())

    def close(self):
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def find_actors():
    """The processes of our actors, workers and agents, in the cluster of this process."""
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_actor = process.joinpath("cmdline").read_bytes().startswith(b"ray::ActorShell")
            if is_actor and mark in process.joinpath("environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def kill_worker(rng):
    """Kill one of the workers that are in the middle of a call, if there is any; returns whether it did."""
    busy = []
    for pid in find_actors():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::ActorShell.call"):
                busy.append(pid)
    if not busy:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(rng.choice(busy), signal.SIGKILL)
    return True
