"""Folders that hold a whole dataset: Hugging Face, Hub snapshots, and this project's own."""
