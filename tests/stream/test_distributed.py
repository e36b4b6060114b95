"""Real ranks: two processes of `torch.distributed` with gloo, and those who shard by themselves."""

import json
import os
import socket
import subprocess
import sys

import pytest
from gristmill_testing.streams import ids_of

from gristmill.stream import Stream
from gristmill.stream.torch import TorchDataset, TorchRows

TRAIN = """
import json, os, sys
import torch.distributed
from gristmill.stream import Stream
from gristmill.stream.torch import TorchLoader

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
del os.environ["RANK"], os.environ["WORLD_SIZE"]  # the process group is asked first
loader = TorchLoader(Stream(sys.argv[1], seed=7, epochs=1), 4)
assert loader.world_size == 2
rows = []
for batch in loader:
    torch.distributed.barrier()
    rows.append(batch["input_ids"][batch.row_mask].tolist())
states = [None, None]
torch.distributed.all_gather_object(states, loader.state_dict())
assert states[0] == states[1]
print(json.dumps(rows))
torch.distributed.destroy_process_group()
"""

ACCELERATE = """
import json, sys
from accelerate import Accelerator
from torch.utils.data import DataLoader
from gristmill.stream import Stream
from gristmill.stream.torch import TorchRows

accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == 2
loader = accelerator.prepare(DataLoader(TorchRows(Stream(sys.argv[1], seed=7, rows=48)), batch_size=4))
print(json.dumps([batch["input_ids"].tolist() for batch in loader]))
accelerator.end_training()
"""


def run_ranks(script, folder):
    """What each of two ranks has printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    for rank in range(2):
        environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", script, str(folder)],
                env={**os.environ, **environment, **address},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def test_two_ranks_of_a_process_group_read_every_row_once(packed, oracle):
    first, second = run_ranks(TRAIN, packed)
    assert len(first) == len(second) == 7
    assert [row for step in zip(first, second, strict=True) for batch in step for row in batch] == oracle[:53]


def test_accelerate_gives_every_row_once(packed, oracle):
    pytest.importorskip("accelerate")
    ranks = run_ranks(ACCELERATE, packed)
    assert sorted(row for rank in ranks for batch in rank for row in batch) == sorted(oracle[:48])


def test_transformers_trainer_takes_rows(packed, tmp_path):
    pytest.importorskip("accelerate")
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = []
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, input_ids, labels):
            self.seen += input_ids.tolist()
            return {"loss": self.weight.sum()}

    model = Model()
    options = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=8, num_train_epochs=1, report_to=[], use_cpu=True
    )
    Trainer(model=model, args=options, train_dataset=TorchRows(Stream(packed, epochs=1))).train()
    assert sorted(model.seen) == sorted(Stream(packed).rows(0, 53)["input_ids"].tolist())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchdata_resumes_as_it_was_and_refuses_other_workers(packed, oracle, num_workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make(num_workers):
        dataset = TorchDataset(Stream(packed, seed=7, rows=60), 4)
        return stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=num_workers)

    loader = make(num_workers)
    batches = iter(loader)
    read = [next(batches) for _ in range(5)]
    state = loader.state_dict()
    resumed = make(num_workers)
    resumed.load_state_dict(state)
    assert ids_of([*read, *resumed]) == oracle[:60]
    other = make(num_workers + 1)
    other.load_state_dict(state)
    with pytest.raises((AssertionError, ValueError), match=r"num_workers 2, not 3|multiprocess dataloader"):
        list(other)
