"""`pack: {align: 16}` from texts to batches and an export: no token lost, padding counted, borders at multiples."""

import itertools
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from gristmill_testing.small_tokenizers import trained

import gristmill as gm
from gristmill import steps
from gristmill.stream import Collate, Stream

ALIGN = 16


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A dataset with and one without `align`, of the same documents."""
    folder = tmp_path_factory.mktemp("aligned")
    rng = np.random.default_rng(4)
    texts = [" ".join(f"w{word}" for word in rng.integers(0, 50, rng.integers(1, 40))) for _ in range(300)]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    trained(folder / "tokenizer")
    results = {}
    for align in (1, ALIGN):
        recipe = gm.Recipe(
            sources={"web": steps.Read(read=str(folder / "texts.jsonl"))},
            steps=[steps.Tokenize(tokenizer=str(folder / "tokenizer")), steps.Pack(row_length=128, align=align)],
            output=str(folder / f"out-{align}"),
        )
        results[align] = gm.run(recipe, backend="serial", progress=False)
    return folder, results


def list_documents(dataset):
    return sorted(
        tuple(document)
        for record in map(dataset.__getitem__, range(len(dataset)))
        for document in np.split(record["input_ids"], np.cumsum(record["lengths"]))[:-1]
    )


def test_no_token_is_lost_and_padding_is_counted(runs):
    folder, results = runs
    plain, aligned = (gm.open_dataset(folder / f"out-{align}") for align in (1, ALIGN))
    assert list_documents(plain) == list_documents(aligned)
    assert results[1].tokens == results[ALIGN].tokens
    assert len(aligned) > len(plain)
    for align, dataset in ((1, plain), (ALIGN, aligned)):
        report = json.loads((folder / f"out-{align}" / "report.json").read_text())
        [packing] = report["packing"].values()
        assert packing["padding"] == 128 * len(dataset) - results[align].tokens
    assert not aligned.verify().problems


def test_batches_begin_documents_at_multiples(runs):
    folder, results = runs
    fields = ("input_ids", "labels", "position_ids", "document_ids", "cu_seqlens")
    stream = Stream(folder / f"out-{ALIGN}", seed=3, epochs=1, collate=Collate(fields=fields, align=ALIGN))
    documents = []
    for batch in stream.batches(5):
        assert not np.any(batch["cu_seqlens"] % ALIGN)
        for ids, numbers in zip(batch["input_ids"], batch["document_ids"], strict=True):
            documents += [tuple(ids[numbers == number]) for number in range(numbers.max() + 1)]
            starts = np.flatnonzero(np.diff(numbers, prepend=-1) > 0)
            assert not np.any(starts % ALIGN)
    assert sorted(documents) == list_documents(gm.open_dataset(folder / f"out-{ALIGN}"))
    assert sum(map(len, documents)) == results[ALIGN].tokens


def test_megatron_bridge_gets_padded_documents(runs, tmp_path):
    folder, _ = runs
    dataset = gm.open_dataset(folder / f"out-{ALIGN}")
    exported = gm.export(folder / f"out-{ALIGN}", to="megatron-bridge", path=tmp_path / "corpus")
    assert not exported.notes
    stored = [entry for path in exported.files for entry in pq.read_table(path).to_pylist()]
    assert len(stored) == len(dataset)
    for number, entry in enumerate(stored):
        record = dataset[number]
        borders = [*entry["seq_start_id"], len(entry["input_ids"])]
        assert not any(border % ALIGN for border in borders)
        assert borders[-1] <= 128
        begin = 0
        for (start, end), length in zip(itertools.pairwise(borders), record["lengths"].tolist(), strict=True):
            assert entry["input_ids"][start : start + length] == record["input_ids"][begin : begin + length].tolist()
            assert 0 <= end - start - length < ALIGN
            assert entry["loss_mask"][start:end] == [1] * (length - 1) + [0] * (end - start - length + 1)
            begin += length


def test_formats_that_do_not_pad_documents_say_so(runs, tmp_path):
    folder, _ = runs
    for to in ("numpy", "parquet", "mds", "llamafactory"):
        notes = {
            align: gm.export(folder / f"out-{align}", to=to, path=tmp_path / f"{to}-{align}", backend="serial").notes
            for align in (1, ALIGN)
        }
        assert notes[1] == []
        [note] = notes[ALIGN]
        assert "does not pad" in note
        assert f"Collate(align={ALIGN})" in note
