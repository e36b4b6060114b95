"""Streams inside the trainers of other libraries: one module for each, imported only by users of that library."""
