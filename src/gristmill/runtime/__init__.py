"""What Python needs at run time: compiled kernels and their cache, imports that are kept out."""
