"""The two engines behind one protocol: the fast one and the reference."""
