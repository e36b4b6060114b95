"""The end of the demonstration: a few of the same files become packed rows, and the rows become batches."""

from __future__ import annotations

import json
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from gristmill.core.errors import GristmillError
from gristmill.core.recipe import Recipe
from gristmill.pipeline.api import run
from gristmill.pipeline.tokenizers import train
from gristmill.steps.pack.pack import Pack
from gristmill.steps.read import Read
from gristmill.steps.tokenize.tokenize import Tokenize
from gristmill.stream import Stream

ROW_LENGTH = 256
BATCH_SIZE = 4


@dataclass(frozen=True, slots=True)
class Streamed:
    """What was streamed."""

    num_rows: int
    shape: tuple[int, int]
    steps: list[list[str]]
    """For each of the first steps, the files whose documents it read."""
    accounts: str


def stream_demo(folder: Path | None = None) -> Streamed:
    """Pack Python's `json` package (or `folder`) and stream it; checks that a resumed run reads just what is left."""
    folder = folder or Path(sysconfig.get_path("stdlib")) / "json"
    read = Read(read=str(folder / "*.py"), format="text")
    with TemporaryDirectory(prefix="gristmill-demo-") as scratch:
        tokenizer, output = f"{scratch}/tokenizer", f"{scratch}/rows"
        train(tokenizer, read, vocab_size=512, special_tokens=["<|endoftext|>"], max_bytes=10**7)
        steps = [Tokenize(tokenizer=tokenizer), Pack(row_length=ROW_LENGTH)]
        run(Recipe(sources={"python": read}, steps=steps, output=output), backend="serial", progress=False)
        stream = Stream(output, seed=7, epochs=1)
        first = next(iter(stream.batches(BATCH_SIZE)))
        resumed = Stream(output, seed=7, epochs=1)
        resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
        rest = [batch["input_ids"][batch.row_mask] for batch in resumed.batches(BATCH_SIZE - 1)]
        whole = Stream(output, seed=7)
        if not np.array_equal(np.concatenate(rest), whole.rows(BATCH_SIZE, len(stream))["input_ids"]):
            raise GristmillError("the resumed stream did not give the rows that were left", help="report this bug")
        return Streamed(
            num_rows=len(stream),
            shape=first["input_ids"].shape,
            steps=[_files(whole, step) for step in range(3)],
            accounts=resumed.accounting.log_line(),
        )


def _files(stream: Stream, step: int) -> list[str]:
    found = stream.where(step, BATCH_SIZE)
    return sorted({Path(document.origin.path).name for row in found for document in row.documents})
