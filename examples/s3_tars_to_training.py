"""From WebDataset tars of texts on S3 to training batches, with everything between on S3 as well.

    python examples/s3_tars_to_training.py "s3://bucket/raw/*.tar" s3://bucket/rows tokenizers/mine 100

Kill it and start it again, here or elsewhere: the run resumes, and training continues at the next row.
"""

import json
import os
import sys
from pathlib import Path

from torch.utils.data import DataLoader

import gristmill as gm
from gristmill import steps
from gristmill.stream import Stream
from gristmill.stream.torch import TorchDataset


def save(state: dict[str, object], path: Path) -> None:
    """Write a checkpoint, whole or not at all."""
    with path.with_suffix(".tmp").open("w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())  # else a power cut could leave the new name with no content
    Path(file.name).replace(path)


if __name__ == "__main__":
    tars, output, tokenizer, last_step = *sys.argv[1:4], int(sys.argv[4])
    filters = [steps.Length(min_chars=40), steps.Language(languages=["en"], min_score=0.6)]
    make_rows = [steps.Tokenize(tokenizer=tokenizer), steps.Pack(row_length=128)]
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=tars, text="txt")},
        steps=[*filters, *make_rows],
        output=output,
    )
    gm.run(recipe)
    checkpoint = Path("checkpoint.json")
    saved = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0}
    dataset = TorchDataset(Stream(output, seed=7, shuffle={"blocks": 16}, cache="cache"), batch_size=4)
    if "stream" in saved:
        dataset.load_state_dict(saved["stream"])
    batches = iter(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn"))
    for step in range(saved["step"] + 1, last_step + 1):
        batch = next(batches)
        print(step, batch.first_row, batch["input_ids"].sum().item(), flush=True)  # train here
        save({"step": step, "stream": dataset.state_after(batch)}, checkpoint)
