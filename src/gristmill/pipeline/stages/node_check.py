"""Whether a node of a cluster sees what the driver sees: the output folder, and the inputs. Code travels with it."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from gristmill.core.errors import ClusterError, RemoteStoreError
from gristmill.core.recipe import step_parameters
from gristmill.pipeline.work_folder import work_path
from gristmill.runtime.function import Function
from gristmill.runtime.shipped_code import ShippedCode, collect_code
from gristmill.storage.commit import PendingFile
from gristmill.storage.locations import Location, measure_file, parse_location
from gristmill.text.tokenizers.files import TOKENIZER, TokenizerFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gristmill.pipeline.planning.sources.source_plan import SourcePlan

_HELP = "mount the same file system on every node, or put inputs and output on an object store"


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """A token that the driver has written to its folders, an input file of each source with its size, tokenizers."""

    locations: tuple[Location, ...]
    """In the output folder, and in that of intermediate data if it is another one."""
    token: bytes
    files: tuple[tuple[str, int], ...]
    tokenizers: tuple[tuple[str, str], ...]
    """The path and the xxh3 of each: the stage that needs one may come after hours."""
    code: ShippedCode
    """The code of functions, which is used in place of what the node has."""


def write_node_check(folders: Iterable[Location], sources: Sequence[SourcePlan], run_id: str) -> NodeCheck:
    """Write a token to the folders of a run, which every worker reads before its first task."""
    locations = tuple(folder / work_path(f"token-{run_id}") for folder in dict.fromkeys(folders))
    token = secrets.token_bytes(16)
    for location in locations:
        with PendingFile(location, run_id) as file:
            file.write(token)
            file.commit(sync=False)
    first_files = [source.files[0] for source in sources if source.files]
    steps = [step for source in sources for stage in source.stages for step in stage.all_steps]
    functions = [value for step in steps for value in step_parameters(step).values() if isinstance(value, Function)]
    values = (getattr(step, name) for step in steps for name in step.__struct_fields__)
    tokenizers = {(value.path, value.files[TOKENIZER]) for value in values if isinstance(value, TokenizerFiles)}
    return NodeCheck(
        locations,
        token,
        tuple((file.path, file.num_bytes) for file in first_files),
        tuple(sorted(tokenizers)),
        collect_code(functions),
    )


@cache
def check_node(check: NodeCheck) -> None:
    """Raise `ClusterError` if this machine does not see what the driver sees; use the driver's code. Once a process."""
    host = socket.gethostname()
    for location in check.locations:
        try:
            token = location.read_bytes()
        except (OSError, RemoteStoreError) as error:
            raise ClusterError(f"node {host} cannot read {location}: {error}", help=_HELP) from error
        if token != check.token:
            raise ClusterError(f"node {host} sees another folder at {location.parent} than the driver", help=_HELP)
    for path, num_bytes in check.files:
        size = measure_file(parse_location(path))
        if size is None:
            raise ClusterError(f"node {host} does not see the input file {path}", help=_HELP)
        if size != num_bytes:
            raise ClusterError(
                f"node {host} sees {path} with {size:,} bytes, and the driver with {num_bytes:,}", help=_HELP
            )
    for path, xxh3 in check.tokenizers:
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise ClusterError(f"node {host} cannot read the tokenizer {path}: {error}", help=_HELP) from error
        if xxhash.xxh3_64_hexdigest(content) != xxh3:
            raise ClusterError(f"node {host} has another tokenizer at {path} than the driver", help=_HELP)
    check.code.install()
