"""Tokens in memory to rows: `python -m benchmarks.sides.pack_rows SIDE DOCUMENTS`, one thread.

SIDE is `gristmill`, or TRL's `pack_dataset(strategy="bfd")` with a window of 1,000 documents, its default (`trl`), or
of all of them (`trl-whole`), its best utilisation. Both start from an Arrow column of token lists and end with all ids
in rows; documents are cut at the row length, as TRL does. Ours are padded, TRL's are not.
"""

import json
import sys
import time

ROW_LENGTH = 2048


def main():
    side, count = sys.argv[1], int(float(sys.argv[2]))
    make_rows = {"gristmill": ours, "trl": lambda given: trl(given, 1000), "trl-whole": lambda given: trl(given, None)}
    documents = make_documents(count)
    make_rows[side](documents[:10])  # compiled and imported before the clock starts
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        num_tokens, num_rows = make_rows[side](documents)
        best = min(best, time.perf_counter() - began)
    print(json.dumps({"inner": best, "units": num_tokens / 1e6, "filled": num_tokens / (num_rows * ROW_LENGTH)}))


def make_documents(count):
    """Lengths as on the web: a median of about 400 tokens, some of many thousands."""
    import numpy as np
    import pyarrow as pa

    generator = np.random.default_rng(7)
    lengths = np.maximum(1, generator.lognormal(6, 1.2, count)).astype(np.int32)
    ids = generator.integers(0, 50_000, lengths.sum()).astype(np.uint16)
    return pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), ids)


def ours(documents):
    import numpy as np

    from gristmill.steps.pack import Pack
    from gristmill.steps.pack_rows import fill_rows, plan_rows

    offsets = documents.offsets.to_numpy().astype(np.int64)
    packing = plan_rows(Pack(row_length=ROW_LENGTH, long_documents="truncate"), np.diff(offsets))
    fill_rows([documents.values.to_numpy()], offsets, packing, ROW_LENGTH, pad_id=0)
    return packing.num_tokens, packing.num_rows


def trl(documents, window):
    import pyarrow as pa
    from datasets import Dataset, disable_caching, disable_progress_bars
    from trl import pack_dataset

    disable_progress_bars()
    disable_caching()
    dataset = Dataset(pa.table({"input_ids": documents}))
    options = {"batch_size": window or len(documents), "keep_in_memory": True}
    packed = pack_dataset(dataset, ROW_LENGTH, strategy="bfd", map_kwargs=options)
    column = packed.with_format("arrow")[:]["input_ids"]
    return sum(len(chunk.flatten()) for chunk in column.chunks), len(packed)


if __name__ == "__main__":
    main()
