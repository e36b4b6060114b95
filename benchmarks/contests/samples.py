"""Images: a folder becomes tars, images are encoded again, decoded images reach torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.harness.contest import OURS, Contest, Limit, Ratio, Setting, Side
from benchmarks.inputs.photos import photo_folder
from benchmarks.inputs.recipes import make_dataset, our_side, write_recipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WRITER = "webdataset's ShardWriter, 1 process"
PILLOW = "bare Pillow, 2 processes"
LOADER = "webdataset and DataLoader, 2 workers"
NUM_STORED = 12_000
"""Photographs that become tars: 1.4 GB, a few seconds of work."""
NUM_ENCODED = 2500
NUM_STREAMED = 1000


def _make_photos(setting: Setting, num_photos: int) -> tuple[Path, int]:
    count = _count_photos(setting, num_photos)
    return photo_folder(setting, count), count


def _count_photos(setting: Setting, num_photos: int) -> int:
    return int(setting.scaled(num_photos, at_least=200))


def _describe_photos(num_photos: int) -> Callable[[Setting], str]:
    return lambda setting: f"{_count_photos(setting, num_photos):,} JPEG files of 640 x 480 pixels"


def _bare(key: str, name: str, folder: Path, setting: Setting, **options) -> Side:
    return Side(name, ["-m", "benchmarks.sides.samples", key, str(folder), str(setting.output)], **options)


def _tar_sides(setting: Setting) -> list[Side]:
    folder, count = _make_photos(setting, NUM_STORED)
    recipe = write_recipe(setting, "samples-tars", str(folder.resolve()), [{"write": {"format": "webdataset"}}])
    return [our_side(recipe, count), _bare("shard-writer", WRITER, folder, setting, units=count)]


def _encode_sides(setting: Setting) -> list[Side]:
    folder, count = _make_photos(setting, NUM_ENCODED)
    steps = [{"images": {"resize": 256, "reencode": "jpeg"}}, {"write": {"format": "webdataset"}}]
    recipe = write_recipe(setting, "samples-encode", str(folder.resolve()), steps)
    return [our_side(recipe, count), _bare("pillow", PILLOW, folder, setting, units=count)]


def _make_tars(setting: Setting, *, num_shards: int | None = None) -> Path:
    """Make tars of photographs once, outside of the folder that is emptied before each run."""
    folder, count = _make_photos(setting, NUM_STREAMED)
    write = {"format": "webdataset", **({"max_shard_samples": -(-count // num_shards)} if num_shards else {})}
    return make_dataset(setting, f"samples-{count}-{num_shards or 'all'}", str(folder.resolve()), [{"write": write}])


def _stream_sides(setting: Setting) -> list[Side]:
    dataset = _make_tars(setting)
    return [_bare("stream", OURS, dataset, setting), _bare("webdataset", LOADER, dataset, setting)]


def _first_sides(setting: Setting) -> list[Side]:
    return [_bare("first", OURS, _make_tars(setting, num_shards=100), setting)]


CONTESTS = [
    Contest(
        name="samples-tars",
        work="a folder of photographs to WebDataset tars, 2 workers, whole process",
        make_sides=_tar_sides,
        claims=[Ratio(WRITER, 2), Ratio(WRITER, None, "cpu")],
        unit="images",
        data=_describe_photos(NUM_STORED),
    ),
    Contest(
        name="samples-encode",
        work="photographs decoded, resized to 256 pixels and encoded as JPEG, 2 workers, whole process",
        make_sides=_encode_sides,
        claims=[Ratio(PILLOW, 0.9), Ratio(PILLOW, None, "cpu")],
        unit="images",
        data=_describe_photos(NUM_ENCODED),
    ),
    Contest(
        name="samples-stream",
        work="shuffled, decoded photographs as tensors of 32, the same decoder, 2 workers",
        make_sides=_stream_sides,
        claims=[Ratio(LOADER, 1, "inner"), Ratio(LOADER, None, "cpu")],
        unit="images",
        data=_describe_photos(NUM_STREAMED),
    ),
    Contest(
        name="samples-first",
        work="one image of a dataset of 100 tars, by its row",
        make_sides=_first_sides,
        claims=[Limit("seconds, what is compiled loaded before", 0.1, "s", lambda run: run["facts"]["first_s"])],
        unit="run",
        rounds=2,
    ),
]
