"""Stores of complete objects behind one interface: object stores, fsspec's file systems, POSIX folders."""
