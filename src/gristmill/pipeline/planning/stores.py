"""The stores that a recipe names: their options are checked, and chosen for every bucket in it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.core.recipe import recipe_to_data
from gristmill.engine.parallel_run import IN_PROCESS_BACKENDS
from gristmill.pipeline.work_folder import check_writable
from gristmill.storage.locations import parse_location
from gristmill.storage.stores.options import check_endpoint, choose_options, name_bucket, parse_options
from gristmill.storage.urls import OBJECT_STORES, find_protocol, refuse_secrets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gristmill.core.recipe import Recipe


def choose_stores(recipe: Recipe, allowed_endpoints: Collection[str]) -> None:
    """Check the URLs and `storage_options` of a recipe, and use the options for its buckets in this process."""
    urls = [text for text in _list_texts(recipe_to_data(recipe)) if find_protocol(text) is not None]
    for url in urls:
        refuse_secrets(url)
        name_bucket(url)
    if recipe.storage_options is None:
        return
    options = parse_options(recipe.storage_options)
    check_endpoint(options, allowed_endpoints)
    for url in urls:
        choose_options(url, options)


def check_work_place(recipe: Recipe, backend: str) -> None:
    """Refuse a place for intermediate data that cannot be written, or that is the output or in it."""
    assert recipe.work is not None
    _check_store(recipe.work, backend)
    work, output = (parse_location(recipe.path(text)) for text in (recipe.work, recipe.output))
    real_work, real_output = (
        os.path.realpath(place) if isinstance(place, Path) else str(place) for place in (work, output)
    )
    if f"{real_work}/".startswith(f"{real_output}/"):
        raise UsageError(
            f"work: {recipe.work} is {'the output' if real_work == real_output else 'inside the output'}",
            help="choose another folder, or leave the key out: intermediate data then goes to the output",
            key="work",
        )
    check_writable(work)


def check_output_store(output: str, backend: str) -> None:
    """Refuse an output that no run can write safely, that workers cannot write, or that is a whole bucket."""
    _check_store(output, backend)
    bucket = output.partition("://")[2].strip("/")
    if find_protocol(output) in OBJECT_STORES and bucket and "/" not in bucket:
        raise UsageError(f"the output {output} is a whole bucket", help=f"name a folder in it: {bucket}/out")


def check_store(url: str) -> None:
    """Refuse a store that nobody can write safely, and a URL with a secret. Local paths are not looked at."""
    refuse_secrets(url)
    protocol = find_protocol(url)
    if protocol is not None and protocol != "memory" and protocol not in OBJECT_STORES:
        raise UsageError(
            f"{url}: {protocol}:// can be read, but not written safely",
            help="write to a local or shared folder, or to s3://, gs:// or az://",
        )


def _check_store(output: str, backend: str) -> None:
    """Refuse a place that no run can write safely, or that is in the memory of this process for workers in others."""
    check_store(output)
    if find_protocol(output) == "memory" and backend not in IN_PROCESS_BACKENDS:
        raise UsageError(
            f"{output} is in the memory of this process, where workers cannot write",
            help='choose backend="serial" or "threads", or another output',
        )


def _list_texts(data: object) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from _list_texts(value)
    elif isinstance(data, Sequence) and not isinstance(data, bytes):
        for value in data:
            yield from _list_texts(value)
