"""Names for finished files: where each file of the work folder goes in the dataset.

Nothing is moved here. The placer collects moves, and `journal.replace_dataset` makes them. A file that is already in
its place stays there, and no name is given twice, so an update never writes over a file that may still be read.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from itertools import chain, count
from typing import TYPE_CHECKING

import msgspec

from gristmill.pipeline.publishing.journal import manifest_paths
from gristmill.pipeline.stages.receipts import encode_receipt
from gristmill.pipeline.work_folder import is_work_path
from gristmill.shards.stored_files import LaneIndex, Shard, StoredFile
from gristmill.shards.token_rows import is_masked
from gristmill.storage.commit import is_lease_epoch
from gristmill.storage.folders import KnownFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.stages.outputs.split_files import ScoreBlocks, SplitFile
    from gristmill.pipeline.stages.stage_context import SliceResult
    from gristmill.pipeline.stages.unit_tasks import StageUnit
    from gristmill.shards.manifest import Manifest


class FilePlacer:
    """Chooses the names of a dataset's files; `old` is the manifest of the dataset that will be replaced."""

    def __init__(self, plan: Plan, old: Manifest | None, run_id: str) -> None:
        self.run_id = run_id
        self._files = KnownFiles(plan.output)
        self._mark = f"-{run_id}-{secrets.token_hex(4)}" if is_lease_epoch(run_id) else ""
        """What makes a name that of this run where others may write, too: nothing there is ever overwritten."""
        self._write = plan.write
        self._suffix = plan.write.suffix
        self._is_masked = is_masked(plan.shard_schema)
        self._used = set(manifest_paths(old))
        self._old = [*old.stored_files()] if old is not None else []
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
        """For each folder, the numbers that were not tried yet."""
        self.moves: list[tuple[str, str]] = []
        """Paths in the work folder, and their places in the dataset."""
        self._score_ranges: dict[tuple[str, int], ScoreBlocks] = {}
        """For each file of blocks, and the start of the blocks in it, where they are in the dataset."""

    def place_shard(self, file: SplitFile, source: str, fingerprint: str | None) -> Shard:
        """Place a shard with its origins; `fingerprint` names the unit that made it."""
        data, origins = file.data, file.origins
        if is_work_path(data.path):  # else an update reuses a shard of the old dataset
            folder = f"{file.split}/{source}"
            names = (self._write.name_shard(file.split, source, number) for number in self._numbers[folder])
            stem = self._find_free_stem((f"{folder}/{name}{self._mark}" for name in names), self._suffix)
            data = self._move_file(data, stem + self._suffix)
            origins = self._move_file(origins, f"origins/{stem}.arrow") if origins is not None else None
        return Shard(
            path=data.path,
            bytes=data.bytes,
            xxh3=data.xxh3,
            rows=file.rows,
            tokens=file.tokens or None,
            trained_tokens=file.trained_tokens if self._is_masked else msgspec.UNSET,
            tasks=[fingerprint] if fingerprint is not None else [],
            origins=origins,
        )

    def place_lines(self, folder: str, name: str, file: StoredFile) -> StoredFile:
        """Place a file of JSON lines."""
        return self._place_side_file(f"{folder}/{name}", ".jsonl", file)

    def place_duplicates(self, file: StoredFile) -> StoredFile:
        """Place the table of removed duplicates."""
        return self._place_side_file("dropped/duplicates", ".parquet", file)

    def place_scores(
        self, source: str, stage: int, file: StoredFile, ranges: Iterable[tuple[ScoreBlocks, int]]
    ) -> StoredFile:
        """Place a score file; `ranges` are the blocks that it was made of, and where they are in it."""
        path = self._place_side_file(f"scores/{source}/stage-{stage}", ".arrow", file).path
        placed = StoredFile(path=path, bytes=file.bytes, xxh3=file.xxh3)
        for blocks, start in ranges:
            moved = msgspec.structs.replace(blocks, file=placed, start=start)
            self._score_ranges[blocks.file.path, blocks.start] = moved
        return placed

    def place_index(self, split: str, source: str, lane: LaneIndex) -> LaneIndex:
        """Place the index of a split and source."""
        stem = f"index/{split}/{source}"
        costs = None if lane.costs is None else self._place_side_file(f"{stem}.costs", ".arrow", lane.costs)
        return LaneIndex(blocks=self._place_side_file(stem, ".arrow", lane.blocks), costs=costs)

    def place_shard_list(self, file: StoredFile) -> StoredFile:
        """Place the list of all shards."""
        return self._place_side_file("index/shards", ".arrow", file)

    def place_tokenizer(self, files: Mapping[str, StoredFile]) -> list[StoredFile]:
        """Place the files of a tokenizer, by their names, in one folder: the one they are in already, or a new one."""
        first = f"tokenizer{self._mark}"
        for folder in chain(self._list_tokenizer_folders(), [first], (f"{first}-{number}" for number in count(2))):
            old_files = {old.path: old for old in self._old}
            placed = {f"{folder}/{name}": file for name, file in files.items()}
            if all(path in old_files and old_files[path].xxh3 == file.xxh3 for path, file in placed.items()):
                return [old_files[path] for path in placed]
            if not any(self._is_used(path) for path in placed):
                return [self._move_file(file, path) for path, file in placed.items()]
        raise AssertionError("numbers do not end")

    def encode_receipts(self, unit_results: Iterable[tuple[StageUnit, SliceResult]]) -> Iterator[bytes]:
        """Encode the receipts of units with the places of their files in the dataset, for a later update."""
        targets = dict(self.moves)
        for unit, result in unit_results:
            files = [_replace_paths(file, targets) for file in result.split_files]
            scores = [self._score_ranges[blocks.file.path, blocks.start] for blocks in result.scores]
            yield encode_receipt(unit.fingerprint, msgspec.structs.replace(result, split_files=files, scores=scores))

    def _place_side_file(self, stem: str, suffix: str, file: StoredFile) -> StoredFile:
        """Place a file that is no shard. An equal one of the old dataset stays where it is."""
        for old in self._old:
            if old.path.startswith(stem) and (old.bytes, old.xxh3) == (file.bytes, file.xxh3):
                return old if self._exists(old.path) else self._move_file(file, old.path)
        stem += self._mark
        numbered_stems = (f"{stem}-{number}" for number in count(1))
        return self._move_file(file, self._find_free_stem(chain([stem], numbered_stems), suffix) + suffix)

    def _list_tokenizer_folders(self) -> list[str]:
        """List the folders of the old dataset that may hold a tokenizer."""
        folders = (old.path.rpartition("/")[0] for old in self._old)
        return list(dict.fromkeys(folder for folder in folders if folder.startswith("tokenizer") and "/" not in folder))

    def _exists(self, path: str) -> bool:
        return self._files.find_size(path) is not None

    def _move_file(self, file: StoredFile, target: str) -> StoredFile:
        self.moves.append((file.path, target))
        self._used.add(target)
        return StoredFile(path=target, bytes=file.bytes, xxh3=file.xxh3)

    def _find_free_stem(self, stems: Iterable[str], suffix: str) -> str:
        """Find the first stem that is free for a shard and for its origins."""
        for stem in stems:
            if not self._is_used(stem + suffix) and not self._is_used(f"origins/{stem}.arrow"):
                return stem
        raise AssertionError("numbers do not end")

    def _is_used(self, path: str) -> bool:
        """Tell whether the old dataset, this one, or a file that is not ours has this path."""
        return path in self._used or (not self._mark and self._exists(path))


def _replace_paths(split_file: SplitFile, targets: Mapping[str, str]) -> SplitFile:
    placed = {
        name: msgspec.structs.replace(file, path=targets.get(file.path, file.path))
        for name in ("data", "origins")
        if (file := getattr(split_file, name)) is not None
    }
    return msgspec.structs.replace(split_file, versions=[], **placed)  # a dataset may be copied before it is updated
