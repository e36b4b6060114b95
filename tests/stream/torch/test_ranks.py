"""Real ranks: two processes of `torch.distributed` with gloo, and those who shard by themselves."""

import pickle

import pytest
from gristmill_testing.ranks import run_ranks
from gristmill_testing.streams import ids_of

from gristmill.core.errors import UsageError
from gristmill.stream import Stream
from gristmill.stream.torch import TorchDataset, TorchLoader, TorchRows

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


def test_two_ranks_of_a_process_group_read_every_row_once(packed, oracle):
    ranks = run_ranks(TRAIN, packed)
    assert [rank.returncode for rank in ranks] == [0, 0], ranks
    first, second = (rank.output for rank in ranks)
    assert len(first) == len(second) == 7
    assert [row for step in zip(first, second, strict=True) for batch in step for row in batch] == oracle[:53]


@pytest.mark.full
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


def stateful_loader(packed, num_workers, **options):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    dataset = TorchDataset(Stream(packed, seed=7, epochs=3), 4)
    return stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=num_workers, **options)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("num_workers", "options"), [(0, {}), (1, {}), (2, {}), (2, {"persistent_workers": True})], ids=str
)
def test_torchdata_resumes_as_it_was(packed, oracle, num_workers, options):
    loader = stateful_loader(packed, num_workers, **options)
    batches = iter(loader)
    read = [next(batches) for _ in range(5)]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    resumed = stateful_loader(packed, num_workers, **options)
    resumed.load_state_dict(state)
    assert ids_of([*read, *resumed]) == oracle[:53]
    assert ids_of(resumed) == oracle[53:106]  # the next epoch is a whole one


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("before", "after", "error", "message"),
    [
        (2, 3, ValueError, "num_workers 2, not 3"),
        (1, 2, ValueError, "num_workers 1, not 2"),
        # These two torchdata refuses by itself, before it asks the dataset.
        (0, 2, AssertionError, "expected for multiprocess dataloader"),
        (2, 0, AssertionError, "expected for single process dataloader"),
    ],
)
def test_torchdata_with_another_number_of_workers_is_refused(packed, before, after, error, message):
    loader = stateful_loader(packed, before)
    states = [loader.state_dict() for _ in loader]  # to the end: workers that are left in the middle take seconds to go
    state = states[0]
    other = stateful_loader(packed, after)
    other.load_state_dict(state)
    with pytest.raises(error, match=message):
        next(iter(other))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_a_state_of_torchdata_s_workers_is_no_state_of_a_stream(packed):
    loader = stateful_loader(packed, 0)
    next(iter(loader))
    state = loader.state_dict()["fetcher_state"]["dataset_iter_state"]
    for reader in (Stream(packed, seed=7), TorchLoader(Stream(packed, seed=7), 4), TorchDataset(Stream(packed), 4)):
        with pytest.raises(UsageError, match="worker"):
            reader.load_state_dict(state)
    with pytest.raises(UsageError, match="batch_size 4, not 5"):
        iter(TorchDataset(Stream(packed, seed=7), 5)).load_state_dict(state)
