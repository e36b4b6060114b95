"""The peer, run by an interpreter that has it: `documents_datatrove.py INPUT_FOLDER OUTPUT NUM_TASKS`.

It pins other versions, so it needs an environment of its own:
`python -m venv peer && peer/bin/pip install "datatrove[io]" orjson zstandard regex numpy nltk`.
"""

import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter


def is_long(document):
    return len(document.text) >= 200


if __name__ == "__main__":
    folder, output, num_tasks = sys.argv[1:]
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(folder, glob_pattern="*.jsonl.zst"),
            LambdaFilter(is_long),
            JsonlWriter(f"{output}/data", output_filename="${rank}.jsonl.zst", compression="zstd"),
        ],
        tasks=int(num_tasks),
        workers=2,
        logging_dir=f"{output}/logs",
    ).run()
