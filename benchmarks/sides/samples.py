"""Images, by others and by the stream: `python -m benchmarks.sides.samples SIDE FOLDER OUTPUT`.

* `shard-writer`: a folder of files becomes tars, by webdataset's ShardWriter in one process.
* `pillow`: two processes decode, resize and encode a half of the files each, with bare Pillow.
* `stream`, `webdataset`: decoded images of a dataset as tensors, through a DataLoader with two workers.
* `first`: the first sample of a dataset, from a `Stream` that is opened for it.
"""

import io
import json
import subprocess
import sys
import time
from pathlib import Path

BATCH = 32
SHORT_SIDE = 256


def list_files(folder):
    return sorted(Path(folder).glob("*/*.jpg"))


def shard_writer(folder, output):
    import webdataset

    files = list_files(folder)
    with webdataset.ShardWriter(f"{output}/shard-%05d.tar", maxsize=64 << 20, verbose=0) as writer:
        for path in files:
            key = str(path.relative_to(folder).with_suffix(""))
            writer.write({"__key__": key, "jpg": path.read_bytes(), "label.txt": path.parent.name})
    print(json.dumps({"units": len(files)}))


def pillow(folder, output):
    command = [sys.executable, "-m", "benchmarks.sides.samples", "pillow-half", folder, output]
    halves = [subprocess.Popen([*command, str(half)]) for half in range(2)]
    status = max(half.wait() for half in halves)
    print(json.dumps({"units": len(list_files(folder))}))
    sys.exit(status)


def pillow_half(folder, output, half):
    from PIL import Image

    for number, path in enumerate(list_files(folder)[int(half) :: 2]):
        image = Image.open(io.BytesIO(path.read_bytes()))
        scale = SHORT_SIDE / min(image.size)
        size = round(image.width * scale), round(image.height * scale)
        image.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(f"{output}/{half}-{number}.jpg", quality=90)


def crop(pixels):
    return {"x": pixels[:SHORT_SIDE, :SHORT_SIDE]}


def prepare(sample):
    return crop(sample["image"])


def stream(folder, _):
    from torch.utils.data import DataLoader

    from gristmill.stream import Samples, Stream
    from gristmill.stream.torch import TorchDataset

    dataset = TorchDataset(Stream(folder, seed=1, epochs=1, samples=Samples(transform=prepare)), BATCH)
    count_images(batch["x"] for batch in DataLoader(dataset, batch_size=None, num_workers=2))


def prepare_member(sample):
    import numpy as np

    from gristmill.images.codec import decode_image  # the same decoder

    return (crop(np.asarray(decode_image(sample["jpg"])))["x"],)


def webdataset_loader(folder, _):
    import webdataset

    shards = sorted(str(path) for path in Path(folder).glob("train/*/*.tar"))
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(256).map(prepare_member).batched(BATCH)
    count_images(batch for (batch,) in webdataset.WebLoader(dataset, batch_size=None, num_workers=2))


def count_images(batches):
    """Read one epoch, and print how many images came how quickly after the first batch."""
    next(batches)
    count, start = 0, time.perf_counter()
    for batch in batches:
        count += len(batch)
    print(json.dumps({"inner": time.perf_counter() - start, "units": count}))


def first(folder, _):
    from gristmill.stream import Stream

    Stream(folder, seed=1, epochs=1).rows(0, 1)  # loads what is compiled
    start = time.perf_counter()
    Stream(folder, seed=2, epochs=1).rows(3, 4)
    print(json.dumps({"units": 1, "first_s": time.perf_counter() - start}))


SIDES = {
    "shard-writer": shard_writer,
    "pillow": pillow,
    "pillow-half": pillow_half,
    "stream": stream,
    "webdataset": webdataset_loader,
    "first": first,
}

if __name__ == "__main__":
    SIDES[sys.argv[1]](*sys.argv[2:])
