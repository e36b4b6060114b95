"""Tokenizers: finding their files, two engines that run them, the proof that both give the same ids, and training.

`tokenizers` is the reference, `fastokens` the fast one (50 to 100 times). Both are imported when an engine is loaded.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gristmill.text.tokenizers.check_tokenizer import TokenizerReport, id_type
    from gristmill.text.tokenizers.choose import AUTO, EngineChoice, choose_engine, confirm_on_sample
    from gristmill.text.tokenizers.decoder import TextDecoder, load_decoder, split_by_tokens
    from gristmill.text.tokenizers.engines.engine import ENGINES, REFERENCE, Engine, clear_engine_cache, load_engine
    from gristmill.text.tokenizers.facts import TokenizerFacts, read_facts
    from gristmill.text.tokenizers.files import TokenizerFiles, find_tokenizer
    from gristmill.text.tokenizers.parity import Mismatch, compare_engines
    from gristmill.text.tokenizers.special_tokens.control_tokens import PlainTextEngine, find_unmarked_controls
    from gristmill.text.tokenizers.special_tokens.special_literals import SpecialLiterals
    from gristmill.text.tokenizers.special_tokens.special_pattern import compile_special_pattern
    from gristmill.text.tokenizers.train import save_tokenizer, train_bpe
    from gristmill.text.tokenizers.words.byte_lengths import ByteLengths, read_byte_lengths, read_token_bytes

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
    "TextDecoder",
    "TokenizerFacts",
    "TokenizerFiles",
    "TokenizerReport",
    "choose_engine",
    "clear_engine_cache",
    "compare_engines",
    "compile_special_pattern",
    "confirm_on_sample",
    "find_tokenizer",
    "find_unmarked_controls",
    "id_type",
    "load_decoder",
    "load_engine",
    "read_byte_lengths",
    "read_facts",
    "read_token_bytes",
    "save_tokenizer",
    "split_by_tokens",
    "train_bpe",
]

_HOMES = {
    "AUTO": "gristmill.text.tokenizers.choose",
    "ENGINES": "gristmill.text.tokenizers.engines.engine",
    "REFERENCE": "gristmill.text.tokenizers.engines.engine",
    "ByteLengths": "gristmill.text.tokenizers.words.byte_lengths",
    "TextDecoder": "gristmill.text.tokenizers.decoder",
    "Engine": "gristmill.text.tokenizers.engines.engine",
    "EngineChoice": "gristmill.text.tokenizers.choose",
    "Mismatch": "gristmill.text.tokenizers.parity",
    "PlainTextEngine": "gristmill.text.tokenizers.special_tokens.control_tokens",
    "SpecialLiterals": "gristmill.text.tokenizers.special_tokens.special_literals",
    "TokenizerFacts": "gristmill.text.tokenizers.facts",
    "TokenizerFiles": "gristmill.text.tokenizers.files",
    "TokenizerReport": "gristmill.text.tokenizers.check_tokenizer",
    "choose_engine": "gristmill.text.tokenizers.choose",
    "clear_engine_cache": "gristmill.text.tokenizers.engines.engine",
    "compare_engines": "gristmill.text.tokenizers.parity",
    "compile_special_pattern": "gristmill.text.tokenizers.special_tokens.special_pattern",
    "confirm_on_sample": "gristmill.text.tokenizers.choose",
    "find_tokenizer": "gristmill.text.tokenizers.files",
    "find_unmarked_controls": "gristmill.text.tokenizers.special_tokens.control_tokens",
    "id_type": "gristmill.text.tokenizers.check_tokenizer",
    "load_decoder": "gristmill.text.tokenizers.decoder",
    "load_engine": "gristmill.text.tokenizers.engines.engine",
    "read_byte_lengths": "gristmill.text.tokenizers.words.byte_lengths",
    "read_facts": "gristmill.text.tokenizers.facts",
    "read_token_bytes": "gristmill.text.tokenizers.words.byte_lengths",
    "save_tokenizer": "gristmill.text.tokenizers.train",
    "split_by_tokens": "gristmill.text.tokenizers.decoder",
    "train_bpe": "gristmill.text.tokenizers.train",
}
"""Where each name is defined. It is imported at its first use: most processes need few of them."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'gristmill.text.tokenizers' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
