"""The code of a worker process and its messages to the parent. Imports little: a worker starts in about 20 ms."""
