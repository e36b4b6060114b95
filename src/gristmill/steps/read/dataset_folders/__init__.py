"""Folders that hold a whole dataset: of Hugging Face's `datasets`, of the Hub, and finished datasets of Gristmill."""
