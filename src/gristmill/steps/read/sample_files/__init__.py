"""Readers of folders in which each file is a sample: images, sounds, or files of any kind."""
