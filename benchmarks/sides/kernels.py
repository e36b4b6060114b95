"""Compiled kernels on small fixed inputs. Each entry prepares its input and returns the call to be measured."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.inputs.sentences import list_sentences

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_TEXTS = 200
ROW_LENGTH = 2048


def _texts() -> list[str]:
    pool = list_sentences()[:4000]
    return [" ".join(pool[first : first + 18]) for first in range(0, NUM_TEXTS * 18, 18)]


def _text_array():
    import pyarrow as pa

    return pa.array(_texts(), pa.large_string())


def _packing():
    import numpy as np

    from gristmill.steps.pack import Pack

    generator = np.random.default_rng(7)
    lengths = np.maximum(1, generator.lognormal(6, 1.2, 3000)).astype(np.int64)
    return Pack(row_length=ROW_LENGTH), lengths


def pack_plan() -> Callable[[], object]:
    from gristmill.steps.pack_rows import plan_rows

    pack, lengths = _packing()
    return lambda: plan_rows(pack, lengths)


def pack_fill() -> Callable[[], object]:
    import numpy as np

    from gristmill.steps.pack_rows import fill_rows, plan_rows

    pack, lengths = _packing()
    packing = plan_rows(pack, lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.arange(offsets[-1]).astype(np.uint16)
    return lambda: fill_rows([ids], offsets, packing, ROW_LENGTH, pad_id=0)


def quality() -> Callable[[], object]:
    from gristmill import steps
    from gristmill.core.records import documents

    batch = documents(_texts())
    kernels = [step().load() for step in (steps.GopherRepetition, steps.GopherQuality, steps.Fineweb)]
    return lambda: [kernel.apply(batch, 0) for kernel in kernels]


def language() -> Callable[[], object]:
    from gristmill import steps
    from gristmill.core.records import documents

    batch, kernel = documents(_texts()), steps.Language().load()
    return lambda: kernel.apply(batch, 0)


def minhash() -> Callable[[], object]:
    from gristmill.steps import Deduplicate

    texts, signer = _text_array(), Deduplicate().minhash
    return lambda: signer.sign(texts)


def json_elements() -> Callable[[], object]:
    from gristmill.readers.texts.json_elements import ElementScanner

    data = json.dumps([{"id": number, "text": text} for number, text in enumerate(_texts())]).encode()
    return lambda: ElementScanner(is_open=False).split(data)


def collate() -> Callable[[], object]:
    from benchmarks.inputs.token_datasets import write_dataset
    from gristmill.stream import Collate, Stream

    folder = Path(tempfile.mkdtemp())
    write_dataset(folder, num_shards=1, rows_a_shard=256, row_length=ROW_LENGTH)
    stream = Stream(folder, collate=Collate(fields=("input_ids", "labels", "position_ids")))
    return lambda: stream.batch(0, 32)


KERNELS = {
    "pack-plan": pack_plan,
    "pack-fill": pack_fill,
    "quality": quality,
    "language": language,
    "minhash": minhash,
    "json-elements": json_elements,
    "collate": collate,
}
