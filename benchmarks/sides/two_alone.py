"""Two recipes at the same time, each in one process without an engine: `two_alone RECIPE RECIPE`."""

import subprocess
import sys


def main():
    command = [sys.executable, "-m", "gristmill", "run", "--backend", "serial", "--workers", "1", "--quiet"]
    processes = [subprocess.Popen([*command, recipe]) for recipe in sys.argv[1:]]
    sys.exit(max(process.wait() for process in processes))


if __name__ == "__main__":
    main()
