"""Tokenizers: finding their files, two engines that run them, the proof that both give the same ids, and training.

`tokenizers` is the reference, `fastokens` the fast one (50 to 100 times). Both are imported when an engine is loaded.
"""

from gristmill.text.tokenizers.byte_lengths import ByteLengths, read_byte_lengths
from gristmill.text.tokenizers.check_tokenizer import TokenizerReport, check_tokenizer, id_type
from gristmill.text.tokenizers.choose import AUTO, EngineChoice, choose_engine, confirm_on_sample
from gristmill.text.tokenizers.control_tokens import PlainTextEngine, find_unmarked_controls
from gristmill.text.tokenizers.engine import ENGINES, REFERENCE, Engine, clear_engine_cache, load_engine
from gristmill.text.tokenizers.facts import TokenizerFacts, read_facts
from gristmill.text.tokenizers.files import TokenizerFiles, find_tokenizer
from gristmill.text.tokenizers.parity import Mismatch, compare_engines
from gristmill.text.tokenizers.special_literals import SpecialLiterals
from gristmill.text.tokenizers.special_pattern import compile_special_pattern
from gristmill.text.tokenizers.train import save_tokenizer, train_bpe

__all__ = [
    "AUTO",
    "ENGINES",
    "REFERENCE",
    "ByteLengths",
    "Engine",
    "EngineChoice",
    "Mismatch",
    "PlainTextEngine",
    "SpecialLiterals",
    "TokenizerFacts",
    "TokenizerFiles",
    "TokenizerReport",
    "check_tokenizer",
    "choose_engine",
    "clear_engine_cache",
    "compare_engines",
    "compile_special_pattern",
    "confirm_on_sample",
    "find_tokenizer",
    "find_unmarked_controls",
    "id_type",
    "load_engine",
    "read_byte_lengths",
    "read_facts",
    "save_tokenizer",
    "train_bpe",
]
