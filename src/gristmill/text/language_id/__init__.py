"""Which language a text is in: fastText's `lid.176.ftz`, 176 languages, read and run here.

fastText itself takes 300 ns a character. What it computes is little: a mean of vectors of the pieces of all words, and
a walk down a tree of 175 nodes. Here that takes 30 ns a character, so whole documents can be looked at.
"""

from gristmill.text.language_id.identify import LanguageIdentifier, load_identifier
from gristmill.text.language_id.model_file import find_model, hash_model

__all__ = ["LanguageIdentifier", "find_model", "hash_model", "load_identifier"]
