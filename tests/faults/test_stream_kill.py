"""A trainer that is killed while it reads leaves nothing behind, and its last state goes on where it was."""

import json
import random
import signal

import pytest
from gristmill_testing.scripts import running, write
from gristmill_testing.streams import ids_of, write_packed
from gristmill_testing.watching import wait_until

from gristmill.stream import Stream
from gristmill.stream.torch import TorchLoader

SCRIPT = """
    import json, os, sys, warnings
    from torch.utils.data import DataLoader
    from gristmill.stream import Stream
    from gristmill.stream.torch import TorchDataset, TorchLoader

    folder, log, how = sys.argv[1:]
    stream = Stream(folder, seed=7)
    with open(log, "w") as lines:
        if how == "threads":
            loader = TorchLoader(stream, 4, num_threads=2)
            state_after = lambda batch: loader.state_dict()
        else:
            dataset = TorchDataset(stream, 4)
            loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
            state_after = dataset.state_after
        for batch in loader:
            lines.write(json.dumps([batch["input_ids"].tolist(), state_after(batch)]) + "\\n")
            lines.flush()
"""


@pytest.mark.parametrize("how", ["threads", "workers"])
def test_killed_while_reading(nothing_left, tmp_path, how):
    folder = write_packed(tmp_path / "out", {"web": [50] * 8})
    script = write(tmp_path / "train.py", SCRIPT)
    log = tmp_path / "log"
    with running(script, folder, log, how, folder=tmp_path) as process:
        enough = random.Random(how).randrange(10, 200)
        wait_until(lambda: log.exists() and log.read_bytes().count(b"\n") > enough, "some batches")
        process.send_signal(signal.SIGKILL)
        process.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    resumed = TorchLoader(Stream(folder, seed=7, rows=len(lines) * 4 + 100), 3)
    resumed.load_state_dict(lines[-1][1])
    read = [row for rows, _ in lines for row in rows] + ids_of(resumed)
    assert read == Stream(folder, seed=7).rows(0, len(read))["input_ids"].tolist()
    assert len(read) == len(lines) * 4 + 100
