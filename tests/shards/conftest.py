"""A finished dataset in any format, built without the pipeline."""

import pyarrow as pa
import pytest

from gristmill.core.books import Account
from gristmill.core.records import make_origins
from gristmill.shards.canonical import origins_block, origins_footer, origins_header
from gristmill.shards.derived_files import make_derived_files
from gristmill.shards.formats.shard_format import open_encoder, write_shard
from gristmill.shards.manifest import Manifest
from gristmill.shards.manifest_file import dump_manifest
from gristmill.shards.stored_files import InputFile, Quarantine, Schema, Shard, StoredFile, file_key
from gristmill.steps.write import Write
from gristmill.storage.commit import PendingFile, write_file

FORMATS = [
    Write(format="arrow"),
    Write(format="parquet"),
    Write(format="jsonl"),
    Write(format="jsonl", compression="zstd"),
    Write(format="webdataset"),
]
SHARDS = {("train", "web"): [3, 4], ("train", "books"): [5], ("validation", "web"): [2]}
"""Rows of each shard."""


@pytest.fixture(params=FORMATS, ids=lambda write: write.suffix[1:])
def write(request):
    return request.param


@pytest.fixture
def make_dataset(tmp_path):
    def make(write, name="out"):
        folder = tmp_path / name
        splits, num_rows, start = {}, {}, 0
        for (split, source), sizes in SHARDS.items():
            for number, rows in enumerate(sizes):
                path = f"{split}/{source}/shard-{number:05d}"
                shard = _write_shard(folder, path, write, [_batch(start + row, 1, source) for row in range(rows)])
                splits.setdefault(split, {}).setdefault(source, []).append(shard)
                num_rows[source] = num_rows.get(source, 0) + rows
                start += rows
        manifest = Manifest(
            kind="documents",
            format=write.format,
            schema=Schema.of(open_encoder(write.shard_format, _batch(0, 1, "web").schema).schema),
            splits=splits,
            books={source: [_account("read", rows, bad=source == "web")] for source, rows in num_rows.items()},
            quarantine=_quarantine(folder),
            recipe={"output": "out"},
            versions={"gristmill": "0"},
            files={file_key(_file(source)): _input_file(source) for source in num_rows},
        ).seal()
        for path, content in make_derived_files(manifest).items():
            write_file(folder / path, content, "test")
        write_file(folder / "manifest.json", b"".join(dump_manifest(manifest)), "test")
        return folder

    return make


@pytest.fixture
def dataset(make_dataset, write):
    """The folder of a dataset, once in each format."""
    return make_dataset(write)


@pytest.fixture
def records():
    """What the dataset holds, in its order."""
    return [{"text": f"text {number} é\n", "number": None if number % 3 == 0 else number} for number in range(14)]


def _file(source):
    return 2**63 + len(source)


def _batch(start, rows, source):
    numbers = range(start, start + rows)
    return pa.record_batch(
        {
            "origin": make_origins(_file(source), pa.array(numbers)),
            "text": pa.array([f"text {number} é\n" for number in numbers], pa.large_string()),
            "number": pa.array([None if number % 3 == 0 else number for number in numbers], pa.int64()),
        }
    )


def _write_shard(folder, path, write, batches):
    encoder = open_encoder(write.shard_format, batches[0].schema)
    with PendingFile(folder / f"{path}{encoder.suffix}", "test") as file:
        write_shard(write.shard_format, batches[0].schema, batches, file)
        file.commit()
    side = None
    if not encoder.holds_origins:
        data = origins_header() + b"".join(map(origins_block, batches)) + origins_footer()
        side_path = f"{path}.origins.arrow"
        checksum = write_file(folder / side_path, data, "test")
        side = StoredFile(path=side_path, bytes=len(data), xxh3=checksum)
    return Shard(
        path=f"{path}{encoder.suffix}",
        bytes=file.num_bytes,
        xxh3=file.checksum,
        rows=sum(batch.num_rows for batch in batches),
        tasks=["0" * 32],
        origins=side,
    )


def _account(step, rows, *, bad):
    account = Account(step, records_in=rows + bad, records_out=rows)
    if bad:
        account.quarantined["invalid_json"] = 1
    return account


def _quarantine(folder):
    data = b'{"reason":"invalid_json","raw":"{"}\n'
    checksum = write_file(folder / "quarantine/web.jsonl", data, "test")
    file = StoredFile(path="quarantine/web.jsonl", bytes=len(data), xxh3=checksum)
    return Quarantine(counts={"web": {"invalid_json": 1}}, files=[file])


def _input_file(source):
    return InputFile(source=source, path=f"/data/{source}.jsonl", relative=f"{source}.jsonl", bytes=9, version="1")
