"""Code that is loaded at run time: compiled kernels and their cache, the user's functions and their fingerprints."""
