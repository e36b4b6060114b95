"""The index of blocks: every block is where it says, and nothing that contradicts the manifest is believed."""

import json

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import xxhash
from gristmill_testing.small_tokenizers import trained
from gristmill_testing.token_datasets import write_tokens

import gristmill as gm
from gristmill.core.errors import DamagedDatasetError
from gristmill.shards.block_index import BLOCKS_SCHEMA, decode_costs, encode_costs, read_blocks, read_costs
from gristmill.shards.canonical import STREAM_END, stream_block, stream_header
from gristmill.shards.manifest_file import dump_manifest, load_manifest
from gristmill.shards.stored_files import MANIFEST
from gristmill.shards.verify import verify
from gristmill.steps import Pack, Read, Split, Tokenize, Write
from gristmill.storage.files import compute_file_checksum

DOCUMENTS = [
    Write(format="arrow"),
    Write(format="jsonl", compression="zstd"),
    Write(format="parquet"),
    Write(format="webdataset"),
]
CELLS = 3


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Files that are a cell each, in one unit."""
    folder = tmp_path_factory.mktemp("texts")
    for number in range(CELLS):
        lines = [{"text": f"words of {number} and {line} " * (line % 5 + 1)} for line in range(300)]
        content = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{number}.jsonl").write_text(content + " " * (2_500_000 - len(content)))
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("tokenizer")).path


def make(texts, output, *steps, **settings):
    recipe = gm.Recipe(sources={"web": Read(read=f"{texts}/*.jsonl")}, steps=steps, output=str(output), **settings)
    return gm.run(recipe, backend="serial", progress=False).manifest


def check_lane(folder, manifest, split, source):
    """Compare an index with the bytes of the shards; return the blocks of each shard."""
    lane = read_blocks(folder, manifest, split, source)
    for number, shard in enumerate(manifest.splits[split][source]):
        content = (folder / shard.path).read_bytes()
        own = lane.shard == number
        for offset, size, checksum in zip(lane.offset[own], lane.bytes[own], lane.xxh3[own], strict=True):
            assert xxhash.xxh3_64_intdigest(content[offset : offset + size]) == checksum
        assert lane.rows[own].sum() == shard.rows
        if manifest.format == "arrow":
            header = stream_header(manifest.schema.to_arrow())
            assert content == header + content[lane.offset[own][0] : (lane.offset + lane.bytes)[own][-1]] + STREAM_END
            for offset, size, rows in zip(lane.offset[own], lane.bytes[own], lane.rows[own], strict=True):
                block = pa.ipc.open_stream(header + content[offset : offset + size] + STREAM_END).read_all()
                assert (block.num_rows, len(block.to_batches())) == (rows, 1)
    return lane


def costs_of(folder, split):
    dataset = gm.open_dataset(folder).split(split)
    return [int((dataset[row]["lengths"].astype(np.int64) ** 2).sum()) for row in range(len(dataset))]


@pytest.mark.parametrize("write", DOCUMENTS, ids=lambda write: write.format)
def test_blocks_are_where_the_index_says_however_units_are_cut(texts, tmp_path, write):
    whole = make(texts, tmp_path / "whole", Split(validation=0.2), write)
    cut = make(texts, tmp_path / "cut", Split(validation=0.2), write, slice_bytes=1)
    assert cut.index == whole.index
    for split in whole.splits:
        lane = check_lane(tmp_path / "whole", whole, split, "web")
        assert len(lane.shard) == (1 if write.format == "parquet" else CELLS)
        assert len(read_costs(tmp_path / "whole", whole, split, "web")) == 0
    assert verify(tmp_path / "whole")


@pytest.mark.parametrize("packed", [True, False])
def test_rows_of_tokens_have_their_attention_cost(texts, tokenizer, tmp_path, packed):
    steps = [Tokenize(tokenizer=tokenizer), *([Pack(row_length=64)] if packed else [])]
    whole = make(texts, tmp_path / "whole", *steps)
    cut = make(texts, tmp_path / "cut", *steps, slice_bytes=1)
    assert cut.index == whole.index
    check_lane(tmp_path / "whole", whole, "train", "web")
    assert read_costs(tmp_path / "whole", whole, "train", "web").tolist() == costs_of(tmp_path / "whole", "train")


def test_costs_take_eight_bytes_where_they_must():
    small, large = np.array([3, 2**32 - 1], dtype=np.uint64), np.array([2**40], dtype=np.uint64)
    assert len(encode_costs([small])) == 8
    assert decode_costs(encode_costs([small]), 2).tolist() == small.tolist()
    assert decode_costs(encode_costs([small, large]), 3).tolist() == [3, 2**32 - 1, 2**40]
    assert encode_costs([]) == b""


@pytest.mark.parametrize("interleave", [True, False])
def test_a_mix_has_an_index(tmp_path, interleave):
    rows = {("train", "a"): [[[1, 2], [3]] * 20, [[4, 5, 6]] * 9]}
    write_tokens(tmp_path / "a", rows)
    write_tokens(tmp_path / "b", {("train", "b"): [[[7]] * 30]})
    inputs = {"a": (tmp_path / "a", 2), "b": (tmp_path / "b", 1)}
    gm.mix(inputs, tmp_path / "out", size=90, by="rows", max_epochs=2, interleave=interleave)
    manifest = load_manifest(tmp_path / "out")
    for source in manifest.splits["train"]:
        check_lane(tmp_path / "out", manifest, "train", source)
    costs = [
        cost for source in manifest.splits["train"] for cost in read_costs(tmp_path / "out", manifest, "train", source)
    ]
    assert costs == costs_of(tmp_path / "out", "train")
    assert verify(tmp_path / "out")


CONTRADICTIONS = {
    "another_shard": ("shard", 7),
    "beyond_the_end": ("bytes", 1 << 40),
    "overflow": ("offset", (1 << 64) - 8),
    "overlap": ("offset", 400),
    "rows": ("rows", 5),
}


@pytest.mark.parametrize("column", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_an_index_that_contradicts_the_manifest_is_refused(texts, tmp_path, column):
    name, value = column
    manifest = make(texts, tmp_path / "out")
    blocks = manifest.index["train"]["web"].blocks
    path = tmp_path / "out" / blocks.path
    table = pa.ipc.open_stream(path.read_bytes()).read_all().to_pydict()
    table[name][-1] = value
    batch = pa.RecordBatch.from_pydict(table, schema=BLOCKS_SCHEMA)
    path.write_bytes(stream_header(BLOCKS_SCHEMA) + bytes(stream_block(batch, BLOCKS_SCHEMA)) + STREAM_END)
    changed = msgspec.structs.replace(blocks, bytes=path.stat().st_size, xxh3=compute_file_checksum(path))
    lane = msgspec.structs.replace(manifest.index["train"]["web"], blocks=changed)
    forged = msgspec.structs.replace(manifest, index={"train": {"web": lane}}).seal()
    (tmp_path / "out" / MANIFEST).write_bytes(b"".join(dump_manifest(forged)))
    with pytest.raises(DamagedDatasetError, match=r"web\.arrow"):
        read_blocks(tmp_path / "out", forged, "train", "web")
    assert [problem.kind for problem in verify(tmp_path / "out").problems] == ["index"]


def test_a_damaged_index_is_named(texts, tmp_path):
    manifest = make(texts, tmp_path / "out")
    path = tmp_path / "out" / manifest.index["train"]["web"].blocks.path
    path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    with pytest.raises(DamagedDatasetError, match=r"index/train/web\.arrow"):
        read_blocks(tmp_path / "out", manifest, "train", "web")
    assert [problem.path for problem in verify(tmp_path / "out").problems] == ["index/train/web.arrow"]
