"""Export of prompts for reinforcement learning, as verl, TRL and NeMo-RL read them: one file for each shard.

The dataset comes from a recipe with `render: {until: prompt}`. Its column `prompt` has the messages of each prompt, and
all other columns go along:

| format | columns |
|---|---|
| verl | `data_source`, `prompt`, `ability`, `reward_model` (`style`, `ground_truth`), `extra_info` (the others) |
| trl-prompts | `prompt`, `ground_truth`, and the others, which TRL hands to reward functions |
| nemo-rl | `input`, `output`, and the others |

The ground truth is the column of this name, or that of `reward_model`, or else the answer that the record had.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import UsageError
from gristmill.core.json_values import NAN_AS_NULL, is_json, to_json_text, to_json_values
from gristmill.core.records import ORIGIN, TEXT
from gristmill.exports.layout import ExportFormat
from gristmill.exports.tables import TablesLayout, find_members
from gristmill.shards.formats.shard_format import ShardFormat, write_shard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.exports.layout import ExportSplit, Layout, ShardSlot, Targets
    from gristmill.shards.manifest import Manifest
    from gristmill.storage.locations import Location

_PROMPT, _ANSWER, _TRUTH = "prompt", "completion", "ground_truth"
_SOURCE, _ABILITY, _REWARD, _EXTRA = "data_source", "ability", "reward_model", "extra_info"
_MESSAGES_TYPE = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


class PromptFormat(ExportFormat):
    """Files of prompts in a format of Parquet or JSON lines."""

    needs_typed_columns = True
    file_format: ClassVar[str] = "parquet"

    def check_dataset(self, manifest: Manifest, folder: Location) -> None:
        if manifest.holds_rows or find_members(manifest) is not None:
            raise UsageError(
                f"{folder} holds {manifest.kind}, and {self.name} is a format for prompts",
                help="make prompts with `render: {until: prompt}`, without tokenize",
            )

    def make_layout(self, split: ExportSplit) -> Layout:
        names = split.schema.names
        kind = split.schema.field(_PROMPT).type if _PROMPT in names else None
        if kind is None or not (pa.types.is_large_list(kind) or pa.types.is_list(kind)):
            raise UsageError(
                f"the dataset has no column {_PROMPT} of messages, which {self.name} needs",
                help="make prompts with `render: {until: prompt}`, without keep: messages",
            )
        return self._layout_class(
            split.name,
            ShardFormat.of("parquet"),  # the form in which shards are read; `file_format` is that of the files
            len(split.slots),
            split.schema,
            split.manifest.format,
            is_tokens=False,
            row_group_rows=split.row_group_rows,
            file_format=ShardFormat.of(self.file_format),
            sources={int(key, 16): file.source for key, file in split.manifest.files.items()},
        )

    _layout_class: ClassVar[type[_PromptLayout]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PromptLayout(TablesLayout):
    """A `Layout` of one split of prompts."""

    file_format: ShardFormat
    sources: dict[int, str]
    """The source of each input file, by the `file` of origins."""

    def fill(self, slot: ShardSlot, targets: Targets) -> int:
        """Write the file of a shard; return how many numbers JSON could not hold."""
        counts: Counter[str] = Counter()
        with Path(targets.paths[slot.number]).open("wb") as file:
            write_shard(
                self.file_format, self._output_schema(), self._convert_all(slot, counts), file, self.row_group_rows
            )
            file.flush()
            os.fsync(file.fileno())
        return counts[NAN_AS_NULL]

    def _name(self, number: int) -> str:
        return f"_{self.split}-{number:05d}{self.file_format.suffix}"

    def _output_schema(self) -> pa.Schema:
        empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in self.schema], schema=self.schema)
        return self._convert(empty, 0).schema

    def _convert_all(self, slot: ShardSlot, counts: Counter[str]) -> Iterator[pa.RecordBatch]:
        row = slot.first_row
        for batch in self._read_records((slot,), counts):
            yield self._convert(batch, row)
            row += batch.num_rows

    def _convert(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """Make the columns of the format; the first row has this number in its split."""
        raise NotImplementedError

    def _others(self, *used: str) -> list[str]:
        """Name the columns that go along; `completion` only if it is not the ground truth."""
        left_out = {ORIGIN, TEXT, _PROMPT, *used}
        if not self._has_truth:
            left_out.add(_ANSWER)
        return [name for name in self.schema.names if name not in left_out]

    @property
    def _has_truth(self) -> bool:
        """Whether records say what is right elsewhere than in the answer they had."""
        return _TRUTH in self.schema.names or self._reward_fields >= {_TRUTH}

    @property
    def _reward_fields(self) -> set[str]:
        if _REWARD not in self.schema.names or not pa.types.is_struct(self.schema.field(_REWARD).type):
            return set()
        return {field.name for field in self.schema.field(_REWARD).type}

    def _find_truth(self, batch: pa.RecordBatch) -> pa.Array:
        if _TRUTH in self.schema.names:
            return self._to_text(batch, _TRUTH)
        if _TRUTH in self._reward_fields:
            return _as_text(pc.struct_field(batch.column(_REWARD), _TRUTH))
        if _ANSWER in self.schema.names:
            return self._to_text(batch, _ANSWER)
        return pa.nulls(batch.num_rows, pa.string())

    def _to_text(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        return (
            batch.column(name).cast(pa.string()) if is_json(self.schema.field(name)) else _as_text(batch.column(name))
        )


def _build_batch(columns: dict[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Make a batch in which columns of JSON texts of the dataset are still known as such."""
    known = {field.name: field for field in schema}
    fields = [
        known[name] if name in known and known[name].type == values.type else pa.field(name, values.type)
        for name, values in columns.items()
    ]
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))


def _as_text(values: pa.Array) -> pa.Array:
    """Return values as text: what is neither text nor a number as JSON."""
    if pa.types.is_nested(values.type) or pa.types.is_boolean(values.type):
        return to_json_text(to_json_values(values)).cast(pa.string())
    return values.cast(pa.string())


@dataclass(frozen=True, slots=True, kw_only=True)
class _VerlLayout(_PromptLayout):
    """A `Layout` of files for verl's `RLHFDataset`."""

    def _convert(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        names = self.schema.names
        if _SOURCE in names:
            source = self._to_text(batch, _SOURCE)
        else:
            files = batch.column(ORIGIN).field("file").to_pylist()
            source = pa.array([self.sources.get(file, "") for file in files], pa.string())
        style = pa.repeat(pa.scalar("rule", pa.string()), batch.num_rows)
        if "style" in self._reward_fields:
            style = _as_text(pc.struct_field(batch.column(_REWARD), "style"))
        reward = {"style": style, _TRUTH: self._find_truth(batch)}
        extra: dict[str, pa.Array] = {
            "split": pa.repeat(pa.scalar(self.split, pa.string()), batch.num_rows),
            "index": pa.array(np.arange(first_row, first_row + batch.num_rows)),
        }
        reward_left = _REWARD if self._reward_fields <= {"style", _TRUTH} else ""
        others = self._others(_SOURCE, _ABILITY, _TRUTH, _EXTRA, reward_left)
        extra |= {name: batch.column(name) for name in others}
        if _EXTRA in names:
            own_info = batch.column(_EXTRA)
            is_struct = pa.types.is_struct(own_info.type)
            fields = [field.name for field in own_info.type] if is_struct else []
            extra |= {name: pc.struct_field(own_info, name) for name in fields} if is_struct else {_EXTRA: own_info}
        return pa.RecordBatch.from_pydict(
            {
                _SOURCE: source,
                _PROMPT: batch.column(_PROMPT).cast(_MESSAGES_TYPE),
                _ABILITY: self._to_text(batch, _ABILITY)
                if _ABILITY in names
                else pa.nulls(batch.num_rows, pa.string()),
                _REWARD: pa.StructArray.from_arrays(list(reward.values()), list(reward)),
                _EXTRA: pa.StructArray.from_arrays(list(extra.values()), list(extra)),
            }
        )

    def usage(self, prefix: str) -> str:
        key = "train_files" if self.split == "train" else "val_files"
        names = [f'"{prefix}{file.name}"' for file in self.files]
        return f"data.{key}='[{', '.join(names[:1] if len(names) == 1 else [*names[:1], '…', *names[-1:]])}]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrlLayout(_PromptLayout):
    """A `Layout` of files for TRL's trainers that sample: GRPO, RLOO, online DPO."""

    def _convert(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:  # noqa: ARG002
        # A column `completion` would make it another kind of dataset for TRL.
        others = {name if name != _ANSWER else "answer": batch.column(name) for name in self._others(_TRUTH)}
        prompt = {_PROMPT: batch.column(_PROMPT).cast(_MESSAGES_TYPE), _TRUTH: self._find_truth(batch)}
        return _build_batch(prompt | others, self.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NemoLayout(_PromptLayout):
    """A `Layout` of files for NeMo-RL's dataset of responses, whose prompts are one text."""

    def _convert(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        prompts = batch.column(_PROMPT)
        is_other = [len(messages) != 1 or messages[0]["role"] != "user" for messages in prompts.to_pylist()]
        if any(is_other):
            row = is_other.index(True)
            raise UsageError(
                f"prompt {first_row + row} of {self.split} has {len(prompts[row])} messages, not just one of a user",
                help="name a system prompt in NeMo-RL's settings (system_prompt_file) and leave it out of the data",
            )
        truth = self._find_truth(batch)
        if truth.null_count:
            row = int(np.argmax(truth.is_null().to_numpy(zero_copy_only=False)))
            raise UsageError(
                f"prompt {first_row + row} of {self.split} has no {_TRUTH}, which NeMo-RL reads as output",
                help=f"add a column {_TRUTH}, or drop such records with a filter",
            )
        others = {
            name: batch.column(name) for name in self._others(_TRUTH) if name not in ("input", "output", "messages")
        }
        return _build_batch({"input": prompts.flatten().field("content"), "output": truth, **others}, self.schema)


class VerlFormat(PromptFormat):
    """Parquet files for verl."""

    name = "verl"
    has_row_groups = True
    _layout_class = _VerlLayout


class TrlPromptsFormat(PromptFormat):
    """Parquet files of prompts for TRL."""

    name = "trl-prompts"
    has_row_groups = True
    _layout_class = _TrlLayout


class NemoRlFormat(PromptFormat):
    """JSON lines of prompts for NeMo-RL."""

    name = "nemo-rl"
    file_format = "jsonl"
    _layout_class = _NemoLayout
