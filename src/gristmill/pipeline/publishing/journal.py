"""Finished files into their places, so that a run which is killed on the way leaves the old dataset or the new one.

What is about to happen is noted first. The manifest is the turning point: before it everything is taken back, after it
the rest is done by the next run. A new file never takes the place of another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gristmill.pipeline.stages.receipts import Receipts
from gristmill.pipeline.stages.slice_task import SliceResult
from gristmill.pipeline.work_folder import JOURNAL, UNIT_RECEIPTS, remove_files, remove_work_folder
from gristmill.shards.manifest import MANIFEST, Manifest, dump_manifest, load_manifest
from gristmill.shards.report import make_derived_files
from gristmill.storage.commit import PendingFile, make_folder, sync_folder, write_file
from gristmill.storage.stored_paths import StoredPath, decode_stored, path_below

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class PublishJournal(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is about to do to its output folder."""

    manifest: str
    """The checksum of the manifest that it will write."""
    moves: list[tuple[StoredPath, StoredPath]]
    side_files: list[StoredPath]
    stale: list[StoredPath]
    """Files of the dataset that was there which the new one does not have."""


def replace_dataset(
    root: Path, manifest: Manifest, moves: list[tuple[str, str]], units: Iterable[bytes], run_id: str
) -> None:
    """Put a dataset in the place of the one that may be there; `units` are the lines of its receipts."""
    old, sides = find_manifest(root), make_derived_files(manifest)
    stale = {*manifest_paths(old), *(make_derived_files(old) if old else ())} - {*manifest_paths(manifest), *sides}
    note = PublishJournal(manifest=manifest.checksum, moves=moves, side_files=sorted(sides), stale=sorted(stale))
    for path in (*note.stale, *note.side_files, *(place for move in moves for place in move)):
        path_below(root, path)  # a link that leaves the folder is refused before anything has happened
    with PendingFile(root / UNIT_RECEIPTS, run_id) as receipts:
        for line in units:  # they name files that are still where they were made
            receipts.write(line)
        write_file(root / JOURNAL, msgspec.json.encode(note), run_id)
        _move_files(root, moves)
        for path, content in sides.items():
            write_file(path_below(root, path), content, run_id)
        receipts.commit()
    with PendingFile(root / MANIFEST, run_id) as file:
        for piece in dump_manifest(manifest):
            file.write(piece)
        file.commit()
    remove_files(root, note.stale)


def recover_interrupted_publish(root: Path, run_id: str) -> None:
    """If a run was killed while it published: take it back if its manifest is not there, else do the rest of it."""
    if not (root / JOURNAL).exists():
        return
    note = decode_stored((root / JOURNAL).read_bytes(), PublishJournal, root / JOURNAL)
    manifest = find_manifest(root)
    if manifest is not None and manifest.checksum == note.manifest:
        remove_files(root, note.stale)
        prune_work_folder(root)
        return
    _move_files(root, [(place, path) for path, place in note.moves if path_below(root, place).exists()])
    sides = make_derived_files(manifest) if manifest is not None else {}
    for path, content in sides.items():
        write_file(path_below(root, path), content, run_id)
    remove_files(root, [place for _, place in note.moves] + [path for path in note.side_files if path not in sides])
    clear_journal(root)


def clear_journal(root: Path) -> None:
    """Nothing is half done any more."""
    (root / JOURNAL).unlink(missing_ok=True)


def prune_work_folder(root: Path) -> None:
    """Empty the work folder, but for what an update of the finished dataset can use."""
    units = Receipts(root / UNIT_RECEIPTS)
    kept = {UNIT_RECEIPTS, JOURNAL}
    for unit in units.read_results(SliceResult):
        kept.update(file.path for file in (*unit.quarantine, *unit.dropped))
        kept.update(part.data.path for part in unit.leftovers)
    units.close()
    remove_work_folder(root, kept)
    clear_journal(root)


def find_manifest(root: Path) -> Manifest | None:
    """Of the dataset that is there, if one is."""
    return load_manifest(root) if (root / MANIFEST).exists() else None


def manifest_paths(manifest: Manifest | None) -> Iterator[str]:
    """The paths of all that the manifest names."""
    if manifest is not None:
        for file in manifest.stored_files():
            yield file.path


def find_damaged_file(root: Path, manifest: Manifest) -> str | None:
    """The first file that is missing or has another size than it should."""
    for file in manifest.stored_files():
        try:
            num_bytes = file.below(root).stat().st_size
        except FileNotFoundError:
            return file.path
        if num_bytes != file.bytes:
            return file.path
    return None


def _move_files(root: Path, moves: Iterable[tuple[str, str]]) -> None:
    both = [(path_below(root, path), path_below(root, place)) for path, place in moves]  # all, before one is moved
    folders = {place.parent for _, place in both}
    for folder in folders:
        make_folder(folder)
    for path, place in both:
        path.replace(place)
    for folder in folders:
        sync_folder(folder)
