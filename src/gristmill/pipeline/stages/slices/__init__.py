"""One slice of a unit: its task, reading it, running it, and what is set apart on the way."""
