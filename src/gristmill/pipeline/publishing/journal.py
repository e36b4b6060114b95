"""The commit protocol: finished files are moved to their places, and a crash leaves the old dataset or the new one.

A file system can replace one file atomically, but not a folder. So the order is

1. the journal: which files will be moved, written and removed;
2. the moves, to names that no file has: the old dataset stays whole;
3. the small files that follow from the manifest, and the receipts for updates;
4. the manifest, in one atomic replacement: from here on the new dataset is the one that is there;
5. removal of files that only the old dataset had, then of the work folder and the journal.

A run that finds a journal looks at the manifest. If it is the journal's, step 5 is done again; if not, steps 2 and 3
are undone. Both may be interrupted and repeated as often as it takes.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec

from gristmill.pipeline.stages.receipts import open_receipts
from gristmill.pipeline.stages.stage_context import SliceResult
from gristmill.pipeline.work_folder import (
    JOURNAL,
    RECEIPTS,
    UNIT_RECEIPTS,
    WORK_FOLDER,
    is_work_path,
    remove_work_folder,
)
from gristmill.shards.derived_files import CARD, REPORT_PAGE, make_derived_files, update_card
from gristmill.shards.manifest_file import dump_manifest, load_manifest
from gristmill.shards.stored_files import MANIFEST
from gristmill.storage.commit import PendingFile, is_lease_epoch, write_file
from gristmill.storage.folders import KnownFiles, open_folder
from gristmill.storage.locations import StoredPath, decode_stored, path_below, read_stored

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from gristmill.pipeline.stages.outputs.split_files import SplitFile
    from gristmill.shards.manifest import Manifest
    from gristmill.storage.leases import HeldOutput
    from gristmill.storage.locations import Location

_ATTEMPT = re.compile(r"-(\d{8})-[0-9a-f]{8}[-./]")
"""The epoch and attempt in the name of a file on a store."""
_OTHER_OUTPUT = re.compile(rf".+?/(?=(?:{re.escape(WORK_FOLDER)}/|{re.escape(MANIFEST)}$))")
"""The folder of another output inside this one. Its epochs are its own."""


class PublishJournal(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that a run is about to make to its output folder."""

    manifest: str
    """The checksum of the manifest that it will write."""
    moves: list[tuple[StoredPath, StoredPath]]
    """Paths in the work folder, and their places in the dataset."""
    side_files: list[StoredPath]
    """Small files that follow from the manifest. They replace those of the old dataset."""
    stale: list[StoredPath]
    """Files of the old dataset that the new one does not have."""


def replace_dataset(
    root: Location, manifest: Manifest, moves: list[tuple[str, str]], units: Iterable[bytes], held: HeldOutput
) -> None:
    """Put a dataset in the place of the one that may be there; `units` are the lines of its receipts."""
    held.check()
    run_id = held.run_id
    old, side_files = find_manifest(root), _list_side_files(root, manifest)
    # The page of the old dataset goes with it. That of the new one is written when the manifest is there.
    old_paths = {*manifest_paths(old), *([*_list_side_files(root, old), REPORT_PAGE] if old else ())}
    stale = old_paths - {*manifest_paths(manifest), *side_files}
    journal = PublishJournal(
        manifest=manifest.checksum, moves=moves, side_files=sorted(side_files), stale=sorted(stale)
    )
    for path in (*journal.stale, *journal.side_files, *(path for move in moves for path in move)):
        path_below(root, path)  # a link that leaves the folder is refused before anything has happened
    with PendingFile(root / UNIT_RECEIPTS, run_id) as receipts:
        # Making these lines reads the receipts of this run, which checks that their files are there: they must not have
        # been moved yet. The lines name the new places, so the file gets its own name only after the moves.
        for line in units:
            receipts.write(line)
        write_file(root / JOURNAL, msgspec.json.encode(journal), run_id)
        open_folder(root).move(moves)
        held.check()  # up to here all names were this run's own, and the moves may have taken long
        for path, content in side_files.items():
            write_file(path_below(root, path), content, run_id)
        receipts.commit()
    held.replace_sealed_file(dump_manifest(manifest))
    # Last: a process that has opened the old dataset can read its shards up to here.
    open_folder(root).remove(journal.stale)


def _list_side_files(root: Location, manifest: Manifest) -> dict[str, bytes]:
    """Return the small files of a dataset. What people have written into its card stays there."""
    files, card = make_derived_files(manifest), path_below(root, CARD)
    if CARD in files and card.is_file():
        files[CARD] = update_card(read_stored(card), files[CARD])
    return files


def recover_interrupted_publish(root: Location, run_id: str) -> None:
    """Finish or undo what a run left half done that was killed while it published.

    If its manifest is there, the rest is done; if not, all of it is undone. The files are moved back to the work
    folder, where the next run finds them by their receipts.
    """
    if not (root / JOURNAL).is_file():
        return
    journal = decode_stored((root / JOURNAL).read_bytes(), PublishJournal, root / JOURNAL)
    manifest = find_manifest(root)
    if manifest is not None and manifest.checksum == journal.manifest:
        open_folder(root).remove(journal.stale)
        prune_work_folder(root)
        return
    named = {*manifest_paths(manifest)}
    folder = open_folder(root)
    if folder.can_rename:
        # A move that was not made yet, or is undone already, has no file in its place.
        moves = [(target, path) for path, target in journal.moves if target not in named]
        folder.move([(target, path) for target, path in moves if path_below(root, target).exists()])
    old_side_files = _list_side_files(root, manifest) if manifest is not None else {}
    for path, content in old_side_files.items():
        write_file(path_below(root, path), content, run_id)
    new_side_files = [path for path in journal.side_files if path not in old_side_files]
    # Also folders that are empty now. A run that was replaced may have left a journal: what others published stays.
    open_folder(root).remove(
        [path for path in (*(target for _, target in journal.moves), *new_side_files) if path not in named]
    )
    clear_journal(root)


def clear_journal(root: Location) -> None:
    """Remove the journal: nothing is half done any more."""
    (root / JOURNAL).unlink(missing_ok=True)


def prune_work_folder(root: Location, kept_files: Collection[str] = ()) -> None:
    """Empty the work folder, except for what an update can reuse: of the finished dataset, and the kept files of
    stages, with their receipts.
    """
    units = open_receipts(root / UNIT_RECEIPTS, "", lambda: None)
    paths_to_keep = {UNIT_RECEIPTS, JOURNAL, *kept_files}
    if kept_files:
        folder = open_folder(root)
        paths_to_keep.update(path for path, _ in folder.list_below() if path.startswith(RECEIPTS.removesuffix("jsonl")))
    for unit in units.read_results(SliceResult):
        paths_to_keep.update(file.path for file in (*unit.quarantine, *unit.dropped))
        paths_to_keep.update(leftover.data.path for leftover in unit.leftovers)
    units.close()
    remove_work_folder(root, paths_to_keep)
    clear_journal(root)  # last, so that an interrupted clean-up is repeated


def find_manifest(root: Location) -> Manifest | None:
    """Load the manifest of the dataset in a folder, if there is one."""
    return load_manifest(root) if (root / MANIFEST).is_file() else None


def manifest_paths(manifest: Manifest | None) -> Iterator[str]:
    """Iterate over the paths of all files that a manifest names."""
    if manifest is not None:
        for file in manifest.stored_files():
            yield file.path


def find_damaged_file(root: Location, manifest: Manifest) -> str | None:
    """Find the first file of a dataset that is missing or has another size than its manifest says."""
    files = KnownFiles(root)
    return next((file.path for file in manifest.stored_files() if files.find_size(file.path) != file.bytes), None)


def check_shards(root: Location, split_files: Iterable[SplitFile]) -> None:
    """Look once at all files that become shards: raise `DamagedWorkError` for one that is not what its task wrote.

    One of another version may have been copied, so its checksum tells. Cost: a `stat` for each, or the listing of a
    store.
    """
    files = [pair for each in split_files for pair in zip_longest(each.shard_files(), each.versions)]
    states = open_folder(root).measure(file.path for file, _ in files)
    for file, version in files:
        current = states.get(file.path)
        if current is None:
            raise file.make_work_error(root, "is missing")
        if current != (file.bytes, version or current.version) and not file.is_intact(file.below(root)):
            raise file.make_work_error(root, "was changed after it was written")


def remove_orphans(
    root: Location, manifest: Manifest | None, held: HeldOutput, *, may_have_uploads: bool = True
) -> None:
    """Remove what killed runs, or workers of this one, have left where a lease is held: names that tell their epoch.

    Without a manifest nothing is finished, and all of it goes. Unfinished uploads are left only by what was killed;
    looking for them takes a separate client, and as long as all else of a small run.
    """
    if not is_lease_epoch(held.run_id):
        return
    held.check()
    named = {*manifest_paths(manifest)}
    attempts, others = [], set()
    for path, _ in open_folder(root).list_below():
        if other := _OTHER_OUTPUT.match(path):
            others.add(other[0])
        elif _is_left_over(path, held) and path not in named and not is_work_path(path):
            attempts.append(path)
    theirs = tuple(others)
    open_folder(root).remove([path for path in attempts if not path.startswith(theirs)])
    if may_have_uploads:
        from gristmill.shards.kept_signatures import SIGNATURES  # noqa: PLC0415  (only after a death)

        folders = (f"{WORK_FOLDER}/", f"{SIGNATURES}/")
        open_folder(root).abort_uploads(
            lambda path: path.startswith(folders) or (_is_left_over(path, held) and not path.startswith(theirs))
        )


def remove_replaced(root: Location, work: Location, run_id: str) -> None:
    """Remove what this run has made after another one has taken over its output, unless the other one may use it.

    That is what receipts name, and in the end the manifest. They are read in this order: one of them always tells.
    """
    ours = re.compile(rf'[^"]*-{run_id}[-./][^"]*')
    used: set[str] = set()
    try:
        for path in (RECEIPTS, UNIT_RECEIPTS):
            receipts = open_receipts(root / path, run_id, lambda: None)
            for result in receipts.read_results(msgspec.Raw):
                used.update(ours.findall(bytes(result).decode()))
            receipts.close()
    except FileNotFoundError:  # the other one is just emptying the work folder, and the next one does again
        return
    used.update(manifest_paths(find_manifest(root)))
    for folder in {root, work}:
        paths = [path for path, _ in open_folder(folder).list_below()]
        theirs = tuple({other[0] for path in paths if (other := _OTHER_OUTPUT.match(path))})
        left_over = (path for path in paths if ours.fullmatch(path) and path not in used)
        open_folder(folder).remove(
            [
                path
                for path in left_over
                if (is_work_path(path) or _ATTEMPT.search(path)) and not path.startswith(theirs)
            ]
        )


def _is_left_over(path: str, held: HeldOutput) -> bool:
    """Tell whether a file was made by this run or an earlier one, by its name."""
    epoch = _ATTEMPT.search(path)
    return epoch is not None and int(epoch[1]) <= int(held.run_id)
