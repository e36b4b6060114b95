"""What runs in a worker process, and how it talks to the parent. Imports little: a worker is up in about 20 ms."""
