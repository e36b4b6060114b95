"""The sides of contests that are scripts: bare code, peers, and our own kernels. Each runs in a fresh process."""
