"""Training a classifier on the texts of two sources, with some held out to tell how good it is."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import TEXT, TEXT_TYPE
from gristmill.core.seeds import hash_bound, hash_texts
from gristmill.steps.read import choose_training_files, list_source_files, open_reader, plan_schema
from gristmill.storage.commit import write_file
from gristmill.storage.listing.paths import find_files
from gristmill.text.classifiers.linear_model import train_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.core.records import QuarantinedRecord
    from gristmill.steps.read import Read

_HELD_OUT = 0.1


@dataclass(frozen=True, slots=True)
class ClassifierSummary:
    """The examples of a classifier, and how many of those that were held out it gets right."""

    path: str
    num_good: int
    num_bad: int
    num_held_out: int
    accuracy: float
    """The mean of the shares of good and of bad examples that are on their side of 0.5; NaN if a class has none."""
    num_unreadable: int = 0
    """The records that were left out: damaged, or without a text."""


def train_classifier(
    good: Read, bad: Read, path: str, *, max_documents: int = 100_000, epochs: int = 10
) -> ClassifierSummary:
    """Train a classifier on good and bad texts, and write its file. A tenth of the texts, by their hash, tests it."""
    if Path(path).exists():
        raise UsageError(f"{path} already exists", help="choose another name, or remove it")
    unreadable: list[QuarantinedRecord] = []
    classes = [list(_read_texts(read, max_documents, unreadable)) for read in (good, bad)]
    training, held_out = [], []
    for texts in classes:
        hashes = hash_texts(0, "classifier", pa.array(texts, TEXT_TYPE))
        is_held_out = (hashes < np.uint64(hash_bound(_HELD_OUT))).tolist()
        training.append([text for text, is_test in zip(texts, is_held_out, strict=True) if not is_test])
        held_out.append([text for text, is_test in zip(texts, is_held_out, strict=True) if is_test])
    for read, texts, kept_texts in zip((good, bad), classes, training, strict=True):
        if not kept_texts:
            damage = f", and not {len(unreadable)} records: {unreadable[0].message}" if unreadable else ""
            raise UsageError(
                f"too few examples in {read.read}: {len(texts)} texts can be read{damage}",
                help="give some hundred examples of each class; a tenth of them is held out",
            )
    model = train_model(training[0], training[1], epochs=epochs)
    shares = []
    for texts, is_good in zip(held_out, (True, False), strict=True):
        if texts:
            scores = model.score(pa.array(texts, TEXT_TYPE))
            shares.append(float(np.mean((scores >= 0.5) == is_good)))
    write_file(path, model.to_bytes(), secrets.token_hex(8))
    accuracy = sum(shares) / 2 if len(shares) == 2 else float("nan")
    num_held_out = sum(map(len, held_out))
    return ClassifierSummary(path, len(classes[0]), len(classes[1]), num_held_out, accuracy, len(unreadable))


def _read_texts(read: Read, max_documents: int, unreadable: list[QuarantinedRecord]) -> Iterator[str]:
    """Read the first texts of a source; adds the records among them that cannot be used to `unreadable`."""
    files = choose_training_files(list_source_files("classifier", read, find_files(read.read), needs_train=False))
    schema = plan_schema(read, files, keeps_record=False)
    num_left = max_documents
    for file in files:
        for cell in open_reader(read, file, schema).read_cells():
            unreadable += cell.quarantined
            texts = cell.batch.column(TEXT).to_pylist()[:num_left]
            yield from texts
            num_left -= len(texts)
            if num_left <= 0:
                return
