"""Columns that nobody named: what type they get, where what does not fit goes, and how sources become one table."""
