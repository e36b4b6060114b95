"""The sources of a lane that was interleaved when it was written, by the input files that origins name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gristmill.shards.manifests.manifest import Manifest


@dataclass(frozen=True, slots=True)
class OriginSources:
    """The source of each input file, in the mixed lane of one dataset."""

    files: NDArray[np.uint64]
    """The ids of the input files, sorted."""
    numbers: NDArray[np.uint16]
    """The number of each file's source in `names`."""
    names: list[str]
    labels: list[str]
    """The names that people see: prefixed with the dataset's name if there are several."""
    shares: Mapping[str, float]
    """The share of each label in the rows of the lane."""

    @classmethod
    def of(cls, manifest: Manifest, split: str, dataset: str) -> OriginSources:
        """Find the sources of a mixed lane; `dataset` is its name in a stream of several, else empty."""
        rows = {source: share.rows for source, share in manifest.mixed[split].items()}
        files = sorted((int(key, 16), file.source) for key, file in manifest.files.items() if file.source in rows)
        names = list(rows)
        labels = [f"{dataset}/{name}" if dataset else name for name in names]
        total = max(sum(rows.values()), 1)
        return cls(
            np.array([number for number, _ in files], dtype=np.uint64),
            np.array([names.index(source) for _, source in files], dtype=np.uint16),
            names,
            labels,
            {label: count / total for label, count in zip(labels, rows.values(), strict=True)},
        )

    def label(self, source: str) -> str:
        """Return the name of a source that people see."""
        return self.labels[self.names.index(source)]
