"""JSON lines to packed rows with `datasets.map`, `group_texts` and `save_to_disk`, as in the tutorials.

`python -m benchmarks.sides.datasets_map CORPUS TOKENIZER OUTPUT`; two processes.
"""

import sys
from pathlib import Path

ROW_LENGTH = 2048


def main():
    import datasets
    from transformers import AutoTokenizer

    corpus, folder, output = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    end = tokenizer.eos_token_id
    data = datasets.load_dataset("json", data_files=corpus, split="train", cache_dir=str(output / "cache"))

    def encode(batch):
        return {"input_ids": [[*ids, end] for ids in tokenizer(batch["text"], add_special_tokens=False)["input_ids"]]}

    def group_texts(batch):
        stream = [token for ids in batch["input_ids"] for token in ids]
        stop = len(stream) // ROW_LENGTH * ROW_LENGTH
        return {"input_ids": [stream[first : first + ROW_LENGTH] for first in range(0, stop, ROW_LENGTH)]}

    data = data.map(encode, batched=True, num_proc=2, remove_columns=data.column_names)
    data.map(group_texts, batched=True, num_proc=2).save_to_disk(str(output / "saved"))


if __name__ == "__main__":
    main()
