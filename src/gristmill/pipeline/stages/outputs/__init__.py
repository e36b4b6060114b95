"""How the records of a unit become files: one strategy for each kind of output (`unit_output`)."""
