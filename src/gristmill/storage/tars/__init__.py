"""Tars: where their members are."""
