"""Photographs with natural statistics: noise whose spectrum falls with the frequency, with edges, as JPEG files."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.harness.contest import Setting

SIZE = (640, 480)
_BASES = 12
_MAX_DISTINCT = 2500


def photo_folder(setting: Setting, count: int) -> Path:
    """JPEG files of 640 x 480 pixels, about 120 kB each, in four folders of classes.

    Of more than 2,500, the others are copies: no work on them looks into the images.
    """
    root = setting.folder / "inputs" / f"photos-{count}"
    if (root / "complete").exists():
        return root / "images"
    paths = [root / "images" / f"class-{number % 4}" / f"{number:06d}.jpg" for number in range(count)]
    shutil.rmtree(root, ignore_errors=True)
    for path in paths[:4]:
        path.parent.mkdir(parents=True)
    if count > _MAX_DISTINCT:
        distinct = sorted(photo_folder(setting, _MAX_DISTINCT).glob("*/*.jpg"))
        for number, path in enumerate(paths):
            shutil.copyfile(distinct[number % _MAX_DISTINCT], path)
    else:
        _make_photos(paths)
    (root / "complete").touch()
    return root / "images"


def _make_photos(paths: list[Path]) -> None:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(7)
    bases = [_make_photo(rng) for _ in range(_BASES)]
    for path in paths:
        # Mixtures of shifted photographs are new photographs, and far quicker to make.
        first, second = (
            np.roll(bases[rng.integers(_BASES)], tuple(rng.integers(0, 480, 2)), (0, 1)).astype(np.uint16)
            for _ in range(2)
        )
        Image.fromarray(((first + second) // 2).astype(np.uint8)).save(path, quality=90)


def _make_photo(rng):
    import numpy as np

    width, height = SIZE
    rows, columns = np.meshgrid(np.fft.fftfreq(height), np.fft.fftfreq(width), indexing="ij")
    falling = 1 / np.maximum(np.hypot(rows, columns), 1 / width)
    shared = rng.normal(size=(height, width)) + 1j * rng.normal(size=(height, width))
    channels = []
    for _ in range(3):
        own = rng.normal(size=(height, width)) + 1j * rng.normal(size=(height, width))
        values = np.fft.ifft2((shared + 0.3 * own) * falling).real
        channels.append((values - values.min()) / np.ptp(values) * 255)
    return np.stack(channels, axis=2).astype(np.uint8)
