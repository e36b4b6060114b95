"""The differences between two datasets: shards, then records, then tokens, then what made them.

Equal hashes of shards need no reading. The others are read once (`documents`). Documents are matched by their
content, and what is left by its origin; a copy of a document is matched with the copy of the same number.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.core.records import LOSS_MASK, SOURCE
from gristmill.report.documents import LaneDocuments, number_copies
from gristmill.shards.canonical import make_damage_error
from gristmill.shards.manifest import MIXED
from gristmill.storage.folders import open_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from gristmill.shards.dataset import Dataset
    from gristmill.shards.manifest import Manifest
    from gristmill.shards.stored_files import Shard


_CONTEXT = 40
_MAX_VALUE = 200
_BLANK = re.compile(r"[\s\u200b-\u200f\u2060\ufeff\u00ad]")
_GLYPHS = str.maketrans({" ": "·", "\t": "→", "\r": "␍", "\n": "␊", "\u00a0": "⍽", "\u3000": "□"})
"""Others, such as a zero-width space, are escaped where they are printed."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A key that has other values in the two datasets: of the recipe, a version, an input file."""

    key: str
    a: Any = None
    b: Any = None


class ChangedRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record with the same origin and another content."""

    place: str
    row_a: int
    row_b: int
    part: str
    """The first that differs: a column, or `tokens`, or `loss_mask`."""
    parts: list[str]
    """All that differ."""
    position: int
    """The first character or token that differs."""
    a: str = ""
    """What is there, with some text before it."""
    b: str = ""
    id_a: int | None = None
    id_b: int | None = None


class LaneDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of one source of one split."""

    split: str
    source: str
    shards_a: int
    shards_b: int
    differing_a: list[str]
    """Shards of A whose content is in no shard of B."""
    differing_b: list[str]
    only_in_a: int = 0
    """Documents."""
    only_in_b: int = 0
    changed: int = 0
    is_compared: bool = True
    """Whether documents were compared; those of datasets of different kinds are not."""
    examples_a: list[str] = []
    """Origins of some documents that only A has."""
    examples_b: list[str] = []
    records: list[ChangedRecord] = []

    @property
    def is_reordered(self) -> bool:
        """Whether the documents are the same, in another order or in other rows."""
        return self.is_compared and not (self.only_in_a or self.only_in_b or self.changed)


class DatasetSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a dataset."""

    records: int
    """Documents or rows."""
    tokens: int | None = None


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in which two datasets differ. Equal datasets may have been made by different recipes."""

    equal: bool
    """Whether they hold the same bytes in the same order."""
    hash_a: str
    hash_b: str
    size_a: DatasetSize
    size_b: DatasetSize
    layout: list[Change]
    """Kind, format, columns, length of rows."""
    lanes: list[LaneDifference]
    recipe: list[Change]
    versions: list[Change]
    inputs: list[Change]
    """Input files by their source and relative path, with their size and version."""


def find_differences(a: Dataset, b: Dataset, *, max_records: int = 5) -> Differences:
    """Compare two datasets; up to `max_records` changed records of each source are described."""
    of_a, of_b = a.manifest, b.manifest
    layout = _compare(_describe_layout(of_a), _describe_layout(of_b))
    is_equal = of_a.dataset_hash == of_b.dataset_hash
    if is_equal:
        _check_sizes(a)
        _check_sizes(b)
    lanes = [] if is_equal else list(_compare_lanes(a, b, max_records, reads=not layout or of_a.kind == of_b.kind))
    return Differences(
        equal=is_equal,
        hash_a=of_a.dataset_hash,
        hash_b=of_b.dataset_hash,
        size_a=_measure_size(of_a),
        size_b=_measure_size(of_b),
        layout=layout,
        lanes=lanes,
        recipe=compare_recipes(of_a.recipe, of_b.recipe),
        versions=_compare(_describe_versions(of_a), _describe_versions(of_b)),
        inputs=_compare(_describe_inputs(of_a), _describe_inputs(of_b)),
    )


def _measure_size(manifest: Manifest) -> DatasetSize:
    amounts = manifest.amounts().values()
    tokens = sum(amount.tokens or 0 for amount in amounts) if manifest.holds_rows else None
    return DatasetSize(records=sum(shard.rows for _, _, shard in manifest.shards()), tokens=tokens)


def compare_recipes(a: Mapping[str, object], b: Mapping[str, object]) -> list[Change]:
    """Compare two recipes as they are in manifests, key by key. A step without parameters is like one with defaults.

    >>> compare_recipes({"steps": ["length"]}, {"steps": [{"length": {"min_chars": 3}}]})
    [Change(key='steps.0.length.min_chars', a=None, b=3)]
    """
    return _compare(*(_flatten(_name_steps(recipe)) for recipe in (a, b)))


def _name_steps(data: object) -> object:
    """Write each step of the lists `steps` as its name and its parameters."""
    if not isinstance(data, dict):
        return data
    return {
        key: [{"step": step} if isinstance(step, str) else {"step": next(iter(step), ""), **step} for step in value]
        if key == "steps" and isinstance(value, list)
        else _name_steps(value)
        for key, value in data.items()
    }


def _check_sizes(dataset: Dataset) -> None:
    """Check that every shard is there and whole: manifests alone would call a dataset without its shards equal."""
    folder = dataset.folder
    states = open_folder(folder).measure(shard.path for _, _, shard in dataset.manifest.shards())
    for _, _, shard in dataset.manifest.shards():
        state = states.get(shard.path)
        if state is None or state.num_bytes != shard.bytes:
            problem = "is missing" if state is None else f"has {state.num_bytes} bytes, but {shard.bytes} were written"
            raise make_damage_error(shard.path, problem, folder)


def _describe_layout(manifest: Manifest) -> dict[str, Any]:
    columns = {f"column {name}": kind for name, kind in manifest.schema.columns.items()}
    return {"kind": manifest.kind, "format": manifest.format, "row_length": manifest.row_length, **columns}


def _describe_versions(manifest: Manifest) -> dict[str, Any]:
    tokenizer = manifest.tokenizer
    content = {} if tokenizer is None else {"tokenizer": tokenizer.content, "tokenizer engine": tokenizer.engine}
    return {**manifest.versions, **manifest.plugins, **content}


def _describe_inputs(manifest: Manifest) -> dict[str, Any]:
    return {f"{file.source}:{file.relative}": [file.bytes, file.version] for file in manifest.files.values()}


def _flatten(data: object, path: str = "") -> dict[str, Any]:
    """Name every value of nested data by its path.

    >>> _flatten({"steps": [{"length": {"min_chars": 3}}]})
    {'steps.0.length.min_chars': 3}
    """
    items: list[tuple[str, object]]
    if isinstance(data, dict):
        items = [(str(name), value) for name, value in data.items()]
    elif isinstance(data, list):
        items = [(str(number), value) for number, value in enumerate(data)]
    else:
        return {path: data}
    return {
        name: value for key, inner in items for name, value in _flatten(inner, f"{path}.{key}" if path else key).items()
    }


def _compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Change]:
    keys = dict.fromkeys([*a, *b])
    return [Change(key=key, a=a.get(key), b=b.get(key)) for key in keys if a.get(key) != b.get(key)]


def match_documents(a: Dataset, b: Dataset) -> Iterator[tuple[LaneDifference, LaneMatch]]:
    """Match documents in differing shards, by split and source. Yields nothing if the datasets hold different kinds."""
    if a.manifest.dataset_hash != b.manifest.dataset_hash and a.manifest.kind == b.manifest.kind:
        for lane, shards_a, shards_b in _list_other_shards(a, b):
            yield lane, _match_lane(a, b, lane, shards_a, shards_b)


def _compare_lanes(a: Dataset, b: Dataset, max_records: int, *, reads: bool) -> Iterator[LaneDifference]:
    """Compare each source of each split, as it is on the disk."""
    for lane, shards_a, shards_b in _list_other_shards(a, b):
        if reads:
            yield _describe_match(lane, _match_lane(a, b, lane, shards_a, shards_b), max_records)
        else:
            yield msgspec.structs.replace(lane, is_compared=False)


def _match_lane(
    a: Dataset, b: Dataset, lane: LaneDifference, shards_a: list[Shard], shards_b: list[Shard]
) -> LaneMatch:
    """Match the documents of a lane. A mixed lane has a column with the source, which separate sources do not need."""
    ignored = (SOURCE,) if lane.source == MIXED else ()
    return LaneMatch(LaneDocuments(a, shards_a, ignored=ignored), LaneDocuments(b, shards_b, ignored=ignored))


def _list_other_shards(a: Dataset, b: Dataset) -> Iterator[tuple[LaneDifference, list[Shard], list[Shard]]]:
    """Yield each source of each split that differs, with the shards of A and of B that the other does not have.

    If the sources of a split are mixed on one side only, the whole split is compared.
    """
    mixed = a.manifest.mixed.keys() ^ b.manifest.mixed.keys()
    lanes = dict.fromkeys(
        (split, MIXED if split in mixed else source) for side in (a, b) for split, source, _ in side.manifest.shards()
    )
    for split, source in lanes:
        shards_a, shards_b = (
            [
                shard
                for name, shards in side.manifest.splits.get(split, {}).items()
                if name == source or split in mixed
                for shard in shards
            ]
            for side in (a, b)
        )
        hashes_a, hashes_b = ({shard.xxh3 for shard in shards} for shards in (shards_a, shards_b))
        if [shard.xxh3 for shard in shards_a] == [shard.xxh3 for shard in shards_b]:
            continue
        other_a = [shard for shard in shards_a if shard.xxh3 not in hashes_b]
        other_b = [shard for shard in shards_b if shard.xxh3 not in hashes_a]
        lane = LaneDifference(
            split=split,
            source=source,
            shards_a=len(shards_a),
            shards_b=len(shards_b),
            differing_a=[shard.path for shard in other_a],
            differing_b=[shard.path for shard in other_b],
        )
        yield lane, other_a, other_b


class LaneMatch:
    """The documents of two lanes, matched by their content, then by their origins, then by their neighbours.

    An origin has a position in its file: a line that was edited or removed moves all that follow. They are the same
    documents. Only what no other document equals has changed. Where an input has another size, neighbours come before
    origins: the position of a line may now be that of the next one.
    """

    def __init__(self, a: LaneDocuments, b: LaneDocuments) -> None:
        self.documents_a, self.documents_b = a, b
        partners = np.full(len(a.keys), -1)
        """The document of B for each one of A."""
        _, in_a, in_b = np.intersect1d(a.keys, b.keys, return_indices=True)
        is_equal = a.digests[in_a] == b.digests[in_b]
        partners[in_a[is_equal]] = in_b[is_equal]
        rest_a, rest_b = _list_unmatched(partners, len(b.keys))
        contents_a, contents_b = number_copies(a.digests[rest_a]), number_copies(b.digests[rest_b])
        _, in_a, in_b = np.intersect1d(contents_a, contents_b, return_indices=True)
        partners[rest_a[in_a]] = rest_b[in_b]
        if _is_input_edited(a.dataset.manifest, b.dataset.manifest):  # an equal position may be another document's
            _match_neighbours(partners, a, b)
        rest_a, rest_b = _list_unmatched(partners, len(b.keys))
        _, in_a, in_b = np.intersect1d(a.keys[rest_a], b.keys[rest_b], return_indices=True)
        partners[rest_a[in_a]] = rest_b[in_b]
        _match_neighbours(partners, a, b)
        only_a, only_b = _list_unmatched(partners, len(b.keys))
        matched = np.flatnonzero(partners >= 0)
        changed = matched[a.digests[matched] != b.digests[partners[matched]]]
        self.changed: list[tuple[int, int]] = list(zip(changed.tolist(), partners[changed].tolist(), strict=True))
        """Pairs of documents with another content."""
        self.only_a: list[int] = only_a.tolist()
        self.only_b: list[int] = only_b.tolist()


def _is_input_edited(a: Manifest, b: Manifest) -> bool:
    """Whether a file that both have read has another size."""
    sizes = {(file.source, file.relative): file.bytes for file in a.files.values()}
    return any(sizes.get((file.source, file.relative), file.bytes) != file.bytes for file in b.files.values())


def _list_unmatched(partners: NDArray[np.int64], num_b: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """List the documents of A and of B without a partner."""
    return np.flatnonzero(partners < 0), np.setdiff1d(np.arange(num_b), partners)


def _match_neighbours(partners: NDArray[np.int64], a: LaneDocuments, b: LaneDocuments) -> None:
    """Match what lies between the same two documents in A and in B, if it is as many there: the n-th with the n-th."""
    order_a, order_b = (np.lexsort((side.numbers, side.rows)) for side in (a, b))
    ranks_b = np.empty_like(order_b)
    ranks_b[order_b] = np.arange(len(order_b))
    # The places in B of A's documents, between one before the first and one after the last.
    places = np.full(len(order_a) + 2, -2)
    matched = partners[order_a] >= 0
    places[1:-1][matched] = ranks_b[partners[order_a][matched]]
    places[0], places[-1] = -1, len(order_b)
    is_free = np.ones(len(order_b), np.bool_)
    is_free[places[1:-1][matched]] = False
    anchors = np.flatnonzero(places != -2)
    for left, right in zip(anchors[:-1].tolist(), anchors[1:].tolist(), strict=True):
        first, last = int(places[left]) + 1, int(places[right])
        if right - left > 1 and last - first == right - left - 1 and is_free[first:last].all():
            partners[order_a[left : right - 1]] = order_b[first:last]


def _describe_match(lane: LaneDifference, match: LaneMatch, max_records: int) -> LaneDifference:
    a, b = match.documents_a, match.documents_b
    return msgspec.structs.replace(
        lane,
        only_in_a=len(match.only_a),
        only_in_b=len(match.only_b),
        changed=len(match.changed),
        examples_a=[a.place(index) for index in match.only_a[:max_records]],
        examples_b=[b.place(index) for index in match.only_b[:max_records]],
        records=[_describe_change(a, b, *pair) for pair in match.changed[:max_records]],
    )


def _describe_change(a: LaneDocuments, b: LaneDocuments, index_a: int, index_b: int) -> ChangedRecord:
    place, row_a, row_b = a.place(index_a), int(a.rows[index_a]), int(b.rows[index_b])
    if a.dataset.manifest.holds_rows:
        facts = _compare_tokens(a, b, index_a, index_b)
    else:
        facts = _compare_columns(a.dataset[row_a], b.dataset[row_b])
    return ChangedRecord(place=place, row_a=row_a, row_b=row_b, **facts)


def _compare_tokens(a: LaneDocuments, b: LaneDocuments, index_a: int, index_b: int) -> dict[str, Any]:
    (ids_a, mask_a), (ids_b, mask_b) = a.tokens(index_a), b.tokens(index_b)
    pairs = {"tokens": (ids_a.tolist(), ids_b.tolist()), LOSS_MASK: (mask_a.tolist(), mask_b.tolist())}
    parts = [name for name, (left, right) in pairs.items() if left != right] or ["tokens"]
    part = parts[0]
    position = _find_first_difference(*pairs[part]) or 0
    start = max(0, position - 8)
    texts = [_decode(side.dataset, ids[start : position + 8]) for side, ids in ((a, ids_a), (b, ids_b))]
    found_ids = [int(ids[position]) if position < len(ids) else None for ids in (ids_a, ids_b)]
    return {
        "part": part,
        "parts": parts,
        "position": position,
        "a": texts[0],
        "b": texts[1],
        "id_a": found_ids[0],
        "id_b": found_ids[1],
    }


def _decode(dataset: Dataset, ids: NDArray[np.integer[Any]]) -> str:
    tokenizer = dataset.manifest.tokenizer
    return dataset.decode_ids(ids) if tokenizer is not None and tokenizer.files else " ".join(map(str, ids.tolist()))


def _compare_columns(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    parts = [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
    column = parts[0] if parts else ""
    texts = [value if isinstance(value, str) else repr(value) for value in (a.get(column), b.get(column))]
    position = _find_first_difference(texts[0], texts[1]) or 0
    start = max(0, position - _CONTEXT)
    shown = [text[start : position + _MAX_VALUE] for text in texts]
    return {"part": column, "parts": parts, "position": position, "a": shown[0], "b": shown[1]}


def show_glyphs(a: str, b: str) -> tuple[str, str]:
    r"""Show white space as glyphs where two texts differ in nothing else; a reader would see them as equal.

    >>> show_glyphs("a b\r\n", "a  b\n")
    ('a·b␍␊', 'a··b␊')
    >>> show_glyphs("a b", "a c")
    ('a b', 'a c')
    """
    if a == b or _BLANK.sub("", a) != _BLANK.sub("", b):
        return a, b
    return a.translate(_GLYPHS), b.translate(_GLYPHS)


def _find_first_difference(a: Any, b: Any) -> int | None:
    nothing = object()
    pairs = enumerate(zip_longest(a, b, fillvalue=nothing))
    return next((number for number, (left, right) in pairs if left != right), None)
