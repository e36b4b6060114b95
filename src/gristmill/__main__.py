"""`python -m gristmill` is the `gristmill` command."""

from gristmill.cli.main import main

if __name__ == "__main__":
    main()
