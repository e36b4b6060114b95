"""Every word of the glossary has one entry, and the names in it exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENTRY = re.compile(r"^\| \*\*([a-z ]+)\*\* \| (.+?) \| (.+?) \|$", re.MULTILINE)
ENTRIES = ENTRY.findall((ROOT / "docs/glossary.md").read_text())
WORDS = (
    "record, batch, cell, unit, slice, task, stage, barrier, shard, block, row, source, lane, split, origin, books, "
    "receipt, quarantine, fingerprint, mixture, phase, training batch, kernel, intermediate data, word"
)


def test_each_word_has_one_entry():
    assert sorted(word for word, *_ in ENTRIES) == sorted(WORDS.split(", "))


def test_names_are_defined_in_the_modules_next_to_them():
    for word, _, code in ENTRIES:
        modules = re.findall(r"(?:`(\w+)` in )?`([\w/]+\.py)`", code)
        assert modules, word
        for name, path in modules:
            source = (ROOT / "src/gristmill" / path).read_text()
            assert re.search(rf"^(class |def )?{name}\b", source, re.MULTILINE), f"{word}: {name} in {path}"
