"""Exports to the Hugging Face Hub: one commit with everything and a card, or none. Only the server is a fake."""

import json

import pytest
from gristmill_testing.fake_hub import FakeHub

import gristmill as gm
from gristmill.cli.main import main
from gristmill.core.errors import GristmillError, UsageError
from gristmill.steps import Length, Read, Split

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content")  # of huggingface_hub itself
TARGET = "hf://datasets/ada/corpus"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    from huggingface_hub import constants

    server = FakeHub()
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield server
    server.close()
    assert not list((tmp_path / "home").glob(".cache/gristmill/exports/*"))


@pytest.fixture
def dataset(tmp_path):
    sources = {
        "web": Read(read=[{"text": f"text number {n}"} for n in range(40)] + [{"text": "x"}]),
        "books": Read(read=[{"text": f"page {n} of a | book"} for n in range(10)]),
    }
    steps = [Length(min_chars=5), Split(validation=0.2)]
    recipe = gm.Recipe(sources=sources, steps=steps, output=str(tmp_path / "out"), mixture={"web": 3.0, "books": 1.0})
    return gm.run(recipe, backend="serial", progress=False).manifest, tmp_path / "out"


def export(folder, **options):
    return gm.export(folder, path=TARGET, backend="serial", progress=False, **{"to": "parquet", **options})


@pytest.mark.parametrize("to", ["parquet", "jsonl"])
def test_one_commit_with_a_card(hub, dataset, tmp_path, to):
    manifest, folder = dataset
    result = export(folder, to=to, licences={"web": "odc-by"})
    assert hub.private["ada/corpus"]
    assert len(hub.repositories["ada/corpus"]) == 2, "one commit after the empty repository"
    files = hub.head("ada/corpus")
    card = files.pop("README.md").decode()
    local = gm.export(folder, to=to, path=tmp_path / "local" / "corpus", backend="serial", progress=False)
    assert files == {f"data/{file.name}": file.read_bytes() for file in local.files}
    assert result.uploaded == {path: len(content) for path, content in files.items()}
    assert result.commit.endswith(hub.sha("ada/corpus"))
    assert manifest.dataset_hash in card
    assert manifest.fingerprint in card
    assert "| web | length | 40 |  | 1 too_short |" in card
    assert "| web | odc-by |" in card
    assert "| books | not stated |" in card
    assert "| web | 3 |" in card


def test_the_hub_finds_the_splits_of_the_card(hub, dataset, tmp_path):
    export(dataset[1])
    snapshot = tmp_path / "snapshot"
    for path, content in hub.head("ada/corpus").items():
        (snapshot / path).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / path).write_bytes(content)
    datasets = pytest.importorskip("datasets")
    loaded = datasets.load_dataset(str(snapshot), cache_dir=str(tmp_path / "cache"))
    assert {name: len(split) for name, split in loaded.items()} == {
        split: sum(shard.rows for shards in sources.values() for shard in shards)
        for split, sources in dataset[0].splits.items()
    }


def test_nothing_is_overwritten_unless_asked_and_then_nothing_stale_stays(hub, dataset):
    export(dataset[1])
    with pytest.raises(UsageError, match="would be overwritten"):
        export(dataset[1])
    hub.add_commit("ada/corpus", {"data/corpus_train-00007.parquet": b"stale", "notes.txt": b"of others"})
    export(dataset[1], overwrite=True)
    files = hub.head("ada/corpus")
    assert "data/corpus_train-00007.parquet" not in files
    assert files["notes.txt"] == b"of others"


def test_a_commit_of_somebody_else_in_between_is_noticed(hub, dataset):
    hub.repositories["ada/corpus"] = [{}]

    def interfere():
        hub.before_commit = lambda: None
        hub.add_commit("ada/corpus", {"other": b"1"})

    hub.before_commit = interfere
    with pytest.raises(GristmillError, match="changed by another writer"):
        export(dataset[1])
    assert hub.head("ada/corpus") == {"other": b"1"}


def test_wrong_use(hub, dataset, tmp_path):
    with pytest.raises(UsageError, match="not a dataset repository"):
        gm.export(dataset[1], to="parquet", path="hf://datasets/corpus")
    with pytest.raises(UsageError, match="wab"):
        export(dataset[1], licences={"wab": "mit"})
    with pytest.raises(UsageError, match="licences"):
        gm.export(dataset[1], to="parquet", path=tmp_path / "x" / "y", licences={"web": "mit"})
    assert hub.requests == []


def test_on_the_command_line(hub, dataset, capsys):
    words = [
        "export",
        str(dataset[1]),
        "--to",
        "jsonl",
        "--path",
        TARGET,
        "--licence",
        "web=mit",
        "--backend",
        "serial",
    ]
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--json"])
    assert not stopped.value.code
    facts = json.loads(capsys.readouterr().out)
    assert facts["commit"].endswith(hub.sha("ada/corpus"))
    assert facts["usage"] == ['load_dataset("ada/corpus")']
    assert set(facts["files"]) == {path for path in hub.head("ada/corpus") if path != "README.md"}
