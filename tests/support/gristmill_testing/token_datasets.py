"""Finished datasets of tokens, written by hand: no tokenizer, no pipeline."""

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from gristmill.core.books import Account
from gristmill.shards.block_index import BlockIndexWriter, scan_blocks
from gristmill.shards.canonical import STREAM_END, canonicalize_schema, stream_block, stream_header
from gristmill.shards.derived_files import make_derived_files
from gristmill.shards.manifest import Manifest
from gristmill.shards.manifest_file import dump_manifest
from gristmill.shards.stored_files import InputFile, Schema, Shard, file_key
from gristmill.shards.token_rows import rows_schema
from gristmill.storage.commit import write_file
from gristmill.storage.files import compute_file_checksum


def write_tokens(
    folder, shards, *, id_type="uint16", row_length=None, pad_id=0, loss_masks=False, mask_lengths=None, rows_a_batch=2
):
    """A dataset of `{(split, source): [[row, …] a shard, …]}`.

    Without `row_length` a row is the ids of one document; with it, the list of its documents' ids, which is padded.
    With `loss_masks` every second token of a row is to be learnt; `mask_lengths` makes them of other lengths.
    """
    schema = canonicalize_schema(rows_schema(pa.type_for_alias(id_type), row_length, masked=loss_masks))
    splits, num_rows = {}, {}
    index = BlockIndexWriter(folder, "index", "test")
    for (split, source), of_source in shards.items():
        for number, rows in enumerate(of_source):
            shard = _write_shard(
                folder,
                f"{split}/{source}/shard-{number:05d}.arrow",
                schema,
                source,
                rows,
                row_length=row_length,
                pad_id=pad_id,
                rows_a_batch=rows_a_batch,
                mask_lengths=mask_lengths,
            )
            splits.setdefault(split, {}).setdefault(source, []).append(shard)
            num_rows[source] = num_rows.get(source, 0) + len(rows)
            index.add(split, source, scan_blocks(folder / shard.path, shard, len(rows), "arrow"))
    with index:
        lanes = index.commit()
    manifest = Manifest(
        kind="chats" if loss_masks else "tokens",
        format="arrow",
        schema=Schema.of(schema),
        splits=splits,
        index=lanes,
        books={source: [Account("read", records_in=rows, records_out=rows)] for source, rows in num_rows.items()},
        files={file_key(_file(source)): _input_file(source) for source in num_rows},
    ).seal()
    for path, content in make_derived_files(manifest).items():
        write_file(folder / path, content, "test")
    write_file(folder / "manifest.json", b"".join(dump_manifest(manifest)), "test")
    return folder


def _write_shard(folder, path, schema, source, rows, *, row_length, pad_id, rows_a_batch, mask_lengths):
    data = stream_header(schema)
    for start in range(0, len(rows), rows_a_batch):
        part = rows[start : start + rows_a_batch]
        documents = [[row] if row_length is None else row for row in part]
        ids = [np.concatenate([np.asarray(document) for document in row]).tolist() for row in documents]
        sizes = mask_lengths[start : start + len(part)] if mask_lengths else [len(row) for row in ids]
        masks = [[place % 2 == 1 for place in range(size)] for size in sizes]
        if row_length is not None:
            masks = [row + [False] * (row_length - len(row)) for row in masks]
            ids = [row + [pad_id] * (row_length - len(row)) for row in ids]
        columns = {
            "input_ids": ids,
            "lengths": [[len(document) for document in row] for row in documents],
            "origins": [
                [{"file": _file(source), "position": start + n, "part": k} for k in range(len(row))]
                for n, row in enumerate(documents)
            ],
            "loss_mask": masks,
        }
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        data += stream_block(pa.RecordBatch.from_arrays(arrays, schema=schema), schema)
    data += STREAM_END
    write_file(folder / path, data, "test")
    checksum = compute_file_checksum(folder / path)
    sizes = [len(row) if row_length is None else sum(map(len, row)) for row in rows]
    return Shard(
        path=path,
        bytes=len(data),
        xxh3=checksum,
        rows=len(rows),
        tokens=sum(sizes),
        trained_tokens=sum(size // 2 for size in sizes) if "loss_mask" in schema.names else msgspec.UNSET,
        tasks=["0" * 32],
    )


def _file(source):
    return 2**63 + len(source)


def _input_file(source):
    return InputFile(source=source, path=f"/data/{source}.jsonl", relative=f"{source}.jsonl", bytes=9, version="1")


# Tokens of a packed row of the tests of exports.
LENGTH = 12

masks = pytest.mark.parametrize(
    ("packed", "masked"), [({}, False), ({"loss_masks": True}, True)], indirect=["packed"], ids=["tokens", "chats"]
)


def is_trained(row, *, masked):
    """For each token of a row's documents whether it is a label: no first token, and every second of a chat."""
    places = [place for document in row for place in range(len(document))]
    return [place > 0 and (not masked or number % 2 == 1) for number, place in enumerate(places)]
