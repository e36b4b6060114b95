"""The files of a source: found, checked, and never the recipe's own output."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import UsageError
from gristmill.pipeline.planning.sources.python_records import find_spooled_split
from gristmill.steps.read import (
    choose_split_files,
    find_source_tokenizer,
    looks_like_path,
    make_source_files,
    refuse_unfinished,
    with_detected_format,
)
from gristmill.storage.checksums import compute_file_checksum
from gristmill.storage.listing.paths import find_files, list_files
from gristmill.storage.urls import find_protocol, local_path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from gristmill.core.recipe import Recipe
    from gristmill.core.records import SourceFile
    from gristmill.shards.tokenizer_snapshot import TokenizerSnapshot
    from gristmill.steps.read import Read
    from gristmill.storage.listing.paths import FileListing, ListedFile


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files of a source, and how they are read."""

    read: Read
    """The step as the recipe has it; for the folder of a dataset, with its format."""
    files: tuple[SourceFile, ...]
    tokenizer: TokenizerSnapshot | None = None
    """The tokenizer of the ids, where the source is a dataset of tokens."""
    notes: tuple[str, ...] = ()
    """Notes on files that match and are not read."""
    empty_splits: tuple[str, ...] = ()
    """Splits that have no file."""


def find_inputs(recipe: Recipe, name: str, read: Read, *, is_spooled: bool = False) -> Inputs:
    """Find the files of a source.

    Files that the run itself has spooled are in its output folder, and are identified by their content.
    """
    if is_spooled:
        splits: dict[str, list[ListedFile]] = {}
        for file in find_files(read.read):
            splits.setdefault(find_spooled_split(read, file), []).append(file)
        return Inputs(read, _add_checksums(make_source_files(name, splits)))
    patterns = [read.read] if isinstance(read.read, str) else read.read
    local = [local_path(pattern) for pattern in patterns if find_protocol(pattern) is None]
    refuse_own_output(recipe, [recipe.path(pattern) for pattern in local])
    refuse_unfinished(patterns, recipe.folder)
    listing = _list_files(read, recipe)
    folders = {file.path.rpartition("/")[0] for file in listing.files if find_protocol(file.path) is None}
    folders |= {target.rpartition("/")[0] for target in listing.link_targets}
    refuse_own_output(recipe, folders)
    read = with_detected_format(read, listing.files)
    chosen = choose_split_files(name, read, listing.files)
    files = _add_checksums(chosen.files) if recipe.identity == "content" else tuple(chosen.files)
    notes = (*chosen.notes, *_describe_skipped_links(listing))
    return Inputs(read, files, find_source_tokenizer(read, listing.files), notes, chosen.empty_splits)


def _list_files(read: Read, recipe: Recipe) -> FileListing:
    try:
        return list_files(read.read, base=recipe.folder)
    except UsageError as error:
        if isinstance(read.read, list) and not any(map(looks_like_path, read.read)):
            error.help = f'{error.help}; if these are texts and not paths, make each a dict: {{"text": ...}}'
        raise


def _describe_skipped_links(listing: FileListing) -> Iterator[str]:
    """Describe which links are left out: how many, why, and the first of them."""
    for links, why in (
        (listing.links_outside, "to folders elsewhere, which are read only where they are named"),
        (listing.duplicate_links, "to files that are read under another name"),
    ):
        if links:
            yield f"{len(links):,} symbolic links left out, {why}: {links[0]}{' …' if len(links) > 1 else ''}"


def _add_checksums(files: Iterable[SourceFile]) -> tuple[SourceFile, ...]:
    return tuple(msgspec.structs.replace(file, content=compute_file_checksum(file.path)) for file in files)


def refuse_own_output(recipe: Recipe, folders: Collection[str]) -> None:
    """Raise `UsageError` for a folder that this recipe itself writes to."""
    written = {"output": recipe.output} | ({"work": recipe.work} if recipe.work is not None else {})
    for key, written_folder in written.items():
        place = Path(os.path.realpath(recipe.path(written_folder)))
        for folder in folders:
            if Path(os.path.realpath(folder)).is_relative_to(place):
                raise UsageError(
                    f"{folder} is the {key} of this recipe, which cannot read what it writes",
                    help=f"choose another {key}, or name the files to read more exactly",
                )
