"""Files to batches: readers of JSON, CSV, Parquet, Arrow, Hugging Face folders, text, WebDataset tars and finished
datasets.

The files of a source (`list_source_files`) are planned together (`plan_schema`) and then read one by one
(`open_reader`), cell by cell; small files are read many at a time (`read_small_files`).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
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

_HOMES = {
    "CELL_BYTES": "gristmill.steps.read.cells",
    "JSON_FORMATS": "gristmill.steps.read.formats",
    "RECORD_FORMATS": "gristmill.steps.read.formats",
    "CellBatch": "gristmill.steps.read.cells",
    "ElementRange": "gristmill.steps.read.cells",
    "FileReader": "gristmill.steps.read.cells",
    "Read": "gristmill.steps.read.read",
    "StreamDamage": "gristmill.steps.read.cells",
    "TextsReader": "gristmill.steps.read.cells",
    "UnpackedPiece": "gristmill.steps.read.cells",
    "choose_split_files": "gristmill.steps.read.source",
    "choose_training_files": "gristmill.steps.read.source",
    "encode_json_line": "gristmill.steps.read.json_files.python_values",
    "file_format": "gristmill.steps.read.formats",
    "find_source_tokenizer": "gristmill.steps.read.source",
    "index_cells": "gristmill.steps.read.tar_files.webdataset",
    "list_source_files": "gristmill.steps.read.source",
    "looks_like_path": "gristmill.steps.read.read",
    "make_source_files": "gristmill.steps.read.source",
    "needs_scan": "gristmill.steps.read.source",
    "open_for_unpacking": "gristmill.steps.read.source",
    "open_reader": "gristmill.steps.read.source",
    "plan_schema": "gristmill.steps.read.schema",
    "read_small_files": "gristmill.steps.read.small_files",
    "read_unpacked_chunks": "gristmill.steps.read.raw_cells.delimited_file",
    "refuse_text_keys": "gristmill.steps.read.tables.token_documents",
    "refuse_unfinished": "gristmill.steps.read.dataset_folders.gristmill_dataset",
    "remove_views": "gristmill.steps.read.tables.string_views",
    "remove_views_from_schema": "gristmill.steps.read.tables.string_views",
    "sample_record_types": "gristmill.steps.read.schema",
    "to_path": "gristmill.steps.read.read",
    "with_detected_format": "gristmill.steps.read.source",
}
"""Where each name is defined. It is imported at its first use: most processes need few of them."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'gristmill.steps.read' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
