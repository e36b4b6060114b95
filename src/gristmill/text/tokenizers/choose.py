"""The choice of an engine, proved before any output is written: the fast one only if its ids equal the reference's.

The proof takes 1 to 3 seconds, most of it for one mebibyte of spaces and for loading both engines. The plan cache
remembers it by the content of the tokenizer, so that the next plan loads no engine for it. The check on the user's
records is always made.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import UsageError
from gristmill.storage.user_cache.plan_cache import recall, remember
from gristmill.text.tokenizers.adversarial import make_adversarial_texts
from gristmill.text.tokenizers.engines.engine import FAST, REFERENCE, Engine, engine_version, load_engine
from gristmill.text.tokenizers.files import TokenizerFiles
from gristmill.text.tokenizers.parity import compare_engines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

AUTO = "auto"
_MAX_FAILED_TEXTS = 4
"""Number of adversarial texts that the fast engine may fail to encode. With most tokenizers it fails on none, with
some on the mebibyte of spaces."""
_MAX_FAILED_RECORDS = 0.01
_SAMPLE_CHARS = 1 << 19
"""How much of the user's records the proof reads: a third of a second for the reference."""


class EngineChoice(msgspec.Struct, frozen=True, kw_only=True):
    """An engine, and why it was chosen."""

    engine: str
    version: str
    why: str
    num_texts: int = 0
    """Number of adversarial texts on which it was compared with the reference."""
    num_records: int = 0
    """Number of the user's records on which it was compared."""


def choose_engine(files: TokenizerFiles, asked: str, *, specials_as_text: bool) -> EngineChoice:
    """Choose an engine. `auto` is the fast one if it can load the tokenizer and equals the reference.

    Raises:
        UsageError: The recipe names the fast engine, and it cannot be used.
    """
    if asked == REFERENCE:
        _check_reference_ids(files)
        return choose_reference("the recipe asks for it")
    choice = _prove_fast_engine(msgspec.json.encode(files), specials_as_text)
    if asked == FAST and choice.engine != FAST:
        raise UsageError(f"{files.path}: {choice.why}", help="use engine: auto, which then uses the reference")
    return choice


def choose_reference(why: str) -> EngineChoice:
    """Choose the reference, for a reason."""
    return EngineChoice(engine=REFERENCE, version=engine_version(REFERENCE), why=why)


def confirm_on_sample(
    files: TokenizerFiles, choice: EngineChoice, texts: Sequence[str], *, specials_as_text: bool
) -> EngineChoice:
    """Confirm a choice on the user's own records; returns the reference if the fast engine fails on them."""
    if choice.engine != FAST:
        return choice
    fast, reference = _load_both(files, specials_as_text=specials_as_text)
    sample = list(_take_sample(texts))
    problem = _find_problem(fast, reference, sample, max_failures=_MAX_FAILED_RECORDS * len(sample))
    if problem is not None:
        return choose_reference(problem)
    return msgspec.structs.replace(choice, num_records=len(sample))


# A plan with several sources asks for the same proof again.
@lru_cache(maxsize=8)
def _prove_fast_engine(encoded_files: bytes, specials_as_text: bool) -> EngineChoice:  # noqa: FBT001
    files = msgspec.json.decode(encoded_files, type=TokenizerFiles)
    key = [files.content, specials_as_text]
    choice = recall("tokenizer-proof", key, EngineChoice)
    if choice is None:
        choice = _compare_on_adversarial_texts(files, specials_as_text=specials_as_text)
        remember("tokenizer-proof", key, choice)
    return choice


def _compare_on_adversarial_texts(files: TokenizerFiles, *, specials_as_text: bool) -> EngineChoice:
    try:
        fast, reference = _load_both(files, specials_as_text=specials_as_text)
    except UsageError as error:
        if "reason" not in error.context:  # the reference cannot load it either
            raise
        return choose_reference(f"{FAST} {engine_version(FAST)} cannot load it ({error.context['reason']})")
    texts = make_adversarial_texts(reference.special_tokens)
    num_before = fast.num_by_reference
    problem = _find_problem(fast, reference, texts, max_failures=_MAX_FAILED_TEXTS)
    if problem is not None:
        return choose_reference(problem)
    why = f"it gives the same ids as {REFERENCE} {reference.version}"
    if num_failures := fast.num_by_reference - num_before:
        why += f" (but for {num_failures} texts that it cannot encode: such ones go to {REFERENCE} and are counted)"
    return EngineChoice(engine=FAST, version=fast.version, why=why, num_texts=len(texts))


def _check_reference_ids(files: TokenizerFiles) -> None:
    if not recall("tokenizer-ids", files.content, bool):
        load_engine(files, REFERENCE).check_ids()
        remember("tokenizer-ids", files.content, answer=True)


def _load_both(files: TokenizerFiles, *, specials_as_text: bool) -> tuple[Engine, Engine]:
    reference = load_engine(files, REFERENCE, specials_as_text=specials_as_text)
    reference.check_ids()
    return load_engine(files, FAST, specials_as_text=specials_as_text), reference


def _find_problem(fast: Engine, reference: Engine, texts: Sequence[str], *, max_failures: float) -> str | None:
    """Describe why the fast engine cannot be used; None if it can."""
    num_before = fast.num_by_reference
    mismatch = compare_engines(fast, reference, texts)
    if mismatch is not None:
        return f"{FAST} {fast.version} gives other ids than {REFERENCE}, {mismatch}"
    num_failures = fast.num_by_reference - num_before
    if num_failures > max_failures:
        return f"{FAST} {fast.version} cannot encode {num_failures} of {len(texts)} texts"
    return None


def _take_sample(texts: Sequence[str]) -> Iterator[str]:
    num_chars = 0
    for text in texts:
        if num_chars + len(text) <= _SAMPLE_CHARS:
            num_chars += len(text)
            yield text
