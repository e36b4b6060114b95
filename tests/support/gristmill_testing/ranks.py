"""Scripts run by two real ranks."""

import json
import os
import socket
import subprocess
import sys
from typing import NamedTuple


class RankResult(NamedTuple):
    """What a rank came to."""

    returncode: int
    output: object
    """The last line that it printed, as JSON; None if it printed nothing."""
    errors: str


def run_ranks(script, *arguments, without=(), timeout=300):
    """Run `script` as two ranks on this machine; `without` names variables of their environment to leave out."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    for rank in range(2):
        given = {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": "2"}
        given |= {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, **{name: value for name, value in given.items() if name not in without}}
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", script, *map(str, arguments)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        ends = [rank.communicate(timeout=timeout) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [
        RankResult(rank.returncode, json.loads(output.splitlines()[-1]) if output.strip() else None, errors)
        for rank, (output, errors) in zip(ranks, ends, strict=True)
    ]
