"""Records and runs of numbers in the order of their partitions."""

import numpy as np

from gristmill.steps.deduplicate.partitions import sort_by_partition, sort_runs_by_partition


def test_runs_are_sorted_as_their_numbers_would_be():
    rng = np.random.default_rng(1)
    sizes = [rng.integers(0, 5, size=count) for count in (30, 1, 12)]
    pieces = [rng.integers(0, 2**63, size=counts.sum()).astype(np.uint64) for counts in sizes]
    for num_partitions in (1, 3, 8):  # the last ones are empty
        partitions = [rng.integers(0, min(num_partitions, 6), size=len(counts)) for counts in sizes]
        ordered, starts = sort_runs_by_partition(pieces, partitions, sizes, num_partitions)
        each = np.concatenate([np.repeat(*pair) for pair in zip(partitions, sizes, strict=True)])
        expected, expected_starts = sort_by_partition(np.concatenate(pieces), each, num_partitions)
        assert ordered.tolist() == expected.tolist()
        assert starts.tolist() == expected_starts.tolist()
