"""The arguments of a stream, checked: all that is sent to another process."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from gristmill.core.checks import (
    check_bool,
    check_choice,
    check_positive_number,
    check_real_number,
    check_seed,
    check_whole_number,
)
from gristmill.core.errors import UsageError
from gristmill.stream.collate import Collate

DEFAULT_CACHE_BYTES = 64 << 30
MAX_BATCH = 1 << 24
"""The most rows of a rank in a batch, and the most ranks."""


class TokenizeTexts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for encoding the texts of samples; see `steps.Tokenize`, which does the same in a recipe."""

    tokenizer: str
    text: str | None = None
    """The column of the text. None: `text`, `txt` or `content`, whichever the sample has first."""
    add_eos: bool = True
    add_bos: bool = False
    max_tokens: int | None = None
    """Cut longer rows; None: the batch is as wide as its longest text."""


class BatchTokens(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings by which rows of similar lengths become batches."""

    tokens: int
    """The most tokens of a batch, with padding; a longer row is a batch alone."""
    window: int = 4096
    """The rows of the order among which similar ones are found."""


class StreamArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `Stream`, with absolute paths."""

    data: Any
    mixture: Any
    weights_in: str
    split: str | None
    sources: Any
    seed: int
    shuffle: Any
    """True, False, or `{"blocks": n}`."""
    epochs: float | None
    rows: int | None
    tokens: int | None
    rows_per_epoch: int | None
    max_epochs: Any
    drop_last: bool
    collate: Collate | None
    balance: bool = False
    batch_tokens: Any = None
    """`BatchTokens`; None: batches have a number of rows."""
    decode: Any = None
    """For samples: `numpy`, `pil`, `bytes` or a function of the bytes; None: not set."""
    transform: Any = None
    tokenize: Any = None
    """For samples with texts: `TokenizeTexts`; None: batches hold samples."""
    ids: Any = None
    """The column of token ids, in samples and third-party tables; None: batches of samples hold samples."""
    on_error: str = "raise"
    max_replaced: float = 0.01
    max_skipped: float = 0.5
    images: Any = None
    """For chats with images: the folder or the tars of the images; None: batches have references."""
    cache: Any = None
    """The folder for blocks of remote datasets; None: the user's."""
    cache_bytes: int = DEFAULT_CACHE_BYTES

    def __post_init__(self) -> None:
        check_choice("weights_in", self.weights_in, ("rows", "tokens"))
        if isinstance(self.sources, str) or not isinstance(self.sources, Collection | None):
            raise UsageError(f'sources must be a list such as ["web"], not {self.sources!r:.80}')
        check_choice("on_error", self.on_error, ("raise", "replace"))
        if not callable(self.decode) and self.decode is not None:
            check_choice("decode", self.decode, ("numpy", "pil", "bytes"))
        if self.transform is not None and not callable(self.transform):
            raise UsageError(f"transform must be a function of a sample, not {self.transform!r:.80}")
        if not isinstance(self.ids, str | None) or (self.ids and self.tokenize is not None):
            raise UsageError("ids names the column of token ids, of samples that are not tokenized", help='ids="npy"')
        if not isinstance(self.collate, Collate | None):
            raise UsageError(f"collate must be a Collate, not {self.collate!r:.80}")
        ends = {"epochs": self.epochs, "rows": self.rows, "tokens": self.tokens}
        checked_ends = {
            name: check_positive_number(name, end) if name == "epochs" else check_whole_number(name, end, least=1)
            for name, end in ends.items()
            if end is not None
        }
        if len(checked_ends) > 1:
            raise UsageError(
                f"a stream has one end, but {' and '.join(checked_ends)} are set", help="set only one of them"
            )
        changes = {
            "data": _make_absolute(self.data),
            "mixture": self.mixture if isinstance(self.mixture, Mapping) else self.mixture or None,
            "seed": check_seed(self.seed),
            "shuffle": _check_shuffle(self.shuffle),
            "cache": _check_cache(self.cache),
            "max_replaced": _check_share("max_replaced", self.max_replaced),
            "max_skipped": _check_share("max_skipped", self.max_skipped),
            "cache_bytes": check_whole_number("cache_bytes", self.cache_bytes, least=1),
            "balance": check_bool("balance", self.balance),
            "drop_last": check_bool("drop_last", self.drop_last),
            "max_epochs": _check_limits(self.max_epochs),
            **checked_ends,
        }
        if self.batch_tokens is not None:
            changes["batch_tokens"] = _parse_batch_tokens(self.batch_tokens)
            if self.balance:
                raise UsageError(
                    "balance deals the rows of a batch to ranks, but with batch_tokens each rank has a separate batch",
                    help="leave one of them out",
                )
        if self.tokenize is not None:
            changes["tokenize"] = _parse_tokenize(self.tokenize)
        if self.images is not None:
            changes["images"] = _make_absolute(self.images)
        if self.rows_per_epoch is not None:
            changes["rows_per_epoch"] = check_whole_number("rows_per_epoch", self.rows_per_epoch, least=1)
        for name, value in changes.items():
            msgspec.structs.force_setattr(self, name, value)

    @property
    def window(self) -> int | None:
        """How many blocks are shuffled together; None: all rows, or none."""
        return self.shuffle["blocks"] if isinstance(self.shuffle, dict) else None

    @property
    def end(self) -> tuple[str, float]:
        """Which of `epochs`, `rows` and `tokens` ends the stream, and its value. The value is infinite if none does."""
        ends = {"epochs": self.epochs, "rows": self.rows, "tokens": self.tokens}
        return next(((name, end) for name, end in ends.items() if end is not None), ("rows", math.inf))


def _check_cache(cache: Any) -> str | None:
    if cache is None:
        return None
    folder = os.fspath(cache) if isinstance(cache, str | os.PathLike) else None
    if not isinstance(folder, str) or not folder or "://" in folder:
        raise UsageError(f"cache must be a folder on a local disk, not {cache!r:.80}")
    return os.path.abspath(folder)  # noqa: PTH100


def _check_shuffle(shuffle: Any) -> Any:
    if not isinstance(shuffle, Mapping):
        return check_bool("shuffle", shuffle)
    if list(shuffle) != ["blocks"]:
        raise UsageError(
            f"shuffle must be True, False or the number of blocks that are shuffled together, not {shuffle!r:.80}",
            help='for example shuffle={"blocks": 64}',
        )
    return {"blocks": check_whole_number("the blocks of shuffle", shuffle["blocks"], least=1)}


def _parse_batch_tokens(value: Any) -> BatchTokens:
    settings = value if isinstance(value, Mapping) else {"tokens": value}
    if not set(settings) <= {"tokens", "window"} or "tokens" not in settings:
        raise UsageError(
            f"batch_tokens must be the most tokens of a batch, not {value!r:.80}",
            help='for example 16384 or {"tokens": 16384, "window": 8192}',
        )
    checked = {name: check_whole_number(f"{name} of batch_tokens", size, least=1) for name, size in settings.items()}
    return BatchTokens(**checked)


def _parse_tokenize(value: Any) -> TokenizeTexts:
    """Parse the argument `tokenize`: the name of a tokenizer, or a dict with its settings."""
    settings = {"tokenizer": value} if isinstance(value, str) else value
    try:
        parsed = msgspec.convert(settings, TokenizeTexts)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"tokenize: {error}",
            help='name a tokenizer: tokenize="tokenizers/gpt2" or {"tokenizer": …, "text": "txt", "max_tokens": 2048}',
        ) from None
    check_bool("add_eos", parsed.add_eos)
    if parsed.max_tokens is not None:
        check_whole_number("max_tokens", parsed.max_tokens, least=1)
    path = os.path.abspath(parsed.tokenizer)  # noqa: PTH100
    return msgspec.structs.replace(parsed, tokenizer=path) if os.path.exists(path) else parsed  # noqa: PTH110


def _check_share(name: str, share: Any) -> float:
    if not 0 <= check_real_number(name, share) <= 1:
        raise UsageError(f"{name} is a share of samples, from 0 to 1, not {share!r:.80}")
    return float(share)


def _check_limits(limits: Any) -> Any:
    if isinstance(limits, Mapping):
        return {name: check_real_number(f"max_epochs of {name}", limit) for name, limit in limits.items()}
    return None if limits is None else check_real_number("max_epochs", limits)


def _make_absolute(data: Any) -> Any:
    """Make the paths absolute, so that they are valid in a process with another current folder."""
    if isinstance(data, Mapping):
        return {str(name): _parse_entry(name, entry) for name, entry in data.items()}
    path = os.fspath(data) if isinstance(data, str | os.PathLike) else data
    if not isinstance(path, str):
        raise UsageError(
            f"a dataset is a folder, not {data!r:.80}", help='name several datasets: {"web": ("out/web", 0.7), …}'
        )
    return path if "://" in path else os.path.abspath(path)  # noqa: PTH100  (a Path would normalize it)


def _parse_entry(name: object, entry: Any) -> Any:
    if not isinstance(entry, tuple):
        return _make_absolute(entry)
    if len(entry) != 2:
        raise UsageError(
            f"{name} must be a folder and its weight, not {entry!r:.80}", help='for example ("out/web", 0.7)'
        )
    return _make_absolute(entry[0]), check_real_number(f"the weight of {name}", entry[1])


def check_ranks(batch_size: int, rank: int, world_size: int) -> tuple[int, int, int]:
    """Check the sizes of a batch and of the world, and return them as plain numbers."""
    batch_size = check_whole_number("batch_size", batch_size, least=1, most=MAX_BATCH)
    world_size = check_whole_number("world_size", world_size, least=1, most=MAX_BATCH)
    rank = check_whole_number("rank", rank)
    if rank >= world_size:
        raise UsageError(
            f"rank {rank} is not below the world size {world_size}", help="ranks are counted from 0 to world_size - 1"
        )
    return batch_size, rank, world_size
