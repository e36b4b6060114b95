"""The plan of one source: its files, its columns, its steps, and how it unites with the others."""
