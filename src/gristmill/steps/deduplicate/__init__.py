"""The kernels of `deduplicate`: from keys to candidates, from candidates to clusters. Pure functions of arrays."""
