"""Servers for tests: processes that listen on free ports of this machine, and end with the test."""

import os
import socket
import subprocess
import time
from pathlib import Path


class ServerProcess:
    """A program that was started, and is there as soon as `is_ready` says so."""

    def __init__(self, arguments, is_ready, *, log=os.devnull, **options):
        with Path(log).open("wb") as output:
            self._process = subprocess.Popen(arguments, stdout=output, stderr=output, **options)
        try:
            while not is_ready():
                if self._process.poll() is not None:
                    raise RuntimeError(f"{arguments[0]} has ended: {Path(log).read_text()[-2000:]}")
                time.sleep(0.1)
        except BaseException:
            self.close()
            raise

    def close(self):
        self._process.kill()
        self._process.wait()


def find_free_ports(count):
    """Find ports that nobody listens on, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports
