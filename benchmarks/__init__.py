"""Every claim about speed, as contests that one command runs: `make bench`, or `python -m benchmarks`."""
