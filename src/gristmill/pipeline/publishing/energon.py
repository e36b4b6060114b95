"""The files that Megatron Energon needs beside WebDataset shards: `.nv-meta`, and an index of each tar.

An index is the offset of each sample and the end of the last one, as 64-bit numbers. It follows from the side file of
the shard. They are written before the shards get their names, so a dataset is never without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gristmill.shards.arrow_stream import ORIGINS_SCHEMA, SAMPLE_BYTES, read_mapped_batches
from gristmill.storage.commit import write_file
from gristmill.storage.stored_paths import path_below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.storage.locations import Location

FOLDER = ".nv-meta"
_SPLITS = {"validation": "val"}
"""The names of splits that Energon has other names for."""


def write_energon_files(root: Location, manifest: Manifest, moves: Sequence[tuple[str, str]], run_id: str) -> None:
    """Write the files for all shards of a dataset whose own files are still to be moved (`moves`)."""
    places = {target: path for path, target in moves}
    counts: dict[str, int] = {}
    splits: dict[str, list[str]] = {}
    for split, _, shard in manifest.shards():
        counts[shard.path] = shard.rows
        splits.setdefault(_SPLITS.get(split, split), []).append(shard.path)
        if shard.origins is not None:
            side_file = path_below(root, places.get(shard.origins.path, shard.origins.path))
            write_file(path_below(root, f"{shard.path}.idx"), _make_index(side_file).tobytes(), run_id)
    info = {"energon_version": "7.0.0", "shard_counts": counts}
    contents = {
        ".info.json": msgspec.json.format(msgspec.json.encode(info), indent=2),
        # JSON is YAML too.
        "split.yaml": msgspec.json.encode({"split_parts": splits, "exclude": []}) + b"\n",
        "dataset.yaml": b"__module__: megatron.energon\n__class__: CrudeWebdataset\n",
    }
    for name, content in contents.items():
        write_file(root / FOLDER / name, content, run_id)


def _make_index(side_file: Location) -> NDArray[np.uint64]:
    batches = read_mapped_batches(side_file, ORIGINS_SCHEMA)
    sizes = [batch.column(SAMPLE_BYTES).to_numpy(zero_copy_only=False) for batch in batches]
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(np.concatenate([np.empty(0, np.uint64), *sizes]))]).astype(
        "<u8"
    )
