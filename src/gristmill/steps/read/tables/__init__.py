"""Readers of columnar files: Arrow, Parquet and token datasets."""
