"""Documents as sets of word shingles, and short signatures from which the likeness of two of them can be told."""

from gristmill.text.shingles.minhash import MinHash, Signed, similarities
from gristmill.text.shingles.shingle_sets import ShingleSets, jaccard

__all__ = ["MinHash", "ShingleSets", "Signed", "jaccard", "similarities"]
