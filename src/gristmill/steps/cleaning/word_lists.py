"""Lists of words or domains in files of the user or of installed packages: one entry a line."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from gristmill.core.errors import UsageError

_PACKAGE = "package:"


def read_list(step: str, path: str, folder: str) -> list[str]:
    """Read a list; `package:NAME/path/in/it.txt` is a file of an installed package.

    Raises:
        UsageError: It cannot be read, is not UTF-8, or is empty.
    """
    file = _find_in_package(step, path.removeprefix(_PACKAGE)) if path.startswith(_PACKAGE) else Path(folder, path)
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise UsageError(f"{step}: cannot read the list {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{step}: the list {file} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    words = [line.strip() for line in lines if line.strip()]
    if not words:
        raise UsageError(f"{step}: the list {file} is empty", help="write one word or phrase a line")
    return words


def _find_in_package(step: str, path: str) -> Path:
    name, _, inside = path.partition("/")
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f'{step}: there is no package "{name}"', help="install it, or name a file")
    return Path(next(iter(spec.submodule_search_locations)), inside)
