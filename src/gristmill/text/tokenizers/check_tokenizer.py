"""A check of a tokenizer: its vocabulary, round trips, whether the engines agree, and how fast each is."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.text.tokenizers.choose import (
    AUTO,
    choose_engine,
    choose_reference,
    compare_engines,
    make_adversarial_texts,
)
from gristmill.text.tokenizers.engine import FAST, REFERENCE, load_engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.text.tokenizers.engine import Engine
    from gristmill.text.tokenizers.files import TokenizerFiles

_REFERENCE_BYTES = 1 << 20
"""The reference is timed and compared on at most this much text."""
MAX_UINT16_VOCAB = 1 << 16


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of one engine."""

    version: str
    megabytes_per_second: float
    """Speed on one core, on texts that it sees for the first time."""


class TokenizerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `gristmill tokenizer check`."""

    path: str
    content: str
    vocab_size: int
    id_type: str
    num_special_tokens: int
    special_tokens: dict[str, int]
    eos_token: str | None
    eos_id: int | None
    bos_id: int | None
    pad_id: int | None
    num_texts: int
    num_bytes: int
    num_tokens: int
    bytes_per_token: float
    num_round_trips: int
    """Number of adversarial texts that decode to what they were."""
    num_adversarial: int
    engine: str
    """What `engine: auto` chooses."""
    why: str
    engines: dict[str, EngineReport]


def check_tokenizer(files: TokenizerFiles, texts: Sequence[str]) -> TokenizerReport:
    """Try a tokenizer on texts."""
    choice = choose_engine(files, AUTO, specials_as_text=True)
    reference = load_engine(files, REFERENCE)
    first_texts = list(_take_first(texts, _REFERENCE_BYTES))
    engines: dict[str, EngineReport] = {}
    if choice.engine == FAST:
        fast = load_engine(files, FAST)
        num_tokens, engines[FAST] = _time_engine(fast, texts)
        mismatch = compare_engines(fast, reference, first_texts)
        if mismatch is not None:
            choice = choose_reference(f"{FAST} {fast.version} gives other ids than {REFERENCE}: {mismatch}")
        reference = load_engine(files, REFERENCE)  # one that has not seen the texts yet
        _, engines[REFERENCE] = _time_engine(reference, first_texts)
    else:
        texts = first_texts
        num_tokens, engines[REFERENCE] = _time_engine(reference, texts)
    hard = make_adversarial_texts(reference.special_tokens)
    num_bytes = _count_bytes(texts)
    facts: dict[str, Any] = msgspec.structs.asdict(reference.facts)
    for name in ("added_tokens", "eos_by_name"):
        del facts[name]
    return TokenizerReport(
        **facts,
        path=files.path,
        content=files.content,
        id_type=id_type(reference.vocab_size),
        num_special_tokens=len(reference.special_tokens),
        num_texts=len(texts),
        num_bytes=num_bytes,
        num_tokens=num_tokens,
        bytes_per_token=round(num_bytes / max(1, num_tokens), 3),
        num_round_trips=sum(reference.decode(reference.encode([text])[0]) == text for text in hard),
        num_adversarial=len(hard),
        engine=choice.engine,
        why=choice.why,
        engines=engines,
    )


def id_type(vocab_size: int) -> str:
    """Find the smallest type that holds every id.

    >>> id_type(65536), id_type(65537)
    ('uint16', 'uint32')
    """
    return "uint16" if vocab_size <= MAX_UINT16_VOCAB else "uint32"


def _time_engine(engine: Engine, texts: Sequence[str]) -> tuple[int, EngineReport]:
    engine.encode(["a first word"])
    start = perf_counter()
    ids, _ = engine.encode(texts)
    seconds = perf_counter() - start
    speed = float(f"{_count_bytes(texts) / 1e6 / max(seconds, 1e-9):.3g}")
    return len(ids), EngineReport(version=engine.version, megabytes_per_second=speed)


def _take_first(texts: Sequence[str], num_bytes: int) -> Iterator[str]:
    total = 0
    for text in texts:
        size = len(text.encode())
        if total and total + size > num_bytes:
            return
        total += size
        yield text


def _count_bytes(texts: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in texts)
