"""`StreamDataLoader`: a stream as the data loader of torchtitan, with a state that any number of ranks resumes.

torchtitan (main of August 2026, `torchtitan.components.data.loader.BaseDataLoader`) trains on folded batches: all rows
of a rank one after the other in `{"input": ids, "positions": positions}` and `labels`, which are shifted. Its own
loader keeps a state for each rank and refuses another data-parallel degree. Here the state is a row number, equal on
all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from torchtitan.components.data.loader import BaseDataLoader

from gristmill.core.errors import UsageError
from gristmill.stream.collate import Collate
from gristmill.stream.stream import Stream
from gristmill.stream.torch.loader import TorchLoader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["StreamDataLoader"]


class StreamDataLoader(BaseDataLoader):  # type: ignore[misc]  # torchtitan is not checked
    """Packed rows for torchtitan's trainer: `dataloader=StreamDataLoader.Config(data="out", seed=7)`."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """The arguments of `Stream` that a training chooses, by their names; the trainer passes ranks and sizes."""

        data: Any = ""
        """A folder, a URL, or several by name, as for `Stream`."""
        seed: int = 0
        mixture: Any = None
        weights_in: str = "rows"
        split: str | None = None
        sources: Any = None
        shuffle: Any = True
        epochs: float | None = None
        rows: int | None = None
        tokens: int | None = None
        rows_per_epoch: int | None = None
        max_epochs: Any = None
        drop_last: bool = False
        balance: bool = False
        cache: Any = None
        """A folder, or a `Cache` with its size."""
        num_threads: int = 1
        """The threads that make batches in advance; this one is of `TorchLoader`."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        max_context_length: int,
        num_tokens_per_batch: int,
        **others: Any,
    ) -> None:
        del others  # the tokenizer: rows are tokens already
        # The first token of a document must not be predicted from another document.
        collate = Collate(fields=("input_ids", "labels", "position_ids"), labels="shifted", learn_first_token=False)
        own = (*(field.name for field in fields(BaseDataLoader.Config)), "data", "num_threads")
        arguments = {
            field.name: getattr(config, field.name)
            for field in fields(StreamDataLoader.Config)
            if field.name not in own
        }
        self._stream = Stream(config.data, collate=collate, **arguments)
        batch_size = _count_rows(self._stream.row_length, num_tokens_per_batch, max_context_length)
        self._loader = TorchLoader(
            self._stream, batch_size, rank=dp_rank, world_size=dp_world_size, num_threads=config.num_threads
        )
        self._batches: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Iterate over the batches of all epochs from the stream's position on."""
        self.close()
        self._batches = batches = self._fold()
        return batches

    def _fold(self) -> Iterator[tuple[dict[str, Any], Any]]:
        while self._stream.num_rows is None or self._loader.steps_left:
            for batch in self._loader:
                arrays = {name: value.reshape(-1) for name, value in batch.items()}
                yield {"input": arrays["input_ids"], "positions": arrays["position_ids"]}, arrays["labels"]

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was used; the same on every rank."""
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume with any number of ranks and tokens in a batch. An empty state, as of a first run, changes nothing."""
        if state_dict:
            self._loader.load_state_dict(state_dict)

    def close(self) -> None:
        """Stop the threads that make batches ahead."""
        if self._batches is not None:
            self._batches.close()  # type: ignore[attr-defined]
            self._batches = None


def _count_rows(row_length: int | None, num_tokens: int, max_length: int) -> int:
    """Count the rows of a batch of torchtitan."""
    if row_length is None:
        raise UsageError("torchtitan trains on rows of one length", help="pack the dataset: pack: {row_length: …}")
    if row_length > max_length:
        raise UsageError(f"rows have {row_length:,} tokens, but max_context_length is {max_length:,}")
    if num_tokens % row_length:
        raise UsageError(
            f"a batch of {num_tokens:,} tokens is not a whole number of rows of {row_length:,}",
            help="choose tokens for each rank and microbatch that the rows divide",
        )
    return num_tokens // row_length
