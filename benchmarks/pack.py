"""Packing beside TRL's `pack_dataset(strategy="bfd")`, one thread each, the same documents in memory.

    python -m venv trl-only && trl-only/bin/pip install --no-deps trl   # apart: it may pin other versions
    python benchmarks/pack.py --trl trl-only/lib/python3.11/site-packages [--documents N] [--row-length L]

TRL packs windows of 1000 documents by default; it is also given one window of all documents, its best utilisation.
Both start from an Arrow column of token lists and end with all ids in rows; TRL does not pad its rows, ours are padded.
"""

import argparse
import sys
import time

import numpy as np
import pyarrow as pa
from results import Comparison, add_result_option, write_result

from gristmill.steps.pack.pack import Pack
from gristmill.steps.pack.rows import fill_rows, plan_rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trl", help="the site-packages folder that holds trl")
    parser.add_argument("--documents", type=int, default=30_000)
    parser.add_argument("--row-length", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    add_result_option(parser)
    options = parser.parse_args()
    documents = tokens(options.documents)
    lengths = np.diff(documents.offsets.to_numpy())
    print(f"{len(documents)} documents, {lengths.sum() / 1e6:.1f} M tokens, rows of {options.row_length}")
    ours_in_rows(documents[:10], options.row_length)  # compiled before the clock starts
    contests = {"gristmill": lambda: ours_in_rows(documents, options.row_length)}
    if options.trl:
        sys.path.append(options.trl)
        contests["TRL, windows of 1000"] = lambda: trl_in_rows(documents, options.row_length, 1000)
        trl_in_rows(documents[:10], options.row_length, 10)  # imported before the clock starts
        contests["TRL, one window"] = lambda: trl_in_rows(documents, options.row_length, len(documents))
    best = dict.fromkeys(contests, float("inf"))
    shares = {}
    for _ in range(options.repeats):
        for name, contest in contests.items():
            start = time.perf_counter()
            num_tokens, num_rows = contest()
            best[name] = min(best[name], time.perf_counter() - start)
            shares[name] = num_tokens / (num_rows * options.row_length)
    for name, seconds in best.items():
        speed = lengths.sum() / seconds / 1e6
        ratio = seconds / best["gristmill"]
        print(f"{name:22} {seconds:7.3f} s  {speed:7.1f} M tokens/s  {ratio:5.1f} times ours  used {shares[name]:.4%}")
    data = f"{len(documents):,} documents of {lengths.sum() / 1e6:.1f} M tokens in memory, one thread each"
    comparisons = [
        Comparison(
            work=f"pack documents into rows of {options.row_length:,}, best fit",
            peer=name,
            ratio=round(seconds / best["gristmill"], 1),
            ours=f"{best['gristmill']:.3f} s",
            theirs=f"{seconds:.3f} s",
        )
        for name, seconds in best.items()
        if name != "gristmill"
    ]
    write_result(options, data, comparisons, ["numba", "numpy", "pyarrow", "trl"])


def tokens(num_documents):
    """Make documents with lengths as on the web: a median of about 400 tokens, some of many thousands."""
    generator = np.random.default_rng(7)
    lengths = np.maximum(1, generator.lognormal(6, 1.2, num_documents)).astype(np.int32)
    ids = generator.integers(0, 50_000, lengths.sum()).astype(np.uint16)
    return pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), ids)


def ours_in_rows(documents, row_length):
    offsets = documents.offsets.to_numpy().astype(np.int64)
    # As TRL's bfd does, what is beyond a row is cut off, so that both lay out the same tokens.
    packing = plan_rows(Pack(row_length=row_length, long_documents="truncate"), np.diff(offsets))
    fill_rows([documents.values.to_numpy()], offsets, packing, row_length, pad_id=0)
    return packing.num_tokens, packing.num_rows


def trl_in_rows(documents, row_length, window):
    from datasets import Dataset, disable_caching, disable_progress_bars
    from trl import pack_dataset

    disable_progress_bars()
    disable_caching()
    dataset = Dataset(pa.table({"input_ids": documents}))
    start = {"batch_size": window, "keep_in_memory": True}
    packed = pack_dataset(dataset, row_length, strategy="bfd", map_kwargs=start)
    column = packed.with_format("arrow")[:]["input_ids"]
    return sum(len(chunk.flatten()) for chunk in column.chunks), len(packed)


if __name__ == "__main__":
    main()
