"""Tokens that are no text: which there are, where they stand in texts, which one ends a document."""
