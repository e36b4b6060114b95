"""The export format `lines`: plain text with one document a line, as fastText and KenLM read it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.exports.layout import ExportFormat, PlannedFile
from gristmill.shards.formats.shard_format import open_shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.exports.layout import ExportSplit, ShardSlot, Targets
    from gristmill.shards.manifest import Manifest


class LinesFormat(ExportFormat):
    """Plain text, one file for each shard."""

    name = "lines"

    def check_dataset(self, manifest: Manifest, folder: Path) -> None:
        if manifest.holds_rows:
            raise UsageError(f"{folder} holds {manifest.kind}, and lines is a format for documents")

    def make_layout(self, split: ExportSplit) -> LinesLayout:
        return LinesLayout(split.name, len(split.slots), split.manifest.format)


@dataclass(frozen=True, slots=True)
class LinesLayout:
    """The files of one split."""

    split: str
    num_files: int
    stored_format: str

    @property
    def files(self) -> Sequence[PlannedFile]:
        return [PlannedFile(self._name(number)) for number in range(self.num_files)]

    def later_names(self) -> Iterator[str]:
        return map(self._name, itertools.count(self.num_files))

    def fill(self, slot: ShardSlot, targets: Targets) -> None:
        with Path(targets.paths[slot.number]).open("w", encoding="utf-8") as file:
            for row in open_shard(Path(slot.path), self.stored_format).rows():
                file.write(" ".join(row["text"].split()) + "\n")

    def usage(self, prefix: str) -> str:
        return f"cat {prefix}_{self.split}-*.txt"

    def _name(self, number: int) -> str:
        return f"_{self.split}-{number:05d}.txt"
