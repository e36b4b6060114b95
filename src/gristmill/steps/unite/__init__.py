"""Columns that the recipe does not name: their types, and the step that makes one table of all sources."""
