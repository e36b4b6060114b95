"""The arguments of a stream, checked: all that is sent to another process."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, cast

import msgspec

from gristmill.core.checks import (
    check_bool,
    check_choice,
    check_positive_number,
    check_real_number,
    check_seed,
    check_whole_number,
    describe_type,
)
from gristmill.core.errors import UsageError
from gristmill.stream.collate import Collate
from gristmill.stream.pair_collate import PairCollate

Weights = Mapping[str, float]
MixtureLike = Weights | Mapping[str, Weights] | Sequence[tuple[int, Weights] | tuple[int, Weights, str]]
StreamData = str | os.PathLike[str] | Mapping[str, str | os.PathLike[str] | tuple[str | os.PathLike[str], float]]

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


def _set(struct: msgspec.Struct, **values: Any) -> None:
    for name, value in values.items():
        msgspec.structs.force_setattr(struct, name, value)


def _check_share(name: str, share: Any) -> float:
    if not 0 <= check_real_number(name, share) <= 1:
        raise UsageError(f"{name} is a share of samples, from 0 to 1, not {share!r:.80}")
    return float(share)


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """The way from stored samples to batches: `Stream("out", samples=Samples(transform=prepare))`."""

    decode: str | Callable[[bytes], Any] | None = None
    """What becomes of images: "numpy" (the default; height, width and 3 channels of 8 bits), "pil", "bytes" (as they
    are stored), or a function of the bytes.
    """
    transform: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None
    """A function of each sample, a dict of its columns; it runs where batches are made. If it returns None, the sample
    is skipped: another one replaces it, as with `on_error="replace"`.
    """
    tokenize: str | Mapping[str, Any] | TokenizeTexts | None = None
    """For samples with texts, a tokenizer, or a dict with `tokenizer`, `text` (the column), `max_tokens`, `add_eos` and
    `add_bos`: texts are encoded where batches are made, and batches are those of `collate`.
    """
    ids: str | None = None
    """The column of token ids, in samples or third-party tables; `input_ids` of tables needs no mention."""
    images: str | os.PathLike[str] | None = None
    """For chats with images, the folder or the tars that the recipe names: `batch["images"]` then has for each row its
    images in order, as bytes or as `decode` says. None: it has references.
    """
    on_error: Literal["raise", "replace"] = "raise"
    """What to do with a sample that cannot be decoded or transformed: "raise", or "replace" it by another one, chosen
    by a hash of seed, row and attempt. `accounting` counts them.
    """
    max_replaced: float = 0.01
    """The share of samples above which `on_error="replace"` raises, in one process or all workers."""
    max_skipped: float = 0.5
    """The same for samples that `transform` skips."""

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, ("raise", "replace"))
        if not callable(self.decode) and self.decode is not None:
            check_choice("decode", self.decode, ("numpy", "pil", "bytes"))
        if self.transform is not None and not callable(self.transform):
            raise UsageError(f"transform must be a function of a sample, not {self.transform!r:.80}")
        ids: Any = self.ids
        if not isinstance(ids, str | None) or (ids and self.tokenize is not None):
            raise UsageError("ids names the column of token ids, of samples that are not tokenized", help='ids="npy"')
        _set(
            self,
            tokenize=None if self.tokenize is None else _parse_tokenize(self.tokenize),
            images=None if self.images is None else _make_absolute(self.images),
            max_replaced=_check_share("max_replaced", self.max_replaced),
            max_skipped=_check_share("max_skipped", self.max_skipped),
        )

    @property
    def makes_tokens(self) -> bool:
        """Whether rows of tokens are made of samples."""
        return self.tokenize is not None or self.ids is not None

    @property
    def tokenizing(self) -> TokenizeTexts | None:
        """The settings by which texts are encoded; None: they are not."""
        return cast("TokenizeTexts | None", self.tokenize)

    @property
    def image_files(self) -> str | None:
        """The folder or the tars of the images, as an absolute path or a URL."""
        return cast("str | None", self.images)


class Cache(msgspec.Struct, frozen=True):
    """The cache for blocks of datasets on a store: `Cache("/local/cache", max_bytes=500 << 30)`."""

    folder: str | os.PathLike[str] | None = None
    """A folder on a local disk. Default: in your cache folder."""
    max_bytes: int = 64 << 30
    """The size of that folder, above which the blocks used longest ago are removed, such as 500GB. Default: 64 GiB."""

    def __post_init__(self) -> None:
        _set(
            self,
            folder=_check_cache(self.folder),
            max_bytes=check_whole_number("max_bytes of cache", self.max_bytes, least=1),
        )


class _Data(msgspec.Struct, frozen=True):
    data: StreamData
    """The folder of a dataset, or several by name: `{"web": "out/web", "code": ("out/code", 0.3)}`, with a weight for
    all of them or for none. It may also name files that were not written here: tars of samples
    (`"shards/a-{000..099}.tar"`), JSON Lines (`"data/*.jsonl"`), Parquet files (`"s3://bucket/*.parquet"`), a folder of
    `datasets`, or a local folder of images.
    """


class StreamArguments(_Data, frozen=True, kw_only=True):
    """The arguments of `Stream`, checked and with absolute paths. Streams and commands take them from here."""

    mixture: MixtureLike | None = None
    """The weights of the sources (of the datasets, if there are several), or phases `[(0, weights), (row, …)]`, or
    `{"epochs": {"web": 1, "code": 2}}`. None: the manifest's mixture, without sources that have no rows in this split
    (`left_out`); if it has none, all rows are shuffled together and each is read once an epoch.
    """
    weights_in: Literal["rows", "tokens"] = "rows"
    """Whether weights are shares of rows or of tokens."""
    split: str | None = None
    """The split to read. Default: train if there is one."""
    sources: Sequence[str] | None = None
    """Read only these sources."""
    seed: int = 0
    """The seed of the order."""
    shuffle: bool | Mapping[str, int] = True
    """False: each source in the order of its records. `{"blocks": n}`: blocks of consecutive rows in random order, and
    the rows of n of them shuffled together, so that a remote block is fetched once an epoch.
    """
    epochs: float | None = None
    """End after this many times the number of rows. Without weights, each pass of a loader is an epoch."""
    rows: int | None = None
    """End after this many rows."""
    tokens: int | None = None
    """End after the rows that hold this many tokens, by the mean of each source. Without `epochs`, `rows` and `tokens`
    the stream is endless.
    """
    rows_per_epoch: int | None = None
    """The rows of an epoch, which is one pass of a loader. With weights an epoch has no other definition: without
    this, the stream is one pass.
    """
    max_epochs: float | Mapping[str, float] | None = None
    """Refuse an end that reads a source more often: a number, or one for each source."""
    drop_last: bool = False
    """Leave out the rows of an incomplete last batch. False: fill it up with empty rows."""
    balance: bool = False
    """Deal the rows of a global batch to ranks by their attention cost, instead of one slice each."""
    batch_tokens: int | Mapping[str, int] | None = None
    """For rows that are not packed: put rows of similar lengths into batches of at most that many tokens, with padding.
    Loaders then get no `batch_size`. `{"tokens": n, "window": rows}` also sets among how many rows of the order similar
    ones are found (4,096).
    """
    collate: Collate | PairCollate | None = None
    """What a batch of tokens holds: a `Collate`, or of preferences a `PairCollate`."""
    samples: Samples = Samples()
    """How samples, texts, third-party ids and images become batches."""
    cache: str | os.PathLike[str] | Cache | None = None
    """The folder on a local disk for the blocks of datasets on a store, or a `Cache` with its size."""

    def __post_init__(self) -> None:
        check_choice("weights_in", self.weights_in, ("rows", "tokens"))
        sources: Any = self.sources
        if isinstance(sources, str) or not isinstance(sources, Collection | None):
            raise UsageError(f'sources must be a list such as ["web"], not {self.sources!r:.80}')
        if not isinstance(self.collate, Collate | PairCollate | None):
            raise UsageError(f"collate must be a Collate or PairCollate, not {self.collate!r:.80}")
        if not isinstance(self.samples, Samples):
            raise UsageError(f"samples must be a Samples, not {self.samples!r:.80}")
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
        rows_per_epoch, batch_tokens = self.rows_per_epoch, cast("Any", self.batch_tokens)
        if batch_tokens is not None:
            batch_tokens = _parse_batch_tokens(batch_tokens)
            if self.balance:
                raise UsageError(
                    "balance deals the rows of a batch to ranks, but with batch_tokens each rank has a separate batch",
                    help="leave one of them out",
                )
        if rows_per_epoch is not None:
            rows_per_epoch = check_whole_number("rows_per_epoch", rows_per_epoch, least=1)
        _set(
            self,
            data=_make_absolute(self.data),
            mixture=self.mixture if isinstance(self.mixture, Mapping) else self.mixture or None,
            seed=check_seed(self.seed),
            shuffle=_check_shuffle(self.shuffle),
            cache=self.cache if isinstance(self.cache, Cache) else Cache(self.cache),
            balance=check_bool("balance", self.balance),
            drop_last=check_bool("drop_last", self.drop_last),
            max_epochs=_check_limits(self.max_epochs),
            rows_per_epoch=rows_per_epoch,
            batch_tokens=batch_tokens,
            **checked_ends,
        )

    @property
    def window(self) -> int | None:
        """How many blocks are shuffled together; None: all rows, or none."""
        return self.shuffle["blocks"] if isinstance(self.shuffle, Mapping) else None

    @property
    def end(self) -> tuple[str, float]:
        """Which of `epochs`, `rows` and `tokens` ends the stream, and its value. The value is infinite if none does."""
        ends = {"epochs": self.epochs, "rows": self.rows, "tokens": self.tokens}
        return next(((name, end) for name, end in ends.items() if end is not None), ("rows", math.inf))


_Fields = ParamSpec("_Fields")


def takes_fields(
    struct: Callable[_Fields, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _Fields], None]]:
    """Give a constructor the arguments of a struct, for type checkers, editors and `help`."""
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    signature = inspect.Signature([*parameters, *inspect.signature(struct).parameters.values()])

    def decorate(function: Callable[..., None]) -> Callable[Concatenate[Any, _Fields], None]:
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return decorate


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
    if isinstance(value, BatchTokens):
        return value
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
    if isinstance(value, TokenizeTexts):
        return value
    settings = {"tokenizer": value} if isinstance(value, str) else value
    try:
        parsed = msgspec.convert(settings, describe_type(TokenizeTexts))
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
