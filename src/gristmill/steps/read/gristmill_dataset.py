"""A finished dataset as a source: the shards that its manifest names, and nothing else of its folder.

Origins, quarantine and notes are not records. Sizes are compared with the manifest, so that a shard which was cut short
or is missing is found before the run; `gristmill verify` also reads them.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.core.names import one_of
from gristmill.shards.manifest import MANIFEST, Manifest, load_manifest, parse_manifest
from gristmill.storage.files import open_input
from gristmill.storage.remote_files import local_path, protocol_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gristmill.storage.paths import FoundFile

_BEGINNING = re.compile(rb'\s*\{\s*"format_version"\s*:\s*\d+\s*,\s*"kind"\s*:')
_BEGINNING_BYTES = 200
_READABLE_KINDS = ("documents",)


def refuse_unfinished(patterns: Iterable[str], base: str | None) -> None:
    """Refuse a folder in which a run is not finished: what lies there already is not all of it."""
    for pattern in patterns:
        if protocol_of(pattern) is None:
            folder = Path(base or "", local_path(pattern)).expanduser()
            if folder.is_dir() and any(folder.glob(".gristmill*")):
                load_manifest(folder)


def holds_datasets(found: Sequence[FoundFile]) -> bool:
    """Whether a manifest of ours is among the files; other programs call files so, too."""
    return bool(_manifests(found))


def shard_files(found: Sequence[FoundFile], split: str | None) -> list[FoundFile]:
    """The shards of all datasets in a listing, by relative path; with `split` those of one split."""
    manifests = _manifests(found)
    if not manifests:
        raise UsageError(
            f"no {MANIFEST} of Gristmill among {len(found)} files",
            help="name the output folder of a finished run itself, without a pattern",
        )
    _refuse_others(found, manifests)
    by_relative = {file.relative: file for file in found}
    chosen: list[FoundFile] = []
    for file in manifests:
        with open_input(file.path) as stream:
            manifest = parse_manifest(stream.read(), file.path)
        chosen += _shards(file, manifest, by_relative, split)
    return sorted(chosen, key=lambda shard: shard.relative)


def _manifests(found: Sequence[FoundFile]) -> list[FoundFile]:
    named = [file for file in found if posixpath.basename(file.relative) == MANIFEST]
    return [file for file in named if _BEGINNING.match(_beginning(file))]


def _beginning(file: FoundFile) -> bytes:
    with open_input(file.path) as stream:
        return stream.read(_BEGINNING_BYTES)


def _refuse_others(found: Sequence[FoundFile], manifests: Sequence[FoundFile]) -> None:
    folders = tuple(file.relative.removesuffix(MANIFEST) for file in manifests)
    for file in found:
        if not file.relative.startswith(folders):
            raise UsageError(
                f"one source holds a dataset ({manifests[0].path}) and a file that is not of it ({file.path})",
                help="make them two sources",
            )


def _shards(
    file: FoundFile, manifest: Manifest, by_relative: dict[str, FoundFile], split: str | None
) -> list[FoundFile]:
    _check_kind(file, manifest)
    if split is not None:
        one_of("split", split, list(manifest.splits))
    folder = posixpath.dirname(file.relative)
    shards = []
    for found_split, _, shard in manifest.shards():
        if split in (None, found_split):
            found = by_relative.get(posixpath.join(folder, shard.path))
            if found is None or found.num_bytes != shard.bytes:
                size = f"has {found.num_bytes} bytes, but {shard.bytes} were written" if found else "is missing"
                raise DamagedDatasetError(
                    f"{posixpath.dirname(file.path)}: shard {shard.path} {size}",
                    help="copy the dataset again, or make it again with update; gristmill verify names all damage",
                )
            shards.append(found)
    return shards


def _check_kind(file: FoundFile, manifest: Manifest) -> None:
    if manifest.kind not in _READABLE_KINDS:
        raise UsageError(
            f"{posixpath.dirname(file.path)} is a dataset of {manifest.kind}, which cannot be read as a source yet",
            help=f"read a dataset of {' or '.join(_READABLE_KINDS)}",
        )
