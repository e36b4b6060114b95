"""A training loop with accelerate as its documentation shows it."""

from typing import NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin

from gristmill.stream.trainers.accelerate import AccelerateLoader


class AccelerateRun(NamedTuple):
    """What a run of the loop trained on this process."""

    rows: list
    num_updates: int


def train_with_accelerate(stream, *, batch_size, accumulate=1, stop_after=None, save=None, load=None):
    """Train for all epochs, or until `stop_after` batches and then save."""
    plugin = GradientAccumulationPlugin(num_steps=accumulate, adjust_scheduler=False)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    model = torch.nn.Embedding(500, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = AccelerateLoader(accelerator, stream, batch_size)
    if load is not None:
        accelerator.load_state(load)
    rows, num_updates, num_batches = [], 0, 0
    while stream.next_row < len(stream) and loader.steps_left:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch["input_ids"]).sum())
                optimizer.step()
                optimizer.zero_grad()
            num_updates += accelerator.sync_gradients
            rows += batch["input_ids"][torch.from_numpy(batch.row_mask)].tolist()
            num_batches += 1
            if num_batches == stop_after:
                accelerator.save_state(save)
                return AccelerateRun(rows, num_updates)
    return AccelerateRun(rows, num_updates)
