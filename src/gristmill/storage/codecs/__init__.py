"""Compressed streams, read and written."""
