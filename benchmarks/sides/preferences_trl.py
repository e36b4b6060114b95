"""Pairs to ids as TRL prepares them: `python -m benchmarks.sides.preferences_trl PAIRS TOKENIZER TEMPLATE`.

CPU time of making a `DPOTrainer` with at most 2,000 pairs, less that of making one with a single pair.
"""

import json
import sys
import tempfile
from itertools import islice
from pathlib import Path
from time import process_time


def main():
    import datasets
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from trl import DPOConfig, DPOTrainer

    path, folder, template = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = Path(template).read_text(encoding="utf-8")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    with Path(path).open(encoding="utf-8") as lines:
        pairs = [json.loads(line) for line in islice(lines, 2000)]
    datasets.disable_progress_bars()
    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    models = [LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size)) for _ in range(2)]

    def prepare(records, output):
        arguments = DPOConfig(
            output_dir=output, max_length=None, use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False
        )
        data = datasets.Dataset.from_list(records)
        began = process_time()
        DPOTrainer(*models, arguments, train_dataset=data, processing_class=tokenizer)
        return process_time() - began

    with tempfile.TemporaryDirectory() as output:
        prepare(pairs[1:2], output)
        fixed = prepare(pairs[:1], output)
        print(json.dumps({"inner": prepare(pairs, output) - fixed, "units": len(pairs)}))


if __name__ == "__main__":
    main()
