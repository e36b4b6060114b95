"""Those who share out batches among ranks: each row once over two real ranks, or an error before the first batch."""

import json
import warnings
from itertools import chain

import pytest
from gristmill_testing.ranks import run_ranks
from gristmill_testing.scripts import run

from gristmill.stream import Stream

BEGIN = """
import json, os, sys
import torch, torch.distributed
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from gristmill.stream import Stream
from gristmill.stream.torch import TorchDataset, TorchLoader, TorchRows

def stream():
    return Stream(sys.argv[1], seed=7, rows=48)

def rows_of(make):
    # All rows that a loader gives to this rank, or what is said instead before the first.
    rows = []
    try:
        for batch in make():
            rows += batch["input_ids"].tolist()
    except Exception as error:
        return "late" if rows else f"{error} {getattr(error, 'help', '')}"
    return rows
"""

ACCELERATE = """
from accelerate import Accelerator, DataLoaderConfiguration

datasets = [TorchDataset(stream(), 4) for _ in range(3)]  # before the process group is there
def prepared(loader, dispatch=None):
    config = DataLoaderConfiguration(dispatch_batches=dispatch)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    assert accelerator.num_processes == 2
    return accelerator.prepare(loader)

found = {
    "a part": rows_of(lambda: prepared(DataLoader(datasets[0], batch_size=None))),
    "a part, workers": rows_of(lambda: prepared(DataLoader(datasets[1], batch_size=None, num_workers=1))),
    "a part, not dispatched": rows_of(lambda: prepared(DataLoader(datasets[2], batch_size=1), dispatch=False)),
    "loader": rows_of(lambda: prepared(TorchLoader(stream(), 4))),
    "whole": rows_of(lambda: prepared(DataLoader(TorchDataset(stream(), 4, rank=0, world_size=1), batch_size=None))),
    "rows": rows_of(lambda: prepared(DataLoader(TorchRows(stream()), batch_size=4, shuffle=True))),
}
print(json.dumps(found))
torch.distributed.destroy_process_group()
"""

SAMPLER = """
torch.distributed.init_process_group("gloo")
def sampled(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, sampler=DistributedSampler(dataset))

found = {
    "a part": rows_of(lambda: sampled(TorchDataset(stream(), 4), None)),
    "rows": rows_of(lambda: sampled(TorchRows(stream()), 4)),
}
print(json.dumps(found))
torch.distributed.destroy_process_group()
"""

LIGHTNING = """
import logging
from lightning.pytorch import LightningModule, Trainer

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.rows = []

    def training_step(self, batch):
        self.rows += batch["input_ids"].tolist()
        return self.weight.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

loaders = {
    "a part": DataLoader(TorchDataset(stream(), 4), batch_size=None, num_workers=1),
    "loader": TorchLoader(stream(), 4),
    "rows": DataLoader(TorchRows(stream()), batch_size=4),
}
found = {}
for name, loader in loaders.items():
    options = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", **options)
    model = Model()
    trainer.fit(model, train_dataloaders=loader)
    assert trainer.world_size == 2
    found[name] = model.rows
print(json.dumps(found))
"""

RAY = """
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader

folder, found_path = sys.argv[1:]
def train():
    from ray.train import get_context
    loaders = {
        "a part": lambda: prepare_data_loader(DataLoader(TorchDataset(stream(), 4), batch_size=None)),
        "loader": lambda: TorchLoader(stream(), 4),
        "rows": lambda: prepare_data_loader(DataLoader(TorchRows(stream()), batch_size=4)),
    }
    found = {name: rows_of(make) for name, make in loaders.items()}
    with open(f"{found_path}/{get_context().get_world_rank()}.json", "w") as file:
        json.dump(found, file)

def stream():
    return Stream(folder, seed=7, rows=48)

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=found_path)).fit()
ray.shutdown()
"""


@pytest.fixture(scope="module")
def rows(packed):
    return sorted(Stream(packed, seed=7, rows=48).rows(0, 48)["input_ids"].tolist())


def outputs(ranks):
    assert [rank.returncode for rank in ranks] == [0, 0], ranks
    return [rank.output for rank in ranks]


def assert_each_row_once(name, ranks, rows):
    assert sorted(chain.from_iterable(found[name] for found in ranks)) == rows


def assert_refused(name, ranks, message):
    for found in ranks:
        assert isinstance(found[name], str)
        assert message in found[name]


@pytest.mark.full
def test_accelerate(packed, rows):
    pytest.importorskip("accelerate")
    ranks = outputs(run_ranks(BEGIN + ACCELERATE, packed))
    for name in ("a part", "a part, workers", "a part, not dispatched"):
        assert_refused(name, ranks, "TorchRows")
    for name in ("loader", "whole", "rows"):
        assert_each_row_once(name, ranks, rows)


@pytest.mark.full
def test_a_distributed_sampler(packed, rows):
    ranks = outputs(run_ranks(BEGIN + SAMPLER, packed))
    assert_refused("a part", ranks, "IterableDataset")
    assert_each_row_once("rows", ranks, rows)


@pytest.mark.slow
def test_lightning(packed, rows):
    """Its launcher gives no RANK, and the process group comes after the dataset."""
    pytest.importorskip("lightning")
    ranks = outputs(run_ranks(BEGIN + LIGHTNING, packed, without=("RANK",)))
    for name in ("a part", "loader", "rows"):
        assert_each_row_once(name, ranks, rows)


@pytest.mark.slow
def test_ray_train(packed, rows, tmp_path):
    pytest.importorskip("ray.train.torch")
    done = run("-c", BEGIN + RAY, packed, tmp_path)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for name in ("a part", "loader", "rows"):
        assert_each_row_once(name, ranks, rows)


def test_rows_that_cannot_be_shared_out_evenly_are_told(packed, monkeypatch):
    from gristmill.stream.torch import TorchRows

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    rows = TorchRows(Stream(packed, epochs=1))
    with pytest.warns(UserWarning, match="rows=52"):
        assert len(rows) == 53
    assert len(rows) == 53  # said once


@pytest.mark.full
@pytest.mark.parametrize(
    ("num_rows", "options", "said"),
    [
        (46, {}, "rows=40"),  # 23 rows a rank, but 5 steps of 8 rows and one of 6, which is filled up with others
        (46, {"split_batches": True}, "rows=44"),
        (46, {"even_batches": False}, None),
        (48, {}, None),
    ],
)
def test_rows_that_do_not_fill_steps_of_accelerate_are_told(packed, monkeypatch, num_rows, options, said):
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler, SequentialSampler

    from gristmill.stream.torch import TorchRows

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    rows = TorchRows(Stream(packed, rows=num_rows))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shards = [
            list(BatchSamplerShard(BatchSampler(SequentialSampler(rows), 4, drop_last=False), 2, rank, **options))
            for rank in range(2)
        ]
    read = list(chain.from_iterable(chain.from_iterable(shards)))
    assert (len(read) > num_rows) == (said is not None)
    assert [said in str(warning.message) for warning in caught] == ([True] if said else [])
