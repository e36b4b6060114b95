"""What the tests share. Importable in workers too, since `tests/support` is on the path of the tests."""
