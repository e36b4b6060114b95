"""Columns that trainers expect, read back as Megatron Bridge and Levanter read them."""

import itertools
import json

import pyarrow.parquet as pq
from gristmill_testing.token_datasets import is_trained, masks


@masks
def test_megatron_bridge(packed, masked, run):
    """As `GPTSFTPackedDataset.collate_fn` reads it: document by document, the mask beside shifted labels."""
    folder, rows = packed
    exported = run(folder, "megatron-bridge", row_group_rows=3)
    files = [path for path in exported.files if "_train-" in path.name]
    assert [path.name for path in files] == [f"corpus_train-0000{n}.idx.parquet" for n in range(3)]
    assert pq.ParquetFile(files[0]).num_row_groups == 3
    tables = [pq.read_table(path) for path in files]
    assert [str(field.type.value_type) for field in tables[0].schema] == ["int32", "int8", "int32"]
    stored = [entry for table in tables for entry in table.to_pylist()]
    assert len(stored) == len(rows)
    for entry, row in zip(stored, rows, strict=True):
        borders = [*entry["seq_start_id"], len(entry["input_ids"])]
        pieces = list(itertools.pairwise(borders))
        assert [entry["input_ids"][start:end] for start, end in pieces] == row
        label_mask = [bool(bit) for start, end in pieces for bit in entry["loss_mask"][start : end - 1]]
        trained = iter(is_trained(row, masked=masked))
        assert label_mask == [
            flag for document in row for place, flag in zip(range(len(document)), trained, strict=False) if place
        ]
        assert all(not entry["loss_mask"][end - 1] for _, end in pieces)


@masks
def test_levanter(packed, masked, run):
    folder, rows = packed
    exported = run(folder, "jsonl", columns="levanter", split="train")
    lines = [json.loads(line) for path in exported.files for line in path.read_text().splitlines()]
    for line, row in zip(lines, rows, strict=True):
        trained = [*is_trained(row, masked=masked), False]
        assert line["loss_weights"] == [float(flag) for flag in trained[1:]]
        assert line["input_ids"] == [token for document in row for token in document]
