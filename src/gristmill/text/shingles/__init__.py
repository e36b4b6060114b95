"""Documents as sets of word shingles, and short signatures from which the similarity of two is estimated."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gristmill.text.shingles.minhash import MinHash, SignedTexts, estimate_similarities
    from gristmill.text.shingles.shingle_sets import ShingleSets

__all__ = ["MinHash", "ShingleSets", "SignedTexts", "estimate_similarities"]

_HOMES = {
    "MinHash": "gristmill.text.shingles.minhash",
    "ShingleSets": "gristmill.text.shingles.shingle_sets",
    "SignedTexts": "gristmill.text.shingles.minhash",
    "estimate_similarities": "gristmill.text.shingles.minhash",
}
"""Where each name is defined. It is imported at its first use: most processes need few of them."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'gristmill.text.shingles' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
