"""Documents as sets of word shingles, and short signatures from which the similarity of two is estimated."""

from gristmill.text.shingles.minhash import MinHash, SignedTexts, estimate_similarities
from gristmill.text.shingles.shingle_sets import ShingleSets, jaccard

__all__ = ["MinHash", "ShingleSets", "SignedTexts", "estimate_similarities", "jaccard"]
