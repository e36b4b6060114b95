"""Writing `report.json` and `report.html` of a finished dataset.

They are written after the manifest: a run that is killed in between has a whole dataset, whose `report.json` holds only
what follows from the manifest. The next run, or `gristmill report`, completes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import xxhash

from gristmill.core.errors import UsageError
from gristmill.core.recipe import DEFAULT_SAMPLES, MAX_SAMPLES
from gristmill.report.collect import collect_samples
from gristmill.report.measure import measure_documents
from gristmill.report.model import Report, RunTimes
from gristmill.report.page import make_page
from gristmill.report.thresholds import find_curves
from gristmill.shards.dataset import Dataset
from gristmill.shards.manifests.stored_files import StoredFile
from gristmill.shards.report import REPORT, REPORT_PAGE, encode_report, make_report
from gristmill.storage.commit import write_file
from gristmill.storage.locations import StorePath
from gristmill.storage.stored_paths import path_below

if TYPE_CHECKING:
    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.storage.locations import Location


def write_report(
    folder: Location,
    manifest: Manifest,
    run_id: str,
    *,
    samples: int = DEFAULT_SAMPLES,
    run: RunTimes | None = None,
    reads_store: bool = False,
) -> Report:
    """Write the report of a dataset into its folder. From a store shards are only read if `reads_store`."""
    report = complete_report(folder, manifest, samples=samples, run=run, reads_store=reads_store)
    page = make_page(report, folder.name or str(folder)).encode(errors="backslashreplace")
    stored = StoredFile(path=REPORT_PAGE, bytes=len(page), xxh3=xxhash.xxh3_64_hexdigest(page))
    report = msgspec.structs.replace(report, page=stored)
    write_file(path_below(folder, REPORT_PAGE), page, run_id)
    write_file(path_below(folder, REPORT), encode_report(report), run_id)
    return report


def complete_report(
    folder: Location, manifest: Manifest, *, samples: int, run: RunTimes | None = None, reads_store: bool = True
) -> Report:
    """Make the whole report of a dataset, without its page."""
    if not 0 <= samples <= MAX_SAMPLES:
        raise UsageError(f"samples must be from 0 to {MAX_SAMPLES}, not {samples}")
    dataset = Dataset(folder, manifest)
    reads_shards = reads_store or not isinstance(folder, StorePath)
    lengths, languages = measure_documents(dataset) if reads_shards else (None, [])
    derived = make_report(manifest)
    return Report(
        **{name: getattr(derived, name) for name in derived.__struct_fields__},
        samples=collect_samples(dataset, samples, reads_shards=reads_shards),
        lengths=lengths,
        languages=languages,
        curves=find_curves(dataset) if reads_shards and manifest.scores else [],
        run=run,
    )


def load_report(folder: Location) -> Report | None:
    """Load the report of a dataset; None if there is none that this version can read."""
    try:
        return msgspec.json.decode((folder / REPORT).read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
