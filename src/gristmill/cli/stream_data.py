"""What a command streams: one dataset or several by name, and in which order, as in training."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from gristmill.cli.options import Choice
from gristmill.core.errors import UsageError
from gristmill.stream import Collate, Stream

F = TypeVar("F", bound=Callable[..., Any])


class MixtureParam(click.ParamType[dict[str, float]]):
    """Weights of sources."""

    name = "weights"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, float]:
        """`web=0.7,code=0.3`."""
        if isinstance(value, dict):
            return value
        try:
            pairs = [part.rsplit("=", 1) for part in str(value).split(",")]
            weights = {name: float(weight) for name, weight in pairs}
        except ValueError:
            self.fail(f"{value!r} is not a mixture: write web=0.7,code=0.3", param, ctx)
        if len(weights) < len(pairs):
            self.fail(f"{value!r} names a source twice", param, ctx)
        return weights


def stream_arguments(function: F) -> F:
    """OUT and the options of a stream; the command gets `open_stream(state, collate)`.

    What the command line leaves open, weights and seed, is taken from the state.
    """

    @wraps(function)
    def command(
        out: tuple[str, ...],
        mixture: dict[str, float] | None,
        weights_in: str,
        split: str | None,
        sources: str | None,
        seed: int | None,
        epochs: float | None,
        rows_per_epoch: int | None,
        *,
        shuffle: bool,
        **rest: Any,
    ) -> Any:
        def open_stream(state: Mapping[str, Any] | None = None, collate: Collate | None = None) -> Stream:
            data, saved = datasets(out), state or {}
            has_weights = isinstance(data, dict) and any(isinstance(given, tuple) for given in data.values())
            stream = Stream(
                data,
                mixture=saved.get("phases") if mixture is None and not has_weights else mixture,
                weights_in=weights_in,
                split=split,
                sources=None if sources is None else sources.split(","),
                seed=saved.get("seed", 0) if seed is None else seed,
                shuffle=shuffle,
                epochs=epochs,
                rows_per_epoch=rows_per_epoch,
                collate=collate,
            )
            if state is not None:
                stream.load_state_dict(state)
            return stream

        return function(open_stream, **rest)

    for option in (
        click.option("--no-shuffle", "shuffle", flag_value=False, default=True, help="Sources in their own order."),
        click.option("--rows-per-epoch", type=click.IntRange(min=1), help="Where epochs end, as in training."),
        click.option("--epochs", type=float, help="As in training. Default: endless."),
        click.option("--seed", type=int, help="Of the order, as in training. Default: 0."),
        click.option("--sources", help="Only these, as web,code."),
        click.option("--split", help="Default: train."),
        click.option(
            "--weights-in",
            type=Choice(("rows", "tokens")),
            default="rows",
            show_default=True,
            help="Of what weights are.",
        ),
        click.option("--mixture", type=MixtureParam(), help="Weights, as web=0.7,code=0.3. Default: the dataset's."),
        click.argument("out", nargs=-1, required=True, metavar="OUT…"),
    ):
        command = option(command)
    return command  # type: ignore[return-value]


def datasets(given: Sequence[str]) -> Any:
    """What `Stream` takes: a folder, or folders by name, with weights or without."""
    if len(given) == 1 and ("=" not in given[0] or Path(given[0]).exists()):
        return given[0]
    found: dict[str, str | tuple[str, float]] = {}
    for text in given:
        parts = re.fullmatch(r"([\w.-]+)=(.+?)(?::(\d+(?:\.\d*)?|\.\d+))?", text)
        if not parts:
            raise UsageError(f"{text!r} is not one of several datasets", help="write web=out/web:0.7 code=out/code:0.3")
        name, folder, weight = parts.groups()
        if name in found:
            raise UsageError(f"two datasets are called {name}", help="name them apart")
        found[name] = folder if weight is None else (folder, float(weight))
    return found
