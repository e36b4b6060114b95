"""Files to records: JSON, CSV, Parquet, Arrow, Hugging Face folders, text, tars, web archives and finished datasets.

The files of a source (`list_source_files`) are planned together (`plan_schema`) and then read one by one
(`open_reader`), cell by cell; small files are read many at a time (`read_small_files`).
"""
