"""Small datasets of rows for the tests of streaming, and the order of training worked out slowly, row by row."""

import msgspec
import numpy as np

from gristmill.order import Mixture, Permutation
from gristmill.order.permutation import make_epoch_key
from gristmill.shards.dataset import open_dataset
from gristmill.shards.manifest_file import dump_manifest, load_manifest
from gristmill_testing.token_datasets import write_tokens

ROW_LENGTH = 12


def packed_rows(rng, num_rows, *, row_length=ROW_LENGTH, vocab_size=60_000):
    """Rows of documents, some with padding; the first id of each row is its own."""
    rows = []
    for _ in range(num_rows):
        lengths = [3]
        while sum(lengths) < row_length - 2:
            lengths.append(int(rng.integers(1, row_length - sum(lengths) + 1)))
        rows.append([rng.integers(1, vocab_size, length).tolist() for length in lengths])
    return rows


def ragged_rows(rng, num_rows):
    return [rng.integers(1, 60_000, int(rng.integers(1, 20))).tolist() for _ in range(num_rows)]


def write_packed(folder, shards, *, mixture=None, seed=0, vocab_size=60_000, **options):
    """`{source: [rows of a shard, …]}` as a dataset."""
    rng = np.random.default_rng(seed)
    content = {
        ("train", source): [packed_rows(rng, num_rows, vocab_size=vocab_size) for num_rows in sizes]
        for source, sizes in shards.items()
    }
    write_tokens(folder, content, row_length=ROW_LENGTH, **options)
    return folder if mixture is None else with_manifest(folder, mixture=mixture)


def with_manifest(folder, **changes):
    """The dataset with some fields of its manifest changed."""
    manifest = msgspec.structs.replace(load_manifest(folder), **changes).seal()
    (folder / "manifest.json").write_bytes(b"".join(dump_manifest(manifest)))
    return folder


def stored_rows(folder):
    """Source -> its rows' ids, read by other means."""
    dataset = open_dataset(folder)
    rows = {}
    index = 0
    for split, source, shard in dataset.manifest.shards():
        for _ in range(shard.rows):
            if split == "train":
                rows.setdefault(source, []).append(dataset[index]["input_ids"].tolist())
            index += 1
    return rows


def all_rows(folder):
    """The ids of all rows, one source after the other."""
    return [row for rows in stored_rows(folder).values() for row in rows]


def slow_order(lanes, num_rows, *, mixture=None, seed=0):
    """The ids of the first rows: `lanes` is name -> rows. One number at a time, from the definitions."""
    schedule = Mixture(mixture) if mixture else None
    order = []
    for row in range(num_rows):
        name, draw = "", row
        if schedule is not None:
            sources, draws = schedule([row])
            name, draw = schedule.sources[int(sources[0])], int(draws[0])
        epoch, index = divmod(draw, len(lanes[name]))
        order.append(lanes[name][Permutation(len(lanes[name]), make_epoch_key(seed, name, epoch))(index)])
    return order


def ids_of(batches):
    """The rows of batches, without those that only fill up."""
    return [row for batch in batches for row in np.asarray(batch["input_ids"])[np.asarray(batch.row_mask)].tolist()]
