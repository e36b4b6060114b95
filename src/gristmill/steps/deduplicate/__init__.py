"""The step `deduplicate` and its kernels: from keys to candidates, from candidates to clusters."""
