"""A loop with accelerate whose checkpoints resume with any number of processes, batch size and accumulation.

    accelerate launch examples/train_accelerate.py rows --batch-size 4 --stop-at 40
    python examples/train_accelerate.py rows --batch-size 7     # one process: it reads what the others have not

`rows` is a dataset of packed tokens. The rows that were trained are appended to `trained.txt`.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator

from gristmill.stream import Collate, Stream
from gristmill.stream.trainers.accelerate import AccelerateLoader

parser = argparse.ArgumentParser()
parser.add_argument("rows", type=Path)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--stop-at", type=int, help="save and stop at this row")
options = parser.parse_args()

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
stream = Stream(options.rows, seed=7, epochs=1, collate=Collate(fields=("input_ids", "labels"), labels="shifted"))
model = torch.nn.Sequential(torch.nn.Embedding(1 << 16, 8), torch.nn.Linear(8, 1))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
loader = AccelerateLoader(accelerator, stream, options.batch_size)  # not passed to prepare
checkpoint = options.rows.parent / "checkpoint"
if checkpoint.exists():
    accelerator.load_state(checkpoint)
with (options.rows.parent / "trained.txt").open("a") as log:
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch["input_ids"]).mean())
            optimizer.step()
            optimizer.zero_grad()
        log.writelines(f"{row}\n" for row in batch["input_ids"][torch.from_numpy(batch.row_mask)].tolist())
        if options.stop_at is not None and batch.next_row >= options.stop_at:
            accelerator.save_state(checkpoint)
            break
