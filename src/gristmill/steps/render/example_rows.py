"""The rendered examples of a batch, collected in flat lists and turned into columns.

No Python object is kept for an example: its text is a few pieces among those of all others, joined once for the batch.

Images of chats are looked up while `render` is planned, and found by name while it runs.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import UsageError
from gristmill.core.records import (
    IMAGES,
    IMAGES_TYPE,
    KINDS,
    LITERALS,
    NUM_TOKENS,
    ORIGIN,
    ORIGIN_TYPE,
    TEXT,
    TEXT_TYPE,
    WEIGHTS,
)
from gristmill.core.token_kinds import MAX_WEIGHTS
from gristmill.images.image_files import ImageTable, list_images
from gristmill.images.image_tokens import ImageRule, make_image_rule
from gristmill.storage.locations import decode_stored
from gristmill.text.chats.chat_images import ChatImages
from gristmill.text.chats.parts import list_changes, list_weights
from gristmill.text.chats.shapes import NotAChat
from gristmill.text.tokenizers.files import read_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gristmill.text.chats.options import Example, RenderedRecord
    from gristmill.text.chats.record_plan import RecordPlan
    from gristmill.text.tokenizers.files import TokenizerFiles


PROMPT = "prompt"
"""The column with the text before the last answer."""
COMPLETION = "completion"
"""The column with the last answer."""


class ExampleRows:
    """The rendered examples of a batch, as columns."""

    def __init__(
        self, schema: pa.Schema, refer_to_images: Callable[[Sequence[str]], list[dict[str, Any]]] | None = None
    ) -> None:
        """`refer_to_images` returns the references of images by name."""
        self._schema = schema
        self._refer_to_images = refer_to_images
        self._images: dict[int, tuple[str, ...]] = {}
        """For each example with images their names."""
        self._weights: dict[int, list[float]] = {}
        """For each example with weights the table of these."""
        self._sources: list[int] = []
        """For each example the row of its record."""
        self._pieces: list[bytes] = []
        self._num_pieces: list[int] = []
        self._filled: dict[RecordPlan, list[int]] = {}
        """The examples that each plan has filled in: their places are computed at the end, for all at once."""
        self._made: list[int] = []
        """The other examples: their places are known."""
        self._parts: list[int] = []
        self._prompts: list[int] = []
        self._places: dict[str, list[int]] = {KINDS: [], LITERALS: []}
        self._num_places: dict[str, list[int]] = {KINDS: [], LITERALS: []}

    def add(self, row: int, rendered: RenderedRecord) -> None:
        """Add the examples of a record. Raises `NotAChat` if a text cannot be written in UTF-8; then none is added."""
        encoded = [encode_example(example) for example in rendered.examples]
        if any(len(list_weights(example)) > MAX_WEIGHTS for example in rendered.examples):
            raise NotAChat("too_many_weights", f"a chat has more than {MAX_WEIGHTS:,} different weights")
        for part, (text, changes, literals, answer) in enumerate(encoded):
            if rendered.examples[part].images:
                self._images[len(self._sources)] = rendered.examples[part].images
            if rendered.examples[part].weights:
                self._weights[len(self._sources)] = list_weights(rendered.examples[part])
            self._made.append(len(self._sources))
            self._sources.append(row)
            self._parts.append(part)
            self._pieces.append(text)
            self._num_pieces.append(1)
            for name, places in ((KINDS, changes), (LITERALS, literals)):
                self._places[name] += places
                self._num_places[name].append(len(places))
            self._prompts.append(answer)

    def add_filled(self, row: int, plan: RecordPlan, pieces: list[bytes]) -> None:
        """Add the one example of a record that a plan has filled in."""
        self._filled.setdefault(plan, []).append(len(self._sources))
        self._sources.append(row)
        self._pieces += pieces
        self._num_pieces.append(len(pieces))

    def count_filled(self) -> Iterator[tuple[RecordPlan, int]]:
        """Count the records that each plan has filled in."""
        return ((plan, len(examples)) for plan, examples in self._filled.items())

    def to_batch(
        self, batch: pa.RecordBatch, count_tokens: Callable[[pa.Array], NDArray[np.int64]] | None = None
    ) -> pa.RecordBatch:
        """Make the batch of the examples; `batch` has the records that they came from."""
        rows = pa.array(self._sources, pa.int64())
        data = b"".join(self._pieces)
        piece_starts = _sum_up(map(len, self._pieces), len(self._pieces))
        first_pieces = _sum_up(self._num_pieces, len(self._sources))
        ends = piece_starts[first_pieces]
        places, prompts = self._compute_places(piece_starts, first_pieces)
        borders = ends[:-1] + prompts  # between a prompt and its completion
        columns: dict[str, pa.Array] = {}
        for name in self._schema.names:
            if name in places:
                offsets, values = places[name]
                columns[name] = pa.ListArray.from_arrays(
                    pa.array(offsets.astype(np.int32)), pa.array(values), type=self._schema.field(name).type
                )
            elif name == TEXT:
                columns[name] = _make_texts(ends, data)
            elif name == NUM_TOKENS and count_tokens is not None:
                columns[name] = pa.array(count_tokens(_make_texts(ends, data)), pa.int64())
            elif name == PROMPT:
                columns[name] = _cut_texts(data, ends[:-1], borders)
            elif name == COMPLETION:
                columns[name] = _cut_texts(data, borders, ends[1:])
            elif name == IMAGES and self._refer_to_images is not None:
                names = (self._images.get(example, ()) for example in range(len(self._sources)))
                columns[name] = pa.array(list(map(self._refer_to_images, names)), IMAGES_TYPE)
            elif name == WEIGHTS:
                tables = [self._weights.get(example, []) for example in range(len(self._sources))]
                columns[name] = pa.array(tables, pa.list_(pa.float32()))
            elif name == ORIGIN:
                columns[name] = self._make_origins(batch.column(ORIGIN).take(rows))
            else:
                columns[name] = batch.column(name).take(rows)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)

    def _compute_places(
        self, piece_starts: NDArray[np.int64], first_pieces: NDArray[np.int64]
    ) -> tuple[dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]], NDArray[np.int64]]:
        """Compute for each column of places its offsets and values; and where the last answer of each example begins.

        A plan says that a place is, for example, 7 bytes after the start of piece 2 of its examples.
        """
        num_examples = len(self._sources)
        prompts = np.zeros(num_examples, dtype=np.int64)
        prompts[self._made] = self._prompts
        places: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        for name, known_places in self._places.items():
            num_places = np.zeros(num_examples, dtype=np.int64)
            num_places[self._made] = self._num_places[name]
            if name == KINDS:
                for plan, example_list in self._filled.items():
                    num_places[example_list] = 2 * len(plan.codes)
            offsets = _sum_up(num_places, num_examples)
            values = np.zeros(offsets[-1], dtype=np.int64)
            is_made = np.zeros(num_examples, dtype=bool)
            is_made[self._made] = True
            values[np.repeat(is_made, num_places)] = known_places
            places[name] = offsets, values
        offsets, values = places[KINDS]
        for plan, example_list in self._filled.items():
            examples = np.array(example_list, dtype=np.int64)
            firsts = first_pieces[examples]
            by_piece = piece_starts[firsts[:, None] + np.array(plan.pieces_of_places)]
            in_bytes = by_piece - piece_starts[firsts][:, None] + np.array(plan.offsets_of_places)
            changes = offsets[examples][:, None] + 2 * np.arange(len(plan.codes))
            values[changes] = in_bytes[:, :-1]
            values[changes + 1] = plan.codes
            prompts[examples] = in_bytes[:, -1]
        return places, prompts

    def _make_origins(self, origins: pa.StructArray) -> pa.StructArray:
        """Return the origins of examples: several examples of one record are its parts."""
        if not any(self._parts):
            return origins
        parts_of_records = np.zeros(len(self._sources), dtype=np.uint32)
        parts_of_records[self._made] = self._parts
        parts = pc.add(origins.field("part"), pa.array(parts_of_records))
        fields = [origins.field("file"), origins.field("position"), parts]
        return pa.StructArray.from_arrays(fields, fields=list(ORIGIN_TYPE))


def encode_example(example: Example) -> tuple[bytes, list[int], list[int], int]:
    """Return the text in UTF-8, its changes of kind, literals and last answer in bytes. Each character is encoded once.

    Raises:
        NotAChat: The text has a lone surrogate.
    """
    changes = list_changes(example)
    literals = [place for span in example.literals for place in span]
    text = example.text
    if text.isascii():
        return text.encode(), [*chain.from_iterable(changes)], literals, example.last_answer
    places = sorted({*(place for place, _ in changes), *literals, example.last_answer, len(text)})
    pieces, in_bytes, start, num_bytes = [], {}, 0, 0
    try:
        for place in places:
            pieces.append(text[start:place].encode())
            num_bytes += len(pieces[-1])
            in_bytes[place] = num_bytes
            start = place
    except UnicodeEncodeError as error:
        raise NotAChat("lone_surrogate", str(error)) from None
    joined = b"".join(pieces)
    return (
        joined,
        [number for place, code in changes for number in (in_bytes[place], code)],
        [in_bytes[place] for place in literals],
        in_bytes[example.last_answer],
    )


def _sum_up(sizes: Iterable[int] | NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Sum up sizes to offsets, from 0 on."""
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.fromiter(sizes, np.int64, count), out=offsets[1:])
    return offsets


def _make_texts(offsets: NDArray[np.int64], data: bytes) -> pa.LargeStringArray:
    """Make a column of texts. They were encoded here, so they need no check."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    texts: Any = pa.Array.from_buffers(TEXT_TYPE, len(offsets) - 1, buffers)
    return texts


def _cut_texts(data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.LargeStringArray:
    pieces = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return _make_texts(_sum_up(map(len, pieces), len(pieces)), b"".join(pieces))


_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


def find_images(
    pattern: str, family: str | int | None, token: str | None, files: TokenizerFiles | None, folder: str
) -> tuple[ImageRule, ImageTable]:
    """Find the rule for image tokens and all images.

    Raises:
        UsageError: There is no rule, no image, or the tokenizer lacks a token of the rule.
    """
    if files is None:
        raise UsageError("images: image tokens are counted with a tokenizer", help="name one: tokenizer: …")
    rule = make_image_rule(family, _read_settings(files), token)
    known = read_facts(files).added_tokens
    for name in (rule.token, rule.placeholder):
        if name not in known:
            raise UsageError(
                f"images: the tokenizer has no special token {name}, which {rule.family} writes for images",
                help="name the tokenizer of the model, or with a number of image_tokens its image_token",
            )
    return rule, list_images(pattern, folder)


def make_chat_images(rule: ImageRule, table: ImageTable) -> ChatImages:
    """Make what conversations are read with."""

    def count_tokens(name: str) -> int:
        entry = table.find(name)
        if entry is None:
            raise NotAChat("image_not_found", f"there is no image {name!r:.200} in {table.root}")
        if entry.problem:
            reason, _, message = entry.problem.partition(": ")
            raise NotAChat(reason, f"the image {name!r:.200}: {message}")
        try:
            return rule.count(entry.width, entry.height)
        except ValueError as error:
            raise NotAChat("image_shape", f"the image {name!r:.200}: {error}") from None

    return ChatImages(rule.placeholder, rule.expansion, rule.inline, count_tokens)


def refer_to_images(names: Iterable[str], rule: ImageRule, table: ImageTable) -> list[dict[str, Any]]:
    """Return the references of images by name, as rows keep them."""
    entries = [entry for name in names if (entry := table.find(name)) is not None]
    return [
        {"shard": entry.shard, "member": entry.member, "tokens": rule.count(entry.width, entry.height)}
        for entry in entries
    ]


def _read_settings(files: TokenizerFiles) -> dict[str, Any]:
    """Read the settings of the processor, which newer files keep in one place."""
    settings: dict[str, Any] = {}
    for name in _PROCESSOR_FILES:
        path = Path(files.path).parent / name
        if not path.is_file():
            continue
        content = decode_stored(path.read_bytes(), dict[str, Any], path, help="restore it, or remove it")
        settings |= content
        settings |= content.get("image_processor") or {}
        if "processor_class" in content:
            settings["processor_class"] = content["processor_class"]
    return settings
