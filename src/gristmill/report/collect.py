"""Samples of records that a report shows.

They are chosen by hashes of the dataset's own hash, so that the same dataset gives the same report. The cost does not
grow with the dataset: a few dozen rows are read.
"""

from __future__ import annotations

from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import xxhash

from gristmill.core.records import INPUT_IDS
from gristmill.report.model import Samples, ShownRecord
from gristmill.report.plain_json import replace_surrogates, restore_pictures, show_record
from gristmill.shards.dataset import open_file
from gristmill.shards.formats.shard_format import open_shard
from gristmill.shards.token_rows import LENGTHS

if TYPE_CHECKING:
    from gristmill.shards.dataset import Dataset
    from gristmill.shards.manifests.stored_files import Shard, StoredFile

_MAX_CHARACTERS = 1200
_ALL_CHARACTERS = 400_000
"""The texts of all samples together have at most about this many characters, so that a page stays below 1 MB."""
_FIRST_ROWS = 200
"""In formats without random access, samples are taken from this many first rows of a shard."""
_CHANGED = "changed"


def collect_samples(dataset: Dataset, wanted: int, *, reads_shards: bool = True) -> Samples:
    """Collect up to `wanted` records of each kind; `reads_shards`: whether kept ones, too."""
    max_characters = min(_MAX_CHARACTERS, _ALL_CHARACTERS // max(1, 4 * wanted))
    kept_records = _read_kept(dataset, wanted, max_characters) if reads_shards else []
    lines = [_read_lines(dataset, file, wanted) for file in dataset.manifest.dropped] if wanted else []
    # One of each step and reason after another, so that all of them are seen.
    in_turn = [line for turn in zip_longest(*lines) for line in turn if line is not None]
    changed = [_make_sample(line, max_characters) for line in in_turn if line.get("reason") == _CHANGED][:wanted]
    dropped = [_make_sample(line, max_characters) for line in in_turn if line.get("reason") != _CHANGED][:wanted]
    files = [_read_lines(dataset, file, wanted) for file in dataset.manifest.quarantine.files] if wanted else []
    bad = [line for turn in zip_longest(*files) for line in turn if line is not None][:wanted]
    quarantined = [_make_sample(line, max_characters) for line in bad]
    clusters = [cluster for step in dataset.manifest.deduplicated for cluster in step.largest][:wanted]
    num_texts = sum(len(cluster.samples) for cluster in clusters)
    return Samples(
        wanted=wanted,
        num_records=len(kept_records) + len(dropped) + len(changed) + len(quarantined) + num_texts,
        kept=kept_records,
        dropped=dropped,
        changed=changed,
        quarantined=quarantined,
        clusters=clusters,
    )


def _read_kept(dataset: Dataset, wanted: int, max_characters: int) -> list[ShownRecord]:
    """Read some rows, in the order of their numbers."""
    samples = []
    names = {file.path: file.relative for file in dataset.manifest.files.values()}
    for number, split in _choose_rows(dataset, wanted):
        text = show_row(dataset, number)
        origins = dataset.origins(number)
        # Paths below their source's root: those of the machine are nobody's business.
        places = [f"{origin.source}:{names.get(origin.path, '')}@{origin.position}" for origin in origins[:1]]
        place = "".join(places) + (f" and {len(origins) - 1} more" if len(origins) > 1 else "")
        samples.append(ShownRecord(place=place, split=split, **_cut_text(text, max_characters)))
    return samples


def _choose_rows(dataset: Dataset, wanted: int) -> list[tuple[int, str]]:
    """Choose the numbers of rows by hashes, each with its split."""
    starts: list[tuple[int, str, Shard]] = []
    start = 0
    for split, _, shard in dataset.manifest.shards():
        starts.append((start, split, shard))
        start += shard.rows
    if dataset.manifest.format == "arrow":
        ends = np.array([first + shard.rows for first, _, shard in starts])
        numbers = {_hash(dataset, "row", number) % start for number in range(wanted)} if start else set()
        return [(number, starts[int(np.searchsorted(ends, number, "right"))][1]) for number in sorted(numbers)]
    with_rows = [entry for entry in starts if entry[2].rows]
    chosen = sorted(with_rows, key=lambda entry: _hash(dataset, "shard", entry[0]))[:3]
    rows = []
    for first, split, shard in sorted(chosen, key=lambda entry: entry[0]):
        num_first = min(shard.rows, _FIRST_ROWS)
        numbers = {
            _hash(dataset, shard.path, number) % num_first for number in range(max(1, wanted // max(1, len(chosen))))
        }
        rows += [(first + number, split) for number in sorted(numbers)] if wanted else []
    return rows


def _hash(dataset: Dataset, purpose: str, number: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{dataset.manifest.dataset_hash}/{purpose}/{number}".encode())


def _read_lines(dataset: Dataset, file: StoredFile, wanted: int) -> list[dict[str, Any]]:
    with open_file(dataset, file) as path:
        return list(islice(open_shard(path, "jsonl").rows(), wanted))


def _make_sample(line: dict[str, Any], max_characters: int) -> ShownRecord:
    """Make a sample of a line of `dropped/` or `quarantine/`. The lines may have been written by anyone."""
    file = line.get("file") or line.get("path") or ""
    place = line.get("place") or f"{line.get('source', '')}:{file}@{line.get('position', '')}"
    record = line.get("record")
    text = record if record is not None else line.get("passage") or line.get("error") or ""
    if isinstance(text, str) and text.startswith(("{", "[")):
        try:
            text = restore_pictures(msgspec.json.decode(text))
        except (msgspec.DecodeError, RecursionError):
            pass
    facts: dict[str, Any] = {
        name: value for name in ("failed", "thresholds") if isinstance(value := line.get(name), dict)
    }
    reason = str(line.get("reason", ""))
    if line.get("error") and record is not None:
        reason = f"{reason}: {str(line['error'])[:200]}"
    return ShownRecord(
        place=str(place),
        step=str(line.get("step", "")),
        reason=reason,
        before=str(line.get("before", "")),
        after=str(line.get("after", "")),
        **(facts | _cut_text("" if "before" in line else show_record(text), max_characters)),
    )


def show_row(dataset: Dataset, number: int) -> str:
    """Show a row as text: tokens decoded, or their ids where the dataset has no tokenizer."""
    record = dataset[number]
    if not dataset.manifest.holds_rows:
        return show_record(record)
    if dataset.manifest.tokenizer is not None and dataset.manifest.tokenizer.files:
        return dataset.decode(number)
    return " ".join(map(str, record[INPUT_IDS][: int(record[LENGTHS].sum())].tolist()))


def _cut_text(text: str, max_characters: int) -> dict[str, Any]:
    text = replace_surrogates(text)
    if len(text) <= max_characters:
        return {"text": text}
    return {"text": text[:max_characters], "num_characters": len(text)}
