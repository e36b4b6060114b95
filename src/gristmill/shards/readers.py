"""Reading the records of one shard, in each of the four formats.

| format | a row at random costs | memory |
|---|---|---|
| arrow | microseconds: the file is mapped | the row |
| parquet | decoding its row group, unless it is the one read last | one row group, about 32 MiB |
| jsonl | reading on from the row read last; for an earlier one, from the start | 1 MiB, or one record |
| webdataset | one seek, by an index that the first such row makes: 9 µs a member | 33 bytes a member and its name |

In order, every format is read once from front to back.
"""

from __future__ import annotations

import bisect
import itertools
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.core.json_values import decode_json
from gristmill.core.names import check_choice
from gristmill.core.records import KEY, ORIGIN, TEXT
from gristmill.shards.arrow_stream import mapped_batches, unchecked_batches
from gristmill.shards.token_rows import KINDS, ORIGINS, check_rows
from gristmill.storage.compression import codec_of, decompress
from gristmill.storage.files import open_input
from gristmill.storage.tar_index import PlainTar, index_tar, is_origin_key, split_sample_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from gristmill.storage.tar_index import TarIndex, TarMember

Record = dict[str, Any]
_ROWS_AT_A_TIME = 256


class ShardReader(Protocol):
    """The records of one shard. What is damaged raises whatever its library raises: see `READ_ERRORS`."""

    def row(self, index: int) -> Record: ...

    def rows(self) -> Iterator[Record]: ...

    def count_rows(self) -> int:
        """How many there are in the file, whatever the manifest says."""


READ_ERRORS = (OSError, EOFError, pa.ArrowException, msgspec.DecodeError, ValueError, LookupError, OverflowError)
"""What reading a damaged shard may raise, besides `CorruptStreamError`."""


def open_shard(path: Path, format: str, kind: str = "documents", schema: pa.Schema | None = None) -> ShardReader:
    """A shard of a dataset of this format and kind, and with these columns where they are in Arrow or Parquet."""
    if kind in KINDS:
        return TokenShard(path, schema)
    check_choice("format", format, ("arrow", "parquet", "jsonl", "webdataset"))
    if format == "arrow":
        return ArrowShard(path, schema)
    if format == "parquet":
        return ParquetShard(path, schema)
    if format == "jsonl":
        return SequentialShard(lambda: line_chunks(path), _record)
    return TarShard(path)


def open_origins(path: Path, format: str, kind: str = "documents") -> Iterator[pa.StructArray]:
    """The origins in a shard that holds them, or in a side file (`arrow`)."""
    if kind in KINDS:
        return (batch.column(ORIGINS).flatten() for batch in mapped_batches(path))
    if format == "parquet":
        batches = pq.ParquetFile(str(path), buffer_size=1 << 20).iter_batches(columns=[ORIGIN])
    else:
        batches = mapped_batches(path)
    return (batch.column(ORIGIN) for batch in batches)


class ArrowShard:
    """A mapped Arrow stream; opening it reads the header of each batch, and a batch is checked when it is touched."""

    def __init__(self, path: Path, schema: pa.Schema | None) -> None:
        self._batches = list(unchecked_batches(path, schema))
        self._ends = list(itertools.accumulate(batch.num_rows for batch in self._batches))
        self._checked: set[int] = set()

    def row(self, index: int) -> Record:
        record: Record = self._row(index).to_pylist()[0]
        return record

    def rows(self) -> Iterator[Record]:
        for number in range(len(self._batches)):
            yield from _batch_rows(self._batch(number))

    def _row(self, index: int) -> pa.RecordBatch:
        number = bisect.bisect_right(self._ends, index)
        batch = self._batch(number)
        return batch.slice(index - self._ends[number] + batch.num_rows, 1)

    def _batch(self, number: int) -> pa.RecordBatch:
        batch = self._batches[number]
        if number not in self._checked:
            self._check(batch)
            self._checked.add(number)
        return batch

    def _check(self, batch: pa.RecordBatch) -> None:
        batch.validate(full=True)

    def count_rows(self) -> int:
        """All batches are checked for it."""
        return sum(self._batch(number).num_rows for number in range(len(self._batches)))


class TokenShard(ArrowShard):
    """Rows of tokens, as NumPy arrays that look at the mapped file."""

    def row(self, index: int) -> Record:
        return _arrays(self._row(index))

    def rows(self) -> Iterator[Record]:
        for number in range(len(self._batches)):
            batch = self._batch(number)
            for row in range(batch.num_rows):
                yield _arrays(batch.slice(row, 1))

    def _check(self, batch: pa.RecordBatch) -> None:
        super()._check(batch)
        check_rows(batch)


class ParquetShard:
    """A Parquet file, one row group at a time."""

    def __init__(self, path: Path, schema: pa.Schema | None) -> None:
        self._file = pq.ParquetFile(str(path), buffer_size=1 << 20)
        if schema is not None and not self._file.schema_arrow.equals(schema):
            raise ValueError("its columns are not those of the manifest")
        metadata = self._file.metadata
        groups = range(metadata.num_row_groups)
        self._ends = list(itertools.accumulate(metadata.row_group(group).num_rows for group in groups))
        self._current: tuple[int, pa.Table] | None = None

    def row(self, index: int) -> Record:
        number = bisect.bisect_right(self._ends, index)
        if self._current is None or self._current[0] != number:
            self._current = None
            self._current = (number, self._file.read_row_group(number))
        table = self._current[1]
        record: Record = table.slice(index - self._ends[number] + table.num_rows, 1).to_pylist()[0]
        return record

    def rows(self) -> Iterator[Record]:
        for batch in self._file.iter_batches(batch_size=_ROWS_AT_A_TIME):
            yield from batch.to_pylist()

    def count_rows(self) -> int:
        return sum(batch.num_rows for batch in self._file.iter_batches(batch_size=_ROWS_AT_A_TIME))


class SequentialShard:
    """A stream of encoded records in chunks: it is read forward, and from its start again for what has passed."""

    def __init__(self, chunks: Callable[[], Iterator[Sequence[Any]]], decode: Callable[[Any], Record]) -> None:
        self._chunks = chunks
        self._decode = decode
        self._coming = chunks()
        self._chunk: Sequence[Any] = ()
        self._first = 0

    def row(self, index: int) -> Record:
        if index < self._first:
            self._coming, self._chunk, self._first = self._chunks(), (), 0
        while index >= self._first + len(self._chunk):
            following = next(self._coming, None)
            if following is None:
                raise EOFError(f"row {index} of a shard that has {self._first + len(self._chunk)}")
            self._first += len(self._chunk)
            self._chunk = following
        return self._decode(self._chunk[index - self._first])

    def rows(self) -> Iterator[Record]:
        for chunk in self._chunks():
            yield from map(self._decode, chunk)

    def count_rows(self) -> int:
        return sum(map(len, self._chunks()))


class TarShard:
    """A tar of samples: in order it is scanned once, for a row at random an index of its members is made first."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._index: tuple[TarIndex, list[int]] | None = None

    def row(self, index: int) -> Record:
        if self._index is None:
            members = index_tar(self._path)
            self._index = members, [*_sample_starts(members.members()), len(members)]
        members, starts = self._index
        if index + 1 >= len(starts):
            raise EOFError(f"row {index} of a shard that has {len(starts) - 1}")
        with PlainTar(self._path, members) as tar:
            return self._record(_contents(tar, members.members(starts[index], starts[index + 1])))

    def rows(self) -> Iterator[Record]:
        with PlainTar(self._path) as tar:
            for sample in _samples(tar):
                yield self._record(_contents(tar, sample))
            _refuse_damage(tar)

    @staticmethod
    def _record(sample: dict[str, bytes]) -> Record:
        """`.json` holds the columns but the text, `.txt`, and those of bytes, which are members of their own."""
        record = _record(sample.pop("json")) if "json" in sample else {}
        key = sample.pop(KEY).decode()
        if not is_origin_key(key):
            record[KEY] = key
        if "txt" in sample:
            record[TEXT] = sample.pop("txt").decode()
        return {**record, **sample}

    def count_rows(self) -> int:
        with PlainTar(self._path) as tar:
            count = sum(1 for _ in _sample_starts(tar.members()))
            _refuse_damage(tar)
        return count


def _sample_starts(members: Iterable[TarMember]) -> Iterator[int]:
    """The numbers of the members that begin a sample: those with another key than the one before."""
    current = None
    for number, member in enumerate(members):
        key = _key(member)
        if key != current:
            yield number
        current = key


def _samples(tar: PlainTar) -> Iterator[Iterator[TarMember]]:
    """Each sample's members, to be used before the next is asked for."""
    return (members for _, members in itertools.groupby(tar.members(), _key))


def _key(member: TarMember) -> str:
    found = split_sample_name(member.name)
    if found is None:
        raise EOFError(f"{member.name!r} is no member of a sample")
    return found[0]


def _contents(tar: PlainTar, members: Iterable[TarMember]) -> dict[str, bytes]:
    """The members of a sample by extension."""
    found = {}
    for member in members:
        content = tar.content(member)
        if content is None:
            raise EOFError("the tar ends before its end mark")
        found[KEY] = _key(member).encode()
        found[member.name[len(found[KEY].decode()) + 1 :]] = content
    return found


def _refuse_damage(tar: PlainTar) -> None:
    if tar.damage is not None:
        raise EOFError(tar.damage)


def _arrays(row: pa.RecordBatch) -> Record:
    """A row of lists, each as an array; origins stay a list of dicts."""
    record: Record = {
        name: row.column(name).flatten().to_numpy(zero_copy_only=False)  # bits are unpacked, all else is looked at
        for name in row.schema.names
        if name != ORIGINS
    }
    record[ORIGINS] = row.column(ORIGINS)[0].as_py()
    return record


def _batch_rows(batch: pa.RecordBatch) -> Iterator[Record]:
    for start in range(0, batch.num_rows, _ROWS_AT_A_TIME):
        yield from batch.slice(start, _ROWS_AT_A_TIME).to_pylist()


def _pieces(path: Path) -> Iterator[bytes]:
    with open_input(str(path)) as stream:
        codec = codec_of(str(path))
        if codec is not None:
            yield from decompress(stream, codec)
            return
        while piece := stream.read(1 << 20):
            yield piece


def line_chunks(path: Path) -> Iterator[list[bytes]]:
    """Whole lines, about a piece of the stream at a time."""
    begun: list[bytes] = []
    for piece in _pieces(path):
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = b"".join([*begun, lines[0]])
            yield lines
            begun = []
        begun.append(rest)
    if last := b"".join(begun):
        yield [last]


def _record(content: bytes) -> Record:
    record = decode_json(content)
    if not isinstance(record, dict):
        raise msgspec.ValidationError(f"a record must be an object, not {type(record).__name__}")
    return record


def without_origin(record: Record) -> Record:
    record.pop(ORIGIN, None)
    record.pop(ORIGINS, None)
    return record
