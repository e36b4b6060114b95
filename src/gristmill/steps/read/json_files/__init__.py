"""Readers of JSON: lines, arrays, and Python records."""
