"""A small GPT on Python's own library, on the CPU, that can be killed at any moment and resumes with other ranks.

    python examples/train_tiny.py --folder tiny --steps 60
    torchrun --nproc-per-node 2 examples/train_tiny.py --folder tiny --steps 60 --workers 3

Kill it with -9 and start it again with another number of ranks or workers: it continues with the rows after the last
checkpoint, none left out and none read twice. The global batch stays the same (24 rows, shared by the ranks), because
that is a choice of training; the stream itself accepts any.
"""

import argparse
import json
import os
import sysconfig
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import gristmill as gm
from gristmill import steps
from gristmill.stream import Collate, Stream
from gristmill.stream.torch import TorchDataset

ROW_LENGTH = 64
VOCABULARY = 512
GLOBAL_BATCH = 24
SAVE_EVERY = 5


def build_dataset(folder: Path) -> Path:
    """Make packed rows of two sources: Python's `json` and `email` packages."""
    library = Path(sysconfig.get_path("stdlib"))
    sources = {
        name: steps.Read(read=str(library / name / "*.py"), format="text", text="text") for name in ("json", "email")
    }
    tokenizer = folder / "tokenizer"
    if not tokenizer.exists():
        gm.train_tokenizer(sources["json"], tokenizer, vocab_size=VOCABULARY, special_tokens=["<|end|>"])
    recipe = gm.Recipe(
        sources=sources,
        steps=[steps.Tokenize(tokenizer=str(tokenizer)), steps.Pack(row_length=ROW_LENGTH)],
        mixture={"json": 0.5, "email": 0.5},
        output=str(folder / "rows"),
    )
    gm.run(recipe, backend="serial", progress=False)
    return folder / "rows"


class TinyGPT(nn.Module):
    """A GPT of two layers with 64 dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 64)
        self.positions = nn.Embedding(ROW_LENGTH, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(input_ids.shape[1])
        hidden = self.layers(self.tokens(input_ids) + self.positions(position_ids), mask=mask, is_causal=True)
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


def main() -> None:
    options = parse()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        torch.distributed.init_process_group("gloo")
    if rank == 0 and not (options.folder / "rows" / "manifest.json").exists():
        build_dataset(options.folder)
    if world_size > 1:
        torch.distributed.barrier()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    fields = ("input_ids", "labels", "position_ids")
    stream = Stream(options.folder / "rows", seed=7, collate=Collate(fields=fields, labels="shifted"))
    dataset = TorchDataset(stream, GLOBAL_BATCH // world_size)
    model = TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint = options.folder / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        dataset.load_state_dict(json.loads(saved["stream"]))
        step = saved["step"]

    parallel = DistributedDataParallel(model) if world_size > 1 else model
    loader = DataLoader(dataset, batch_size=None, num_workers=options.workers)
    with (options.folder / f"seen-{world_size}-{rank}.jsonl").open("a") as row_log:
        for batch in loader:
            loss = parallel(**batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            rows = [zlib.crc32(row.numpy().tobytes()) for row in batch["input_ids"]]
            row_log.write(json.dumps({"first_row": batch.first_row, "rank": rank, "rows": rows}) + "\n")
            row_log.flush()
            if rank == 0 and step % SAVE_EVERY == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                save({**state, "stream": json.dumps(dataset.state_after(batch))}, checkpoint)
            if step >= options.steps:
                break
    if world_size > 1:
        torch.distributed.destroy_process_group()


def save(state: dict[str, object], path: Path) -> None:
    """Write a checkpoint, whole or not at all."""
    with path.with_suffix(".tmp").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())  # else a power cut could leave the new name with no content
    Path(file.name).replace(path)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a tiny GPT.")
    parser.add_argument("--folder", type=Path, default=Path("tiny"), help="for data and checkpoint")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=0, help="loader workers of each rank")
    return parser.parse_args()


if __name__ == "__main__":
    main()
