"""The choice of an engine, proved before any output is written: the fast one only if its ids equal the reference's.

The proof takes 1 to 3 seconds, most of it for one mebibyte of spaces and for loading both engines. The plan cache
remembers it by the content of the tokenizer, so that the next plan loads no engine for it. The check on the user's
records is always made.

A tokenizer is a program that came with a model: its rules may take all memory or compute forever. So a new process with
limits proves it, and this one loads only what is proved.

Engines are compared on texts on which tokenizers are known to disagree. All are small, except the mebibyte of spaces.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gristmill.core.errors import GristmillError, UsageError
from gristmill.runtime.process import limit_process, run_limited
from gristmill.storage.remembered_proofs import recall, remember
from gristmill.text.tokenizers.engine import FAST, REFERENCE, EncodingError, Engine, engine_version, load_engine
from gristmill.text.tokenizers.files import TOKENIZER, TokenizerFiles, read_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


AUTO = "auto"
_ASKED = "the recipe asks for it"
_MAX_FAILED_TEXTS = 4
"""Number of adversarial texts that the fast engine may fail to encode. With most tokenizers it fails on none, with
some on the mebibyte of spaces."""
_MAX_FAILED_RECORDS = 0.01
_MAX_SECONDS = 60
"""Processor time of a proof, in addition to that for each byte of the tokenizer's file."""
_BYTES_PER_SECOND = 1 << 19
"""How much of the file gets a second. With the 33 MB of Gemma 3, a proof takes 9 s of 123."""
_MAX_BYTES = 3 << 30
_COPIES = 60
"""Memory of a proof, for each byte of the tokenizer's file, in addition to `_MAX_BYTES`."""
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


class _ProofOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The order for the limited process: which tokenizer it proves."""

    files: TokenizerFiles
    specials_as_text: bool
    fast: bool
    """Whether the fast engine is compared with the reference, which else is only tried."""
    max_bytes: int
    max_seconds: int


class _ProofResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the limited process."""

    choice: EngineChoice | None = None
    error: str = ""
    help: str | None = None


def choose_engine(files: TokenizerFiles, asked: str, *, specials_as_text: bool) -> EngineChoice:
    """Choose an engine. `auto` is the fast one if it can load the tokenizer and equals the reference.

    Raises:
        UsageError: The recipe names the fast engine, and it cannot be used.
    """
    if asked == REFERENCE:
        if not recall("tokenizer-ids", files.content, bool):
            read_facts(files)  # refuses hostile files before they are loaded
            _prove_in_limits(files, specials_as_text=True, fast=False)
            remember("tokenizer-ids", files.content, answer=True)
        return choose_reference(_ASKED)
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
        read_facts(files)  # refuses hostile files before they are loaded
        choice = _prove_in_limits(files, specials_as_text=specials_as_text, fast=True)
        remember("tokenizer-proof", key, choice)
    return choice


def _prove_in_limits(files: TokenizerFiles, *, specials_as_text: bool, fast: bool) -> EngineChoice:
    """Call `_prove` in a limited process."""
    size = files.location(TOKENIZER).stat().st_size
    max_bytes, max_seconds = _MAX_BYTES + _COPIES * size, _MAX_SECONDS + size // _BYTES_PER_SECOND
    order = _ProofOrder(
        files=files, specials_as_text=specials_as_text, fast=fast, max_bytes=max_bytes, max_seconds=max_seconds
    )
    answer, problem = run_limited(__name__, "run_proof", msgspec.json.encode(order), max_seconds)
    result = msgspec.json.decode(answer, type=_ProofResult) if answer else _ProofResult()
    if result.error:
        raise UsageError(result.error, help=result.help)
    if result.choice is None:
        raise UsageError(
            f"{files.path} {problem}: it is tried on short texts and on 1 MiB of spaces, with {max_seconds} s of "
            f"processor time and {max_bytes >> 20:,} MiB",
            help="it is damaged or hostile: look at the rules of its normalizer, or name another tokenizer",
        )
    return result.choice


def run_proof() -> None:
    """Do what `_prove_in_limits` asks for; the whole life of the limited process."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=_ProofOrder)
    limit_process(order.max_bytes, order.max_seconds)
    try:
        result = _ProofResult(choice=_prove(order.files, specials_as_text=order.specials_as_text, fast=order.fast))
    except GristmillError as error:
        result = _ProofResult(error=error.message, help=error.help)
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")


def _prove(files: TokenizerFiles, *, specials_as_text: bool, fast: bool) -> EngineChoice:
    if fast:
        return _compare_on_adversarial_texts(files, specials_as_text=specials_as_text)
    reference = load_engine(files, REFERENCE, specials_as_text=specials_as_text)
    reference.check_ids()
    for text in make_adversarial_texts(reference.special_tokens):
        with suppress(EncodingError, UsageError):  # as of a tokenizer without a token for unknown text
            reference.encode([text])
    return choose_reference(_ASKED)


def _compare_on_adversarial_texts(files: TokenizerFiles, *, specials_as_text: bool) -> EngineChoice:
    try:
        fast, reference = _load_both(files, specials_as_text=specials_as_text)
        fast.load_library()
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


_IDS_AROUND = 8
_CHARS_AROUND = 60


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first text on which two engines differ."""

    index: int
    """Index of the text."""
    token: int
    """Index of the first token that differs."""
    ids: list[int]
    """Ids around that token, by the engine under test."""
    expected: list[int]
    """Ids around that token, by the reference."""
    text: str
    """The text around that token."""

    def __str__(self) -> str:
        return f"from token {self.token} on: {self.ids}, not {self.expected}, at {self.text!r}"


def compare_engines(engine: Engine, reference: Engine, texts: Sequence[str]) -> Mismatch | None:
    """Encode all texts with both; None if all ids are equal."""
    try:
        ids, offsets = engine.encode(texts)
    except EncodingError:  # one that the reference cannot encode either
        if len(texts) == 1:
            return None
        middle = len(texts) // 2
        mismatch = compare_engines(engine, reference, texts[:middle])
        return mismatch or compare_engines(engine, reference, texts[middle:])
    for index, text in enumerate(texts):
        text_ids = ids[offsets[index] : offsets[index + 1]]
        try:
            expected, _ = reference.encode([text])
        except EncodingError:
            continue
        if not np.array_equal(text_ids, expected):
            return _describe_mismatch(reference, index, text, text_ids, expected)
    return None


def _describe_mismatch(
    reference: Engine, index: int, text: str, ids: np.typing.NDArray[np.uint32], expected: np.typing.NDArray[np.uint32]
) -> Mismatch:
    common = min(len(ids), len(expected))
    different = np.flatnonzero(ids[:common] != expected[:common])
    token = int(different[0]) if len(different) else common
    first, stop = max(0, token - _IDS_AROUND), token + _IDS_AROUND
    # The tokens before it, decoded, reach up to its position in the text.
    position = min(len(reference.decode(expected[:token])), len(text))
    around = text[max(0, position - _CHARS_AROUND) : position + _CHARS_AROUND]
    return Mismatch(index, token, ids[first:stop].tolist(), expected[first:stop].tolist(), around)


_RUN = 4096
_MAX_SPECIALS = 24
"""How many special tokens are tried; a tokenizer may have hundreds that differ only in a number."""

_TEXTS = (
    "",
    " ",
    "\n",
    "\r\n\r\n \t\n  x\r",
    "a",
    "The quick brown fox can't, won't and shouldn'T've jumped; WE'LL SEE. I'D'VE 's 'S ſ’s",
    "3.14159 1,000,000 0x7f٣٤٥ ⅷ ² 1٢3 10000000000000000000000",
    "def f(x):\n\treturn {\n        'a': [x**2, -x],\n    }  # ok\n\n\n\nif __name__ == '__main__':\n    f(1)\n",
    "https://example.org/a?b=c&d=%20#e user@example.org C:\\path\\to __init__ --flag=value ... ///// <p>&nbsp;</p>",
    # letters with marks: composed, decomposed, in unusual order, without a base, many on one base
    "é e\u0301 ệ e\u0323\u0302 e\u0302\u0323 \u0301a ñ n\u0303 Å A\u030a \u212b Z\u0351\u036b\u0343\u036a\u0302",
    "\u0f71\u0f72 A\u0300\u0315\u0300\u05ae\u0062",
    "\u0344 \u0340\u0341 \u0958 \u2adc \ufb1d\ufb2a \u1e9b\u0323 \uac00\u11a8 \u1100\u1161\u11a8",
    "中文字符。日本語のテキスト、ひらがなカタカナー。한국어 텍스트",
    "\u1112\u1161\u11ab ﾊﾝｶｸ ｆｕｌｌ　ｗｉｄｔｈ 㐀𠀀𪚥 々〆",
    "العربية مرحبا\u064b\u064c بالعالم שָׁלוֹם हिन्दी क्षत्रिय தமிழ் ไทย ສະບາຍດີ မြန်မာ ខ្មែរ Ελληνικά Русский ꙮ ქართული",
    "😀👍🏽👩‍👩‍👧‍👦🏳️‍🌈🇩🇪🇯🇵🇩 #️⃣ ❤️ ❤ 👨\u200d \u200d👩 🧑🏿‍🚀\ufe0f\ufe0f",
    "\u200b\u200c\u200d\u2060\ufeff x\u00adx \u202eabc\u202c \u2028\u2029\u0085",
    "x \u00a0\u1680\u2003\u3000\u205f \v\f\x1c\x1f",
    "\x00\x01\x7f\x80\x9f \ufffd \ufffe\uffff \ufdd0 \U0010ffff \ue000 \U000e0041\U000f0000",
    "ﬁ ﬃ ĳ ǆ ß ẞ İ ı i̇ ς Σ ſ K ℵ ™ ½ ㎏ ㍿ Ⅻ ⓐ 𝐀𝒜𝔸 ｱ ヷ",
    " ".join(chr(code) for code in range(0xA0, 0x250)),
    "".join(chr(code) for code in range(0x1F600, 0x1F650)),
    "".join(chr(code) for code in range(0x300, 0x370)),
    "".join(chr(code) for code in range(0xAC00, 0xB000, 7)),
    "a" * _RUN,
    "\n" * _RUN,
    "\t" * _RUN,
    " \n" * _RUN,
    "7" * _RUN,
    "中" * _RUN,
    "=" * _RUN,
    "ab" * _RUN,
    "e" + "\u0301" * _RUN,
    "👨\u200d" * (_RUN // 4),
    "".join(f"{' ' * count}x" for count in range(200)),
    "x" + " " * 1000 + "\n" + " " * 1000 + "y",
    " " * (1 << 20),
)


def make_adversarial_texts(special_tokens: Iterable[str]) -> list[str]:
    """List the texts, and more with these special tokens: alone, doubled, glued to words, cut short, in capitals."""
    texts = list(_TEXTS)
    chosen = sorted(special_tokens, key=lambda token: (_describe_shape(token), token))
    used_shapes: set[str] = set()
    for token in chosen:
        shape = _describe_shape(token)
        if shape in used_shapes or len(used_shapes) == _MAX_SPECIALS:
            continue
        used_shapes.add(shape)
        texts += [
            token,
            f"{token}{token}",
            f"word{token}word {token} word\n{token}\n",
            f"{token[:-1]} {token[1:]} {token.upper()} {token.lower()} {token}{token[:2]} é{token}\u0301",
        ]
    texts.append(" ".join(chosen[:_MAX_SPECIALS]))
    return texts


def _describe_shape(token: str) -> str:
    """Find the shape that `<SPECIAL_14>` and `<SPECIAL_15>` have in common."""
    return re.sub(r"\d+", "0", token)
