"""Tokenizers: where their files are, the two engines that run them, the proof that both give the same ids, training.

`tokenizers` is the reference, `fastokens` the fast one (50 to 100 times). Both are imported when an engine is loaded.
"""

from gristmill.text.tokenizers.byte_lengths import ByteLengths, byte_lengths
from gristmill.text.tokenizers.check import TokenizerReport, check_tokenizer, id_type
from gristmill.text.tokenizers.choose import AUTO, Choice, choose_engine, confirm_on_sample
from gristmill.text.tokenizers.control_tokens import PlainTextEngine, unmarked_controls
from gristmill.text.tokenizers.engine import ENGINES, REFERENCE, Engine, forget_engines, load_engine
from gristmill.text.tokenizers.facts import Facts, read_facts
from gristmill.text.tokenizers.files import TokenizerFiles, find_tokenizer
from gristmill.text.tokenizers.literals import SpecialLiterals
from gristmill.text.tokenizers.parity import Mismatch, compare
from gristmill.text.tokenizers.special_pattern import special_pattern
from gristmill.text.tokenizers.train import save_tokenizer, train_tokenizer

__all__ = [
    "AUTO",
    "ENGINES",
    "REFERENCE",
    "ByteLengths",
    "Choice",
    "Engine",
    "Facts",
    "Mismatch",
    "PlainTextEngine",
    "SpecialLiterals",
    "TokenizerFiles",
    "TokenizerReport",
    "byte_lengths",
    "check_tokenizer",
    "choose_engine",
    "compare",
    "confirm_on_sample",
    "find_tokenizer",
    "forget_engines",
    "id_type",
    "load_engine",
    "read_facts",
    "save_tokenizer",
    "special_pattern",
    "train_tokenizer",
    "unmarked_controls",
]
