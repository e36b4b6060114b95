"""`decontaminate`: the step, the shapes of benchmark files, and the index of what they ask."""
