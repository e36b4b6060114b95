"""Sinks: where the records of one task go, cell by cell.

A `RecordSink` writes one block for each cell. What kind of file the blocks are in is chosen by who opens it: streams
that a later stage reads, whole shards, or bare blocks that are joined later. Rows of packed tokens are the exception:
a `PackingSink` makes them when all documents of a unit are there.

A unit keeps back the documents of its emptiest rows (best fit) or of its last one (concat): its leftovers. The
leftovers of all units of a source are packed once more, unit by unit in order, into the source's last shards. So
utilisation depends neither on the size of tasks nor on that of units.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, Self

import pyarrow as pa

from gristmill.core.books import Account
from gristmill.core.errors import LowUtilisationError
from gristmill.core.records import INPUT_IDS, ORIGIN, SPLIT
from gristmill.core.splits import TRAIN
from gristmill.pipeline.stages.outputs.split_files import SplitFileWriter, group_by_split
from gristmill.shards.canonical import canonicalize_schema
from gristmill.shards.formats.arrow import ArrowEncoder
from gristmill.shards.formats.shard_format import open_encoder
from gristmill.shards.token_rows import ORIGINS, make_document_rows, shard_schema
from gristmill.steps.pack_rows import pack_documents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.pipeline.stages.outputs.split_files import Annotator, OutputStem, SplitFile
    from gristmill.steps.pack import Pack
    from gristmill.steps.pack_rows import PackedDocuments
    from gristmill.steps.write import Write


@dataclass(frozen=True, slots=True)
class SinkResult:
    """The files that a sink has made of the records."""

    split_files: list[SplitFile]
    leftovers: list[SplitFile] = field(default_factory=list)
    """Documents of rows that documents of other units are to fill (`packing`)."""
    accounts: list[Account] = field(default_factory=list)
    """Accounts of the steps that the sink itself has run."""
    held_files: list[SplitFile] = field(default_factory=list)
    """Training records that wait to be interleaved with those of other sources (`mixed_lane`)."""


class Sink(Protocol):
    """Takes records and makes files of them. Leaving it without `commit` leaves no file."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the records of one cell."""

    def commit(self) -> SinkResult:
        """Give all files their names."""


class RecordSink:
    """Writes the records of each split to their own files, one block for each cell.

    Training records go to `held_writer`, if there is one.
    """

    def __init__(
        self,
        writer: SplitFileWriter,
        held_writer: SplitFileWriter | None = None,
        *,
        keeps_split_column: bool = False,
        makes_rows: bool = False,
    ) -> None:
        self._writer = writer
        self._held = held_writer
        self._keeps_split_column = keeps_split_column
        self._makes_rows = makes_rows

    def __enter__(self) -> Self:
        for writer in self._writers():
            writer.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for writer in self._writers():
            writer.__exit__()

    def add(self, batch: pa.RecordBatch) -> None:
        for split, records in group_by_split(batch, keep_column=self._keeps_split_column):
            writer = self._held if self._held is not None and split == TRAIN else self._writer
            writer.add(split, make_document_rows(records) if self._makes_rows else records)

    def commit(self) -> SinkResult:
        held_files = self._held.commit() if self._held is not None else []
        return SinkResult(self._writer.commit(), held_files=held_files)

    def _writers(self) -> Iterator[SplitFileWriter]:
        yield self._writer
        if self._held is not None:
            yield self._held


def open_stream_sink(
    schema: pa.Schema,
    stem: OutputStem,
    annotator: Annotator | None = None,
    *,
    framed: bool = True,
) -> RecordSink:
    """Keep records for later: for each split an Arrow stream, in which the split stays a column."""
    encoder = ArrowEncoder(canonicalize_schema(schema))
    return RecordSink(SplitFileWriter(encoder, stem, framed=framed, annotator=annotator), keeps_split_column=True)


def open_shard_sink(write: Write, schema: pa.Schema, stem: OutputStem, *, holds_train: bool) -> RecordSink:
    """Write whole shards, each of at most the size that the recipe allows."""
    encoder = open_encoder(write.shard_format, find_shard_schema(schema))
    writer = SplitFileWriter(
        encoder, stem, max_bytes=write.max_shard_bytes, max_rows=write.max_shard_samples, is_final=True
    )
    return _make_written_sink(writer, schema, holds_train=holds_train)


def open_block_sink(write: Write, schema: pa.Schema, stem: OutputStem, *, holds_train: bool) -> RecordSink:
    """Write bare blocks of shards. They are cut into shards when they are joined."""
    writer = SplitFileWriter(open_encoder(write.shard_format, find_shard_schema(schema)), stem, framed=False)
    return _make_written_sink(writer, schema, holds_train=holds_train)


def find_shard_schema(schema: pa.Schema) -> pa.Schema:
    """Find the columns of shards for records with these columns, where each record becomes at most one row."""
    return schema if _holds_rows(schema) else shard_schema(schema, None)


def _holds_rows(schema: pa.Schema) -> bool:
    """Tell whether the records are rows of tokens already, made of documents whose origins they list."""
    return ORIGINS in schema.names and ORIGIN not in schema.names


def _make_written_sink(writer: SplitFileWriter, schema: pa.Schema, *, holds_train: bool) -> RecordSink:
    held_writer = _open_held_writer(find_shard_schema(schema), writer.stem) if holds_train else None
    return RecordSink(writer, held_writer, makes_rows=INPUT_IDS in schema.names and not _holds_rows(schema))


def _open_held_writer(schema: pa.Schema, stem: OutputStem) -> SplitFileWriter:
    """Open a writer for records as they will be written, in streams that all sources have in common.

    Metadata of fields differs from source to source, and is not needed.
    """
    fields = [field.remove_metadata() for field in schema if field.name != SPLIT]
    return SplitFileWriter(
        ArrowEncoder(canonicalize_schema(pa.schema(fields))), replace(stem, stem=f"{stem.stem}-held", source=None)
    )


class PackingSink:
    """Takes tokenized documents, and writes rows when all of them are there.

    `packs_leftovers`: the documents are leftovers, so nothing is kept back, and they are not counted a second time.
    `holds_train`: training rows wait to be interleaved with those of other sources.
    """

    def __init__(
        self,
        pack: Pack,
        pad_id: int,
        write: Write,
        stem: OutputStem,
        *,
        packs_leftovers: bool = False,
        holds_train: bool = False,
    ) -> None:
        self._pack = pack
        self._pad_id = pad_id
        self._write = write
        self._stem = stem
        self._packs_leftovers = packs_leftovers
        self._holds_train = holds_train
        self._documents: defaultdict[str, list[pa.RecordBatch]] = defaultdict(list)
        """By split."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._documents.clear()

    def add(self, batch: pa.RecordBatch, default_split: str = TRAIN) -> None:
        """Take documents; `default_split` is for documents that name no split."""
        for split, documents in group_by_split(batch, default_split):
            self._documents[split].append(documents)

    def commit(self) -> SinkResult:
        """Pack the documents, and give all files their names."""
        account = make_empty_account(self._pack)
        if not self._documents:
            return SinkResult([], accounts=[account])
        schema = next(iter(self._documents.values()))[0].schema
        row_encoder = open_encoder(self._write.shard_format, shard_schema(schema, self._pack.row_length))
        document_encoder = ArrowEncoder(canonicalize_schema(schema))
        leftover_stem = replace(self._stem, stem=f"{self._stem.stem}-leftover", source=None)
        # Rows that wait to be interleaved are no shards yet.
        row_stem = replace(self._stem, source=None) if self._holds_train else self._stem
        with ExitStack() as stack:
            rows = stack.enter_context(
                SplitFileWriter(row_encoder, row_stem, max_bytes=self._write.max_shard_bytes, is_final=True)
            )
            leftovers = stack.enter_context(SplitFileWriter(document_encoder, leftover_stem))
            for split in sorted(self._documents):
                packed = pack_documents(
                    self._pack, self._pad_id, self._documents.pop(split), keeps_unfinished=self._packs_leftovers
                )
                for batch in packed.rows():
                    rows.add(split, batch)
                if packed.leftover.num_rows:
                    leftovers.add(split, packed.make_leftover_documents())
                self._add_to_account(packed, account)
            leftover_files, files = leftovers.commit(), rows.commit()
            held_files = [file for file in files if file.split == TRAIN] if self._holds_train else []
            return SinkResult([file for file in files if file not in held_files], leftover_files, [account], held_files)

    def _add_to_account(self, packed: PackedDocuments, account: Account) -> None:
        """Count documents and their tokens where they are first packed, and rows where they are written.

        So a document that is left over by its unit is counted there, and the row that it ends up in here.
        """
        packing = packed.packing
        num_row_tokens = packing.num_tokens
        account.counters.update(
            rows=packing.num_rows,
            row_tokens=num_row_tokens,
            padding=packing.num_rows * self._pack.row_length - num_row_tokens,
        )
        if packed.num_trained_tokens is not None:
            account.counters.update(trained_tokens=packed.num_trained_tokens)
        if self._packs_leftovers:
            account.counters.update(tail_rows=packing.num_rows)
            return
        dropped = Counter(
            too_long=packing.num_dropped_documents,
            empty=packing.num_empty,
            no_trained_tokens=packing.num_untrained_documents,
        )
        account.records_in += len(packed.offsets) - 1
        account.records_out += len(packed.offsets) - 1 - dropped.total()
        account.dropped += dropped  # `+=` leaves out zeros
        account.counters.update(
            tokens=int(packed.offsets[-1]),
            dropped_tokens=packing.dropped_tokens,
            truncated_tokens=packing.truncated_tokens,
            split_documents=packing.num_split_documents,
            truncated_documents=packing.num_truncated_documents,
        )


def make_empty_account(pack: Pack) -> Account:
    """Make the account of `pack` before the first document."""
    return Account(step=pack.name, counters=Counter(tokens=0, rows=0, row_tokens=0, padding=0))


def check_utilisation(pack: Pack, source: str, account: Account) -> None:
    """Raise `LowUtilisationError` for rows that hold too much padding."""
    num_places = account.counters["rows"] * pack.row_length
    if pack.min_utilisation is None or not num_places:
        return
    utilisation = account.counters["row_tokens"] / num_places
    if utilisation < pack.min_utilisation:
        raise LowUtilisationError(
            f"source {source}: {utilisation:.2%} of the places in rows hold tokens; min_utilisation asks for "
            f"{pack.min_utilisation:.2%}",
            help="choose strategy: concat or best_fit, or rows that suit the documents' lengths",
        )
