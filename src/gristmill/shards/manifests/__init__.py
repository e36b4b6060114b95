"""The manifest of a dataset: its parts, the whole, and its file."""
