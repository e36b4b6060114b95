"""What decides the bytes of an output, in one hash. What does not (workers, backend, timeouts, limits) is not in it."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from gristmill.core.recipe import step_parameters
from gristmill.runtime.function import Function

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gristmill.core.step import Step

# Libraries whose version may change the bytes that they write or the records that they accept.
_FINGERPRINTED_LIBRARIES = ("lz4", "msgspec", "numpy", "pyarrow", "xxhash", "zstandard")


def find_versions() -> dict[str, str]:
    """The versions that shape output, for fingerprints and the manifest."""
    libraries = {name: importlib.metadata.version(name) for name in _FINGERPRINTED_LIBRARIES}
    # Not imported by name: to the layers' check the package's face stands above everything that it shows.
    own = sys.modules["gristmill"].__version__
    return {"gristmill": own, "python": platform.python_version(), **libraries}


def of(*parts: Any) -> str:
    """A 128-bit hash of plain data."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts, order="sorted"))


def describe_steps(steps: Iterable[Step]) -> list[Any] | None:
    """The steps' names, versions, parameters and code; None if the code of a function cannot be known."""
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
