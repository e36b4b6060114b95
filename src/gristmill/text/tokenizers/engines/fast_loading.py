"""Loading a tokenizer of `fastokens`, if asked for early in a thread: it takes 0.2 s without the interpreter lock.

A worker begins it before its imports, which take as long. Nothing heavy is imported here.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

_loads: dict[bytes, _Load] = {}
"""By the content of `tokenizer.json`: what is being loaded."""


class _Load(threading.Thread):
    """The loading of one tokenizer."""

    def __init__(self, data: bytes) -> None:
        super().__init__(name="gristmill-tokenizer", daemon=True)
        self._data = data
        self.tokenizer: Any = None

    def run(self) -> None:
        try:
            self.tokenizer = _load(self._data)
        except BaseException:  # whoever asks for it loads it again, and sees why
            self.tokenizer = None


def begin_loading(path: str) -> None:
    """Begin to load the tokenizer in a file."""
    data = Path(path).read_bytes()
    _loads[data] = _Load(data)
    _loads[data].start()


def load_tokenizer(data: bytes) -> Any:
    """Load a tokenizer from the content of its file. Raises `ValueError` if the engine does not understand it."""
    load = _loads.pop(data, None)
    if load is not None:
        load.join()
        if load.tokenizer is not None:
            return load.tokenizer
    return _load(data)


def _load(data: bytes) -> Any:
    import fastokens  # noqa: PLC0415

    return fastokens.Tokenizer.from_json_str(data.decode())
