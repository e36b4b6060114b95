"""However a unit is cut into slices, its files are the same bytes."""

import pyarrow as pa
import pytest

from gristmill.core.records import SPLIT, make_origins
from gristmill.pipeline.stages.outputs.split_files import OutputStem
from gristmill.pipeline.stages.outputs.unit_output import (
    JoinedBlocks,
    PackedRows,
    ReencodedParquet,
    RewrittenRecords,
    StoredStreams,
    choose_shard_output,
)
from gristmill.steps.pack import Pack
from gristmill.steps.write import Write

NUM_CELLS = 6


def make_cells(*, tokens=False):
    for cell in range(NUM_CELLS):
        numbers = list(range(cell * 10, cell * 10 + 10))
        columns = {
            "origin": make_origins(7, pa.array(numbers)),
            SPLIT: pa.array(["train" if number % 3 else "validation" for number in numbers]),
        }
        if tokens:
            columns["input_ids"] = pa.array([[number] * (number % 5 + 1) for number in numbers], pa.list_(pa.uint16()))
        else:
            columns["text"] = pa.array([f"text {number}" for number in numbers], pa.large_string())
        yield pa.record_batch(columns)


SCHEMA, TOKEN_SCHEMA = (next(make_cells(tokens=tokens)).schema for tokens in (False, True))
OUTPUTS = {
    "streams": StoredStreams(SCHEMA),
    "arrow": JoinedBlocks(Write(format="arrow"), SCHEMA),
    "small_shards": JoinedBlocks(Write(format="arrow", max_shard_bytes=1500), SCHEMA),
    "jsonl": JoinedBlocks(Write(format="jsonl", compression="zstd"), SCHEMA),
    "tar": JoinedBlocks(Write(format="webdataset"), SCHEMA),
    "held": JoinedBlocks(Write(format="arrow"), SCHEMA, holds_train=True),
    "parquet": ReencodedParquet(Write(format="parquet"), SCHEMA),
    "samples": RewrittenRecords(Write(format="webdataset", max_shard_samples=7), SCHEMA),
    "packed": PackedRows(Pack(row_length=16), 0, Write(format="arrow"), TOKEN_SCHEMA),
}


def write_unit(output, folder, num_slices):
    """Write a unit as a run does: the slices, then the join if they need one. Gives the contents of its files."""
    cells = list(make_cells(tokens=isinstance(output, PackedRows)))
    results = []
    for number in range(num_slices):
        with output.open_sink(OutputStem(folder, f"slice{number}", "test"), num_slices) as sink:
            for cell in cells[number * NUM_CELLS // num_slices : (number + 1) * NUM_CELLS // num_slices]:
                sink.add(cell)
            results.append(sink.commit())
    files = [file for result in results for file in result.split_files]
    written = results[0]
    if output.needs_join(num_slices):
        written = output.join(files, OutputStem(folder, "unit", "test"))
    contents = {}
    for kind in ("split_files", "leftovers"):
        for file in getattr(written, kind):
            paths = [stored.path for stored in (file.data, file.origins) if stored is not None]
            contents.setdefault((kind, file.split, file.rows, file.tokens), []).append(
                [(folder / path).read_bytes() for path in paths]
            )
    return contents


@pytest.mark.parametrize("num_slices", [2, 3, 6])
@pytest.mark.parametrize("name", [name for name in OUTPUTS if name != "streams"])
def test_slices_do_not_show_in_the_output(tmp_path, name, num_slices):
    whole = write_unit(OUTPUTS[name], tmp_path / "whole", 1)
    assert whole
    assert write_unit(OUTPUTS[name], tmp_path / "cut", num_slices) == whole


def test_streams_of_slices_are_the_unit(tmp_path):
    output = OUTPUTS["streams"]
    assert not output.needs_join(3)
    with output.open_sink(OutputStem(tmp_path, "slice", "test"), 3) as sink:
        sink.add(next(make_cells()))
        files = sink.commit().split_files
    assert {file.split for file in files} == {"train", "validation"}
    assert output.join(files, OutputStem(tmp_path, "unit", "test")).split_files == files


def test_only_packed_rows_leave_something_over():
    leftover_output = OUTPUTS["packed"].leftover_output
    assert leftover_output.packs_leftovers
    assert all(OUTPUTS[name].leftover_output is None for name in OUTPUTS if name != "packed")


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (Write(format="arrow"), JoinedBlocks),
        (Write(format="jsonl"), JoinedBlocks),
        (Write(format="webdataset"), JoinedBlocks),
        (Write(format="webdataset", max_shard_samples=3), RewrittenRecords),
        (Write(format="parquet"), ReencodedParquet),
    ],
    ids=str,
)
def test_the_format_decides(write, kind):
    assert type(choose_shard_output(write, SCHEMA)) is kind
