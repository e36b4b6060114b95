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


def collate_as_megatron_bridge(entry, eos_id):
    """What the reader of Megatron-Bridge makes of a row with `pad_seq_to_mult`, document by document.

    Returns for each document its inputs, labels, the mask of its labels, and how many inputs are not padding.
    """
    documents = []
    for start, end in itertools.pairwise([*entry["seq_start_id"], len(entry["input_ids"])]):
        tokens = entry["input_ids"][start:end]
        inputs, labels, mask = tokens[:-1], tokens[1:], entry["loss_mask"][start : end - 1]
        num_filled = max((place + 1 for place, token in enumerate(inputs) if token != eos_id), default=0)
        documents.append((inputs, labels, mask, num_filled))
    return documents


def test_megatron_bridge_gets_padded_documents(runs, tmp_path):
    folder, _ = runs
    dataset = gm.open_dataset(folder / f"out-{ALIGN}")
    eos_id = json.loads((folder / f"out-{ALIGN}" / "manifest.json").read_text())["tokenizer"]["eos_id"]
    exported = gm.export(folder / f"out-{ALIGN}", to="megatron-bridge", path=tmp_path / "corpus")
    assert not exported.notes
    stored = [entry for path in exported.files for entry in pq.read_table(path).to_pylist()]
    assert len(stored) == len(dataset)
    for number, entry in enumerate(stored):
        record = dataset[number]
        read = collate_as_megatron_bridge(entry, eos_id)
        originals = np.split(record["input_ids"], np.cumsum(record["lengths"]))[:-1]
        assert sum(len(inputs) for inputs, *_ in read) <= 128
        for (inputs, labels, mask, num_filled), original in zip(read, originals, strict=True):
            assert len(inputs) % ALIGN == 0
            assert len(inputs) - len(original) + 1 < ALIGN
            padding = [eos_id] * (len(inputs) - len(original) + 1)
            assert [*inputs, *labels[-1:]] == [*original.tolist(), *padding][: len(inputs) + len(labels[-1:])]
            assert mask == [1] * (len(original) - 1) + [0] * len(padding)
            # a document that was cut at the row's length has no end token; the end token of others is no logical input
            assert num_filled == min(len(inputs), len(original) - (original[-1] == eos_id))
    [usage] = exported.usage
    assert eval(usage, {"PackedSequenceSpecs": dict}) == {
        "packed_sequence_size": 128,
        "pad_seq_to_mult": ALIGN,
        "packed_train_data_path": f"{tmp_path}/corpus_train-*.idx.parquet",
    }


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
