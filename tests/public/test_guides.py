"""Every guide works when it is followed from top to bottom, and what it says can be seen in what it made."""

import re
from pathlib import Path

import pytest
from gristmill_testing.documents import FENCE, follow_guide

import gristmill as gm

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
PUBLIC = ("gristmill", "gristmill.stream", "gristmill.stream.torch", "gristmill.order")
pytestmark = pytest.mark.timeout(900)  # a page is a dozen commands


@pytest.mark.full
def test_settings(tmp_path):
    follow_guide(GUIDES / "settings.md", tmp_path)
    names = ("laptop", "memory", "cores", "files", "huge", "chats")
    datasets = {name: gm.open_dataset(tmp_path / "out" / name) for name in names}
    assert all(dataset.verify() for dataset in datasets.values())
    assert len(datasets["files"].manifest.files) == 200
    assert len(list(datasets["files"].manifest.shards())) == 1
    assert datasets["chats"].manifest.kind == "chats"
    # Slices, workers and the size of partitions are settings of a run: the data is the same.
    assert datasets["memory"].manifest.dataset_hash == datasets["cores"].manifest.dataset_hash


@pytest.mark.full
def test_tutorial(tmp_path):
    printed = follow_guide(GUIDES / "tutorial.md", tmp_path)
    assert re.findall(r"rows (\d+) to (\d+): loss", printed) == [
        *[(str(row), str(row + 8)) for row in range(0, 40, 8)],
        *[(str(row), str(row + 16)) for row in range(40, 88, 16)],
    ]
    dataset = gm.open_dataset(tmp_path / "out")
    assert set(dataset.manifest.mixed["train"]) == {"manual", "code"}
    assert "duplicate" in printed
    assert "gopher_quality" in printed


@pytest.mark.full
def test_post_training(tmp_path):
    pytest.importorskip("trl")
    printed = follow_guide(GUIDES / "post-training.md", tmp_path)
    assert "(4, 64) True" in printed
    rollouts = gm.open_dataset(tmp_path / "out/rollouts")
    assert rollouts.schema.names == ["input_ids", "lengths", "loss_mask", "logprobs", "origins"]
    assert "sums user rule train" in printed
    assert len(gm.open_dataset(tmp_path / "out/prompts")) == 200
    assert "events for the interface: 2" in printed
    assert "mail addresses: 2" in printed
    assert gm.open_dataset(tmp_path / "out/sessions").manifest.kind == "chats"
    losses = {name: float(value) for name, value in re.findall(r"^(\w+) loss (\S+)$", printed, re.MULTILINE)}
    assert losses.keys() == {"sft", "dpo", "kto"}
    assert all(0 < loss < 10 for loss in losses.values())
    kinds = {name: gm.open_dataset(tmp_path / name).manifest.kind for name in losses}
    assert kinds == {"sft": "chats", "dpo": "preferences", "kto": "preferences"}
    assert "equal_sides" in printed


@pytest.mark.full
def test_iterating(tmp_path):
    printed = follow_guide(GUIDES / "iterating.md", tmp_path)
    claims = [
        line
        for language, content in FENCE.findall((GUIDES / "iterating.md").read_text())
        if language == "text"
        for line in content.splitlines()
    ]
    # How many bytes images take depends on the version of zlib.
    assert [claim for claim in claims if "bytes" not in claim and claim not in printed] == []
    [num_bytes] = re.findall(r"^(\d+) bytes to each worker", printed, re.MULTILINE)
    assert int(num_bytes) < 4096


@pytest.mark.full
@pytest.mark.parametrize("name", ["datasets-map", "multiprocessing-pool", "megatron", "webdataset"])
def test_from_another_tool(name, tmp_path):
    printed = follow_guide(GUIDES / f"from-{name}.md", tmp_path)
    if name == "multiprocessing-pool":
        assert printed.split() == ["500", "500"]


@pytest.mark.parametrize("page", sorted(GUIDES.parent.glob("**/*.md")), ids=lambda page: page.stem)
def test_documents_import_only_public_modules(page):
    for line in page.read_text().splitlines():
        if line.startswith(("import gristmill", "from gristmill")):
            module = line.split()[1]
            assert module in PUBLIC or module.startswith("gristmill.stream.trainers."), line
