"""The built-in tables of languages: thresholds, stop words and word pieces of four filters.

`benchmarks/studies/language_tables.py` derives the file `language_tables.json` beside this module from translations of
the same pages into 48 languages.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec


@cache
def load_language_tables() -> dict[str, dict[str, dict[str, Any]]]:
    """Read the values of keys by language and step.

    >>> load_language_tables()["de"]["gopher_quality"]["stop_words"][:3]
    ['und', 'die', 'sie']
    """
    content = Path(__file__).with_suffix(".json").read_bytes()
    return msgspec.json.decode(content, type=dict[str, dict[str, dict[str, Any]]])
