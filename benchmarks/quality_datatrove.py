"""The peer, run by an interpreter that has it: `quality_datatrove.py INPUT_FOLDER OUTPUT NUM_TASKS`.

`python -m venv peer && peer/bin/pip install "datatrove[io]" orjson regex numpy nltk spacy humanize`.
"""

import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

if __name__ == "__main__":
    folder, output, num_tasks = sys.argv[1:]
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(folder, glob_pattern="*.jsonl"),
            GopherRepetitionFilter(),
            GopherQualityFilter(),
            FineWebQualityFilter(),
            JsonlWriter(f"{output}/data", output_filename="${rank}.jsonl", compression=None),
        ],
        tasks=int(num_tasks),
        workers=2,
        logging_dir=f"{output}/logs",
    ).run()
