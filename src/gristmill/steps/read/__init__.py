"""Files to batches: readers of JSON, CSV, Parquet, Arrow, Hugging Face folders, text, WebDataset tars and datasets of
ours.

A source's files (`source_files`) are planned together (`plan_schema`) and then read one by one (`open_reader`), cell
by cell; small ones many at a time (`read_together`).
"""

from gristmill.steps.read.cells import CELL_BYTES, CellBatch, ElementRange, FileReader, StreamDamage, UnpackedPiece
from gristmill.steps.read.formats import JSON_FORMATS, RECORD_FORMATS, file_format
from gristmill.steps.read.gristmill_dataset import refuse_unfinished
from gristmill.steps.read.python_values import json_line
from gristmill.steps.read.read import Read, as_path, looks_like_path
from gristmill.steps.read.schema import plan_schema, sampled_record_types
from gristmill.steps.read.separated import unpacked_chunks
from gristmill.steps.read.source import (
    as_source_files,
    cells_to_unpack,
    must_be_scanned,
    open_reader,
    recognized,
    source_files,
    source_tokenizer,
    split_files,
    training_files,
)
from gristmill.steps.read.together import read_together
from gristmill.steps.read.token_rows import refuse_text_keys
from gristmill.steps.read.views import schema_without_views, without_views
from gristmill.steps.read.webdataset import index_cells

__all__ = [
    "CELL_BYTES",
    "JSON_FORMATS",
    "RECORD_FORMATS",
    "CellBatch",
    "ElementRange",
    "FileReader",
    "Read",
    "StreamDamage",
    "UnpackedPiece",
    "as_path",
    "as_source_files",
    "cells_to_unpack",
    "file_format",
    "index_cells",
    "json_line",
    "looks_like_path",
    "must_be_scanned",
    "open_reader",
    "plan_schema",
    "read_together",
    "recognized",
    "refuse_text_keys",
    "refuse_unfinished",
    "sampled_record_types",
    "schema_without_views",
    "source_files",
    "source_tokenizer",
    "split_files",
    "training_files",
    "unpacked_chunks",
    "without_views",
]
