"""Files that other tools write, for the tests of streams over them."""

import io
import tarfile

import numpy as np

TEXTS = [f"sample number {number}: " + "the quick brown fox " * (number % 7) for number in range(60)]
IDS = [[number, *range(1, 3 + number % 5)] for number in range(60)]


def write_tar(path, samples):
    """`samples` are lists of (extension, bytes), named by their number."""
    with tarfile.open(path, "w") as tar:
        for number, members in samples:
            for extension, content in members:
                info = tarfile.TarInfo(f"{number:04d}.{extension}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def encode_array(values):
    sink = io.BytesIO()
    np.save(sink, np.array(values, np.uint16))
    return sink.getvalue()


def upload(folder, bucket, name):
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            bucket.put(f"{name}/{path.relative_to(folder)}", path.read_bytes())
    return f"{bucket.url}/{name}"
