"""Readers of CSV and TSV files."""
