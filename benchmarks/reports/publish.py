"""Everything that is made from the result files, made again: `make readme-table`."""

from benchmarks.reports import performance, readme


def publish() -> None:
    """Rewrite the README's table, the figures, and the numbers and plots of `docs/performance.md`."""
    readme.write()
    performance.write()


if __name__ == "__main__":
    publish()
