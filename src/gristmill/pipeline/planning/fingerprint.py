"""Fingerprints: hashes of everything that decides the bytes of an output.

What decides none (workers, backend, timeouts, limits) is not part of them.
"""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from gristmill.core.recipe import step_parameters
from gristmill.runtime.function import Function
from gristmill.storage.installed_versions import find_version

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gristmill.core.step import Step

# Libraries whose version may change the bytes that they write or the records that they accept.
_FINGERPRINTED_LIBRARIES = ("lz4", "msgspec", "numpy", "pyarrow", "xxhash", "zstandard")


def find_versions() -> dict[str, str]:
    """Find the versions that the output depends on, for fingerprints and the manifest."""
    libraries = {name: find_version(name) for name in _FINGERPRINTED_LIBRARIES}
    # Not imported by name: in the layer contract the package itself is above everything that it exports.
    own = sys.modules["gristmill"].__version__
    return {"gristmill": own, "python": platform.python_version(), **libraries}


def of(*parts: Any) -> str:
    """Hash plain data to 128 bits."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts, order="sorted"))


def describe_steps(steps: Iterable[Step]) -> list[Any] | None:
    """List the names, versions, parameters and code of steps; None if the code of a function cannot be known."""
    described = []
    for step in steps:
        parameters = {
            name: value for name, value in step_parameters(step).items() if name not in step.not_fingerprinted
        }
        for name, value in parameters.items():
            if isinstance(value, Function):
                parameters[name] = value.fingerprint()
                if parameters[name] is None:
                    return None
        described.append([step.name, step.fingerprint_versions, parameters])
    return described
