"""A small CNN on images that this script draws, on the CPU, that can be killed at any moment and resumes.

    python examples/train_images.py --folder shapes --steps 60
    python examples/train_images.py --folder shapes --steps 120 --workers 3

Squares, discs and stripes are drawn, become WebDataset shards, and are streamed to the network. The second command
resumes where the first one stopped, with another number of loader workers, and reads no image twice.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import gristmill as gm
from gristmill import steps
from gristmill.stream import Samples, Stream
from gristmill.stream.torch import TorchDataset

SHAPES = ("disc", "square", "stripes")
SIZE = 32
BATCH = 24


def draw(shape: str, rng: np.random.Generator) -> np.ndarray:
    """Draw one shape of a random size, place and colour on a noisy ground."""
    pixels = rng.integers(0, 90, (SIZE, SIZE, 3))
    rows, columns = np.mgrid[:SIZE, :SIZE]
    middle, radius = rng.integers(11, SIZE - 11, 2), rng.integers(6, 11)
    if shape == "disc":
        mask = (rows - middle[0]) ** 2 + (columns - middle[1]) ** 2 <= radius**2
    elif shape == "square":
        mask = (abs(rows - middle[0]) <= radius) & (abs(columns - middle[1]) <= radius)
    else:
        mask = (rows + columns + rng.integers(0, 8)) % 8 < 4
    pixels[mask] = rng.integers(120, 256, 3)
    return pixels.astype(np.uint8)


def make_dataset(folder: Path, count: int) -> Path:
    """Draw the images, and make shards of them. A finished dataset is used as it is."""
    output = folder / "dataset"
    if (output / "manifest.json").exists():
        return output
    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / "images" / SHAPES[number % 3] / f"{number:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw(SHAPES[number % 3], rng)).save(path)
    recipe = gm.Recipe(
        sources={"shapes": steps.Read(read=str(folder / "images"))},
        steps=[steps.Images(min_width=SIZE), steps.Split(validation=0.1), steps.Write(format="webdataset")],
        output=str(output),
    )
    gm.run(recipe, workers=1)
    return output


def prepare(sample: dict) -> dict:
    """Make what the network needs of a sample; runs in the workers of the loader."""
    pixels = sample["image"].transpose(2, 0, 1).astype(np.float32) / 255
    return {"x": pixels, "y": SHAPES.index(sample["label"])}


def make_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, len(SHAPES)),
    )


def train(output: Path, folder: Path, num_steps: int, workers: int) -> float:
    """Train up to a step, from the last checkpoint on, and return the accuracy on the held-out images."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = make_network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    dataset = TorchDataset(Stream(output, seed=1, epochs=100, samples=Samples(transform=prepare)), BATCH)
    checkpoint, step = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        dataset.load_state_dict(json.loads(saved["stream"]))
        step = saved["step"]
    while step < num_steps:
        for batch in DataLoader(dataset, batch_size=None, num_workers=workers):
            # Rows that only fill up the last batch of an epoch have weight 0.
            weights = torch.from_numpy(batch.row_mask).float()
            loss = (functional.cross_entropy(network(batch["x"]), batch["y"], reduction="none") * weights).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(f"step {step}: rows {batch.first_row} to {batch.next_row}, loss {loss.item():.3f}")
            if step % 20 == 0 or step == num_steps:
                state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                save({**state, "stream": json.dumps(dataset.state_after(batch))}, checkpoint)
            if step == num_steps:
                break
    return measure_accuracy(network, output)


def save(state: dict[str, object], path: Path) -> None:
    """Write a checkpoint, whole or not at all."""
    with path.with_suffix(".tmp").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())  # else a power cut could leave the new name with no content
    Path(file.name).replace(path)


def measure_accuracy(network: nn.Module, output: Path) -> float:
    stream = Stream(output, split="validation", shuffle=False, epochs=1, samples=Samples(transform=prepare))
    num_right = 0
    with torch.no_grad():
        for batch in stream.batches(32):
            answers = network(torch.from_numpy(batch["x"])).argmax(1).numpy()
            num_right += int(((answers == batch["y"]) & batch.row_mask).sum())
    return num_right / len(stream)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("shapes"))
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    output = make_dataset(arguments.folder, arguments.images)
    accuracy = train(output, arguments.folder, arguments.steps, arguments.workers)
    print(f"accuracy on held-out images: {accuracy:.1%}")


if __name__ == "__main__":
    main()
