"""Readers of tar files and WebDataset samples."""
