"""Files to batches: readers of JSON, CSV, Parquet, Arrow, Hugging Face folders, text, WebDataset tars and finished
datasets.

The files of a source (`list_source_files`) are planned together (`plan_schema`) and then read one by one
(`open_reader`), cell by cell; small files are read many at a time (`read_small_files`).
"""

from gristmill.steps.read.cells import (
    CELL_BYTES,
    CellBatch,
    ElementRange,
    FileReader,
    StreamDamage,
    TextsReader,
    UnpackedPiece,
)
from gristmill.steps.read.dataset_folders.gristmill_dataset import refuse_unfinished
from gristmill.steps.read.formats import JSON_FORMATS, RECORD_FORMATS, file_format
from gristmill.steps.read.json_files.python_values import encode_json_line
from gristmill.steps.read.raw_cells.delimited_file import read_unpacked_chunks
from gristmill.steps.read.read import Read, looks_like_path, to_path
from gristmill.steps.read.schema import plan_schema, sample_record_types
from gristmill.steps.read.small_files import read_small_files
from gristmill.steps.read.source import (
    choose_split_files,
    choose_training_files,
    find_source_tokenizer,
    list_source_files,
    make_source_files,
    needs_scan,
    open_for_unpacking,
    open_reader,
    with_detected_format,
)
from gristmill.steps.read.tables.string_views import remove_views, remove_views_from_schema
from gristmill.steps.read.tables.token_documents import refuse_text_keys
from gristmill.steps.read.tar_files.webdataset import index_cells

__all__ = [
    "CELL_BYTES",
    "JSON_FORMATS",
    "RECORD_FORMATS",
    "CellBatch",
    "ElementRange",
    "FileReader",
    "Read",
    "StreamDamage",
    "TextsReader",
    "UnpackedPiece",
    "choose_split_files",
    "choose_training_files",
    "encode_json_line",
    "file_format",
    "find_source_tokenizer",
    "index_cells",
    "list_source_files",
    "looks_like_path",
    "make_source_files",
    "needs_scan",
    "open_for_unpacking",
    "open_reader",
    "plan_schema",
    "read_small_files",
    "read_unpacked_chunks",
    "refuse_text_keys",
    "refuse_unfinished",
    "remove_views",
    "remove_views_from_schema",
    "sample_record_types",
    "to_path",
    "with_detected_format",
]
