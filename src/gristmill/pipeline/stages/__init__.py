"""One pass over the records: tasks, the workers' side of them, and the files they leave."""
