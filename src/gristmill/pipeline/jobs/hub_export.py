"""An export to a repository of the Hugging Face Hub: local files first, then one commit with all of them and a card."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.exports.dataset_card import CARD, make_card
from gristmill.shards.manifests.manifest_file import load_manifest
from gristmill.storage.hub import parse_hub_target
from gristmill.storage.locations import parse_location
from gristmill.storage.user_cache.staging import open_staging_folder

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gristmill.pipeline.jobs.export_result import ExportResult


def export_to_hub(
    dataset: str | os.PathLike[str],
    url: str,
    export_locally: Callable[..., ExportResult],
    licences: dict[str, str],
    *,
    overwrite: bool,
) -> ExportResult:
    """Export to a folder of the user's cache, and add all files and a card to a repository in one commit."""
    repository = parse_hub_target(url)
    manifest = load_manifest(parse_location(dataset))
    for name in licences:
        check_choice("a source in licences", name, sorted(manifest.books))
    name = repository.id.rpartition("/")[2]
    in_repository, last_commit = repository.list_files()
    existing = sorted(path for path in in_repository if path == CARD or path.startswith(f"data/{name}_"))
    if existing and not overwrite:
        more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
        raise UsageError(
            f"{existing[0]}{more} of {repository.url} would be overwritten",
            help="choose another repository, or allow it (--overwrite)",
        )
    with open_staging_folder("exports") as folder:
        exported = export_locally(path=folder / "data" / name)
        files = {file.relative_to(folder).as_posix(): file for file in exported.files}
        sizes = {path: file.stat().st_size for path, file in files.items()}
        patterns = {split: _find_split_pattern(split, name, files) for split in exported.rows}
        card = make_card(name, manifest, exported.rows, patterns, licences)
        message = f"Add {sum(exported.rows.values()):,} rows, dataset hash {manifest.dataset_hash}"
        additions: dict[str, Path | bytes] = {**files, CARD: card.encode()}
        commit = repository.commit(additions, {*existing} - {*additions}, last_commit, message)
    return replace(exported, files=[], usage=[f'load_dataset("{repository.id}")'], uploaded=sizes, commit=commit)


def _find_split_pattern(split: str, name: str, files: Iterable[str]) -> str:
    """Find a pattern for the files of a split in the repository."""
    stem = f"data/{name}_{split}"
    own = [path for path in files if path.startswith(stem)]
    return own[0] if len(own) == 1 else f"{stem}*"
