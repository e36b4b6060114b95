"""Readers of tables: Arrow, Parquet, Hugging Face folders and finished datasets.

`hub_folder` and `gristmill_dataset` find the files; `arrow` and `parquet` read them in cells of rows, which
`column_mapper` turns into the columns of the source.
"""
