"""The order of training: permutation and mixture as pure functions of integers."""
