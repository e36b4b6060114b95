"""The small files that make `datasets.load_from_disk(folder)` work on Arrow shards as they are.

`dataset_info.json` names no features: every version of `datasets` then takes them from the Arrow schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.shards.manifests.stored_files import Shard


def make_side_files(manifest: Manifest) -> dict[str, bytes]:
    """Make the files: their paths in the dataset's folder and their contents. Only Arrow shards have any.

    A split without shards is left out, because `datasets` would refuse the whole folder.
    """
    if manifest.format != "arrow":
        return {}
    shards_of: dict[str, list[Shard]] = {}
    for split, _, shard in manifest.shards():
        shards_of.setdefault(split, []).append(shard)
    files = {"dataset_dict.json": _json({"splits": list(shards_of)})}
    for split, shards in shards_of.items():
        names = [shard.path.removeprefix(f"{split}/") for shard in shards]
        files[f"{split}/state.json"] = make_state(split, names, manifest.dataset_hash)
        files[f"{split}/dataset_info.json"] = make_info()
    return files


def make_state(split: str, names: list[str], dataset_hash: str) -> bytes:
    """Make `state.json` of a split: its files, by their paths in its folder."""
    state: dict[str, object] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": f"{dataset_hash[:16]}-{split}",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    return _json(state)


def make_info() -> bytes:
    """Make `dataset_info.json` of a split."""
    return _json({"description": "", "citation": "", "homepage": "", "license": ""})


def _json(content: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
