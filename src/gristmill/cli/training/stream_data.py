"""The arguments of commands that stream datasets: one or several by name, and their order, as in training."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from gristmill.cli.options import MixtureParam, Size, field_options
from gristmill.core.errors import UsageError
from gristmill.stream import Cache, Collate, Stream
from gristmill.stream.lanes.arguments import StreamArguments

F = TypeVar("F", bound=Callable[..., Any])


def stream_arguments(function: F) -> F:
    """Add OUT and the options of a stream. The command gets `open_stream(state, collate)` as its first argument.

    If weights or seed are not on the command line, they are taken from the state.
    """
    fields = ("weights_in", "split", "sources", "epochs", "rows_per_epoch", "balance")

    @wraps(function)
    def command(
        out: tuple[str, ...],
        mixture: dict[str, Any] | None,
        seed: int | None,
        shuffle_blocks: int | None,
        cache: str | None,
        cache_bytes: int,
        *,
        shuffle: bool,
        **rest: Any,
    ) -> Any:
        own = {name: rest.pop(name) for name in fields}

        def open_stream(
            state: Mapping[str, Any] | None = None, collate: Collate | None = None, **changes: Any
        ) -> Stream:
            data, saved = parse_datasets(out), state or {}
            has_weights = isinstance(data, dict) and any(isinstance(entry, tuple) for entry in data.values())
            options: dict[str, Any] = {
                "mixture": saved.get("phases") if mixture is None and not has_weights else mixture,
                "seed": saved.get("seed", 0) if seed is None else seed,
                "shuffle": {"blocks": shuffle_blocks} if shuffle_blocks else shuffle,
                "cache": Cache(cache, max_bytes=cache_bytes),
                "collate": collate,
            }
            stream = Stream(data, **{**options, **own, **changes})
            if state is not None:
                stream.load_state_dict(state)
            return stream

        return function(open_stream, **rest)

    for option in (
        click.option(
            "--cache-bytes",
            type=Size(),
            default=Cache().max_bytes,
            help="Size of that cache, such as 500GB. Default: 64 GiB.",
        ),
        click.option("--cache", help="Local folder that caches a dataset on a store. Default: in your cache folder."),
        click.option(
            "--shuffle-blocks",
            type=click.IntRange(min=1),
            help="Shuffle blocks, and the rows of this many of them together. Default: all rows.",
        ),
        click.option(
            "--no-shuffle",
            "shuffle",
            flag_value=False,
            default=True,
            help="Read each source in the order of its records.",
        ),
        click.option("--seed", type=int, help="The seed of the order. Default: that of the state, or 0."),
        field_options(StreamArguments, *fields),
        click.option(
            "--mixture",
            type=MixtureParam(),
            help="Weights: web=0.7,code=0.3, or how often each source is read: epochs:web=1,code=2. Default: as the "
            "dataset says.",
        ),
        click.argument("out", nargs=-1, required=True, metavar="OUT…"),
    ):
        command = option(command)
    return command  # type: ignore[return-value]


def parse_datasets(words: Sequence[str]) -> Any:
    """Parse the datasets as `Stream` takes them: a folder, or folders by name, with weights or without."""
    if len(words) == 1 and ("=" not in words[0] or Path(words[0]).exists()):
        return words[0]
    datasets: dict[str, str | tuple[str, float]] = {}
    for text in words:
        parts = re.fullmatch(r"([\w.-]+)=(.+?)(?::(\d+(?:\.\d*)?|\.\d+))?", text)
        if not parts:
            raise UsageError(f"{text!r} is not a dataset with a name", help="write web=out/web:0.7 code=out/code:0.3")
        name, folder, weight = parts.groups()
        if name in datasets:
            raise UsageError(f"two datasets are called {name}", help="give them different names")
        datasets[name] = folder if weight is None else (folder, float(weight))
    return datasets
