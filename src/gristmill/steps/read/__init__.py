"""Files to batches: readers of JSON, CSV, Parquet, Arrow, Hugging Face folders, text, WebDataset tars and finished
datasets.

The files of a source (`list_source_files`) are planned together (`plan_schema`) and then read one by one
(`open_reader`), cell by cell; small files are read many at a time (`read_small_files`).
"""
